"""Drives the console in Chromium by keyboard, over a frontend with a simulated model: `make test-docs`.

It sends a message, reads the figures of the answer, stops a long one, and looks at the table of workers.
`--pictures FOLDER` keeps what was seen: dark, light, and as narrow as a telephone.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from docs.site.check_pages import WIDTH, Browser, browser

SECONDS: Final = 20.0
LOOKS: Final = (("dark", 1280, "dark"), ("light", 1280, "light"), ("phone", WIDTH, "light"))


@contextlib.contextmanager
def served(program: str) -> Iterator[str]:
    """Serve a simulated model, and yield its address."""
    words = [program, "in=http", "out=mocker", "--model-name", "demo", "--http-port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("ready ")), "")
        yield str(json.loads(line.removeprefix("ready "))["url"])
    finally:
        process.terminate()
        process.wait(SECONDS)


class Console:
    """The page, and hands on its keyboard."""

    def __init__(self, tab: Browser) -> None:
        self._tab = tab

    def said(self, expression: str) -> Any:
        """Return what the page says of an expression."""
        return self._tab.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, what: str, expression: str) -> None:
        """Wait until an expression is true; `TimeoutError` says what was waited for."""
        end = time.monotonic() + SECONDS
        while not self.said(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"the console: {what}; the page shows {self.said('document.body.innerText')}")
            time.sleep(0.05)

    def write(self, text: str) -> None:
        """Type a text where the focus is."""
        self._tab.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Press a key where the focus is."""
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self._tab.call("Input.dispatchKeyEvent", type="rawKeyDown", **about)
        self._tab.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def picture(self, path: Path, width: int, scheme: str) -> None:
        """Keep what is seen in a window of this width; it is no wider than that."""
        size = {"width": width, "height": 1100, "deviceScaleFactor": 1, "mobile": width == WIDTH}
        self._tab.call("Emulation.setDeviceMetricsOverride", **size)
        self._tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        wide = self.said("document.scrollingElement.scrollWidth")
        assert wide <= width, f"the console is {wide} pixels wide in a window of {width}"
        seen = self._tab.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(seen))


def chat(tab: Browser, url: str) -> Console:
    """Chat and stop by keyboard alone."""
    console = Console(tab)
    tab.open(f"{url}/")
    console.until("the model is there", "document.getElementById('model-a').value == 'demo'")
    console.until("the worker is ready", "document.getElementById('workers').innerText.includes('ready')")
    console.said("document.getElementById('prompt').focus()")
    console.write("Hello <b>there</b>")
    console.press("Enter", 13)
    ended = "/TTFT \\d+ ms · \\d+ tokens · [\\d.]+ tokens.s/.test(document.getElementById('figures-a').textContent)"
    console.until("an answer ends with its figures", ended)
    assert console.said("document.querySelector('#log-a b')") is None, "a message became HTML"
    console.said("document.getElementById('max-tokens').value = 100000")
    console.write("A long one")
    console.press("Enter", 13)
    console.until("tokens come", "document.querySelector('#log-a article:last-child .text:not(.thought)').textContent")
    console.press("Escape", 27)
    console.until("Escape stops it", "document.getElementById('figures-a').textContent.endsWith('stopped')")
    assert console.said("document.activeElement.id") == "prompt", "the focus left the message"
    idle = "[...document.querySelectorAll('#workers tr')].every(row => row.cells[3].textContent == '0')"
    console.until("the worker is idle again", idle)
    return console


def main() -> None:
    """Look at the console; exit 1 where its page has an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="dynamo-run")
    parser.add_argument("--pictures", type=Path, required=True)
    args = parser.parse_args()
    args.pictures.mkdir(parents=True, exist_ok=True)
    with served(args.program) as url, browser() as tab:
        console = chat(tab, url)
        for name, width, scheme in LOOKS:
            console.picture(args.pictures / f"console-{name}.png", width, scheme)
        loud = [event for event in tab.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
    if loud:
        sys.exit(f"the console's page has errors: {loud}")


if __name__ == "__main__":
    main()
