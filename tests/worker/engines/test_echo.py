"""The echo engines: what they take for the text to echo, and that one bad request is nobody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dynamo.llm import open_model
from dynamo.llm.protocols import STOP, TextRequest
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engine import Sink
from dynamo.worker.engines import create_engine
from dynamo.worker.engines.echo import DELAY, echo_delay, last_words
from dynamo.worker.settings import WorkerSettings


def chat(*messages: Any) -> TextRequest:
    return TextRequest(model="m", kind="chat", body={"messages": list(messages)})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_the_last_user_message_is_echoed() -> None:
    """Earlier turns and other roles are not; the text parts of a message are joined."""
    turns = [user("first"), {"role": "assistant", "content": "answer"}, user("second"), {"role": "tool"}]
    assert last_words(chat(*turns)) == "second"
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}, {"type": "text"}]
    assert last_words(chat(user(parts))) == "ab"
    assert last_words(TextRequest(model="m", kind="completions", body={"prompt": ["only"]})) == "only"


@pytest.mark.parametrize("body", [{}, {"messages": None}, {"messages": [7]}, {"messages": [{"role": "system"}]}])
def test_nothing_to_echo(body: dict[str, Any]) -> None:
    """A chat without a user's message is refused, whatever shape it has."""
    with pytest.raises(InvalidArgument, match="no user message"):
        last_words(TextRequest(model="m", kind="chat", body=body))


@pytest.mark.parametrize("prompt", [None, 5, [1, 2], ["a", "b"]])
def test_prompts_that_are_no_text(prompt: Any) -> None:
    """Token ids and several prompts are not for a text engine."""
    with pytest.raises(InvalidArgument, match="one prompt of text"):
        last_words(TextRequest(model="m", kind="completions", body={"prompt": prompt}))


@pytest.mark.parametrize("text", ["-1", "soon", "nan", "1e12"])
def test_a_bad_delay_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable and its value are in the error."""
    monkeypatch.setenv(DELAY, text)
    with pytest.raises(InvalidArgument, match=DELAY):
        echo_delay()


class Ended:
    """A sink that knows its end and what came before."""

    def __init__(self, breaks: bool = False) -> None:
        self.text, self._breaks = "", breaks
        self.end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def push(self, produced: list[int] | str, extras: dict[str, Any] | None = None) -> None:
        if self._breaks:
            raise ZeroDivisionError("a sink broke")
        self.text += str(produced)

    def finish(self, reason: str, extras: dict[str, Any] | None = None) -> None:
        self.end.set_result(reason)

    def fail(self, error: Exception) -> None:
        self.end.set_result(error)


async def test_one_bad_request_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is no number is refused; a stream that breaks fails alone, and the others end whole."""
    monkeypatch.setenv(DELAY, "0")

    engine: Any = create_engine(WorkerSettings(engine="echo_full"), open_model(None))
    await engine.start()

    def submit(sink: Sink, **body: Any) -> None:
        engine.submit(TextRequest(model="m", kind="completions", body={"prompt": "hello", **body}), sink)

    for bad in ("x", 1.5, -1, True):
        with pytest.raises(InvalidArgument, match="max_tokens must be a whole number"):
            submit(Ended(), max_tokens=bad)
    broken, whole = Ended(breaks=True), Ended()
    submit(broken)
    submit(whole)
    async with asyncio.timeout(10):
        assert isinstance(await broken.end, ZeroDivisionError)
        assert (await whole.end, whole.text) == (STOP, "hello")
    await engine.stop()
