"""The words of a chat on a terminal, prompts of several lines, and Ctrl-C during an answer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from dynamo.cli.conversation import Conversation
from dynamo.cli.run import chat


def test_words_of_the_chat() -> None:
    """`/clear` forgets, `/bye` ends."""
    talk = Conversation("m")
    talk.ask("hello")
    assert chat._command(talk, "/help")
    assert chat._command(talk, "/clear")
    assert talk.messages == []
    assert not chat._command(talk, "/bye")


@pytest.mark.parametrize(
    ("typed", "whole"),
    [(["one"], "one"), (['"""a', "b", 'c"""'], "a\nb\nc"), (['"""a"""'], "a"), (['"""', "x", '"""'], "\nx\n")],
)
def test_prompt_of_several_lines(typed: list[str], whole: str) -> None:
    """Three quotes begin and end it."""
    lines = iter(typed)

    async def prompt(_said: str) -> str:
        return next(lines)

    assert asyncio.run(chat._whole(prompt, "User: ")) == whole


def test_ctrl_c_cancels_the_answer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn is forgotten, the conversation goes on, and the signal is as it was."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    talk = Conversation("m")
    before = signal.getsignal(signal.SIGINT)

    async def endless() -> bool:
        talk.ask("tell me all")
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(20)
        return True

    asyncio.run(chat._cancellable(endless(), talk))
    assert talk.messages == []
    assert signal.getsignal(signal.SIGINT) is before
