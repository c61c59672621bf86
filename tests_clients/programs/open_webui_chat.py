"""Open WebUI in Chromium: its first account, a chat, and a tool of its own that the model calls."""

from __future__ import annotations

import json
import os
import sys

from docs.site.check_console import Console
from docs.site.check_pages import browser

BUTTONS = "[...document.querySelectorAll('button')]"
ANSWERS = "[...document.querySelectorAll('.chat-assistant')].map(answer => answer.innerText)"
RATED = "document.querySelectorAll('[aria-label=\"Good Response\"]').length"
"""Answers that are there as a whole can be rated."""


def click(console: Console, text: str) -> None:
    """Click the button with this text, once it is there."""
    button = f"{BUTTONS}.find(button => button.innerText.includes({json.dumps(text)}))"
    console.until(f"there is a button {text!r}", f"!!{button}")
    console.said(f"{button}.click()")


def write(console: Console, element: str, text: str) -> None:
    """Type a text into an element, once it is there."""
    element = f"document.querySelector({json.dumps(element)})"
    console.until(f"there is {element}", f"!!{element}")
    console.said(f"{element}.focus()")
    console.write(text)


def sign_up(console: Console, url: str) -> None:
    """Make the first account, as its page tells a new user."""
    console.open(url)
    click(console, "Get started")
    write(console, "#name", "Ada")
    write(console, "#email", os.environ["EMAIL"])
    write(console, "#password", os.environ["PASSWORD"])
    console.press("Enter", 13, "\r")
    click(console, "Okay, Let's Go!")
    console.until("the model is chosen", "!!document.querySelector('[aria-label=\"Selected model: demo\"]')")


def say(console: Console, text: str, number: int) -> str:
    """Send a message; the answer, once it is there as a whole."""
    write(console, "#chat-input", text)
    console.press("Enter", 13, "\r")
    console.until(f"message {number} is answered", f"{RATED} == {number}")
    return str(console.said(ANSWERS)[number - 1])


def main(url: str) -> None:
    """Do it, and print the answers."""
    with browser() as tab:
        tab.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        console = Console(tab)
        sign_up(console, url)
        texts = ["Hello there", "Please call get_current_timestamp {}"]
        sys.stdout.write(json.dumps([say(console, text, number) for number, text in enumerate(texts, 1)]))


if __name__ == "__main__":
    main(sys.argv[1])
