"""The chat of dynamo-run against a small ASGI app: turns, errors, pipes, leaving early."""

import asyncio
import io
import json
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.history import InMemoryHistory

from dynamo.cli.asgi_client import Client, RequestError
from dynamo.cli.conversation import Conversation, text_of
from dynamo.cli.run import chat, stdin

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Coroutine[Any, Any, None]]


class App:
    """Answers chats by echoing the last message word by word; remembers what it was asked."""

    def __init__(self, *, error: str = "", endless: bool = False) -> None:
        self.error, self.endless = error, endless
        self.asked: list[dict[str, Any]] = []
        self.disconnected = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self.asked.append(json.loads((await receive())["body"]))
        if self.error == "at once":
            await self.whole(send, 400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
        else:
            await self.stream(receive, send)

    async def whole(self, send: Send, status: int, body: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    async def stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        words = self.asked[-1]["messages"][-1]["content"].split(" ")
        for word in words:
            await self.event(send, {"choices": [{"delta": {"content": word + " "}}]})
        if self.error:
            await self.event(send, {"error": {"message": "the worker was lost", "code": "worker_lost"}})
        if self.endless:
            self.disconnected = (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.body", "body": b": bye\n\ndata: [DONE]\n\n"})
        assert (await receive())["type"] == "http.disconnect"

    async def event(self, send: Send, data: Any) -> None:
        raw = b"data: " + json.dumps(data).encode() + b"\n\n"
        for half in (raw[:9], raw[9:]):
            await send({"type": "http.response.body", "body": half, "more_body": True})


def ask(app: App, talk: Conversation, text: str) -> tuple[bool, str]:
    """One turn; what came of it and what was printed."""
    out = io.StringIO()
    return asyncio.run(chat.answer(Client(app), talk, text, out)), out.getvalue()


def test_a_turn_prints_the_answer_and_keeps_it() -> None:
    """The answer goes out as it comes and is part of the next request."""
    app, talk = App(), Conversation("m")
    assert ask(app, talk, "so it goes") == (True, "so it goes \n")
    ask(app, talk, "on")
    assert [message["role"] for message in app.asked[1]["messages"]] == ["user", "assistant", "user"]


def test_requests_have_the_known_defaults() -> None:
    """8192 tokens and temperature 0.7, as ever; end markers count unless the engine echoes them."""
    body = Conversation("m").ask("hi")
    assert body == {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True,
        "max_completion_tokens": 8192, "temperature": 0.7,
    }  # fmt: skip
    assert Conversation("m", ignore_eos=True).ask("hi")["ignore_eos"] is True


def test_a_request_template_replaces_defaults() -> None:
    """--request-template may name model, temperature and length."""
    body = Conversation("m", {"temperature": 0.0, "model": "other"}).ask("hi")
    assert (body["temperature"], body["model"], body["max_completion_tokens"]) == (0.0, "other", 8192)


@pytest.mark.parametrize(
    ("error", "printed", "says"), [("at once", "", "too long"), ("later", "hi \n", "the worker was lost")]
)
def test_a_failed_turn_is_told_and_forgotten(
    error: str, printed: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error goes to standard error as one line; the next request does not repeat the turn."""
    talk = Conversation("m")
    assert ask(App(error=error), talk, "hi") == (False, printed)
    assert talk.messages == []
    assert capsys.readouterr().err == f"error: {says}\n"


def test_an_error_keeps_its_status_and_code() -> None:
    """What the frontend refuses reaches the caller with status and code."""

    events = Client(App(error="at once")).events(chat.CHAT, Conversation("m").ask("x"))
    with pytest.raises(RequestError, match="too long") as caught:
        asyncio.run(anext(events))
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


def test_leaving_early_is_a_disconnect() -> None:
    """Who stops reading is seen to be gone by the app, so that the engine's slot is freed."""

    async def main(app: App) -> None:
        async with aclosing(Client(app).events(chat.CHAT, Conversation("m").ask("hi"))) as events:
            async for event in events:
                assert text_of(event) == "hi "
                break

    app = App(endless=True)
    asyncio.run(main(app))
    assert app.disconnected


@pytest.mark.parametrize(("wanted", "expected"), [("", "one"), ("two", "two")])
def test_the_first_model_is_taken_unless_one_is_named(wanted: str, expected: str) -> None:
    """Without a name the chat is with the first model that is there."""
    served = lambda: ["one", "two"]  # noqa: E731
    assert asyncio.run(chat.first_model(served, wanted, print, more_may_come=True)) == expected


def test_a_model_that_cannot_come_is_not_waited_for() -> None:
    """With its engine in this process, another name is an error at once that says which name there is."""
    with pytest.raises(RequestError, match="nobody serves three; served are one, two"):
        asyncio.run(chat.first_model(lambda: ["one", "two"], "three", print, more_may_come=False))


@pytest.mark.parametrize(("prompt", "code", "out"), [("hi\n", 0, "hi \n"), ("\n", 2, "")])
def test_a_pipe_is_one_prompt(
    prompt: str, code: int, out: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """in=stdin sends all of its input as one prompt and prints only the answer; nothing in is a usage error."""
    with pipe(prompt.encode()) as standard_input:
        monkeypatch.setattr("sys.stdin", standard_input)
        assert asyncio.run(chat.answer_pipe(Client(App()), Conversation("m"))) == code
    assert capsys.readouterr().out == out


def test_text_from_a_pipe_is_a_turn_per_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """in=text without a terminal takes lines, skips blank ones and ends with its input."""
    app = App()
    with pipe(b"a b\n\nc\n") as standard_input:
        monkeypatch.setattr("sys.stdin", standard_input)
        assert asyncio.run(chat.chat(Client(app), Conversation("m"))) == 0
    assert capsys.readouterr().out == "a b \nc \n"
    assert len(app.asked) == 2


def pipe(data: bytes) -> Any:
    """Standard input that holds `data` and ends."""
    reading, writing = os.pipe()
    with open(writing, "wb") as end:
        end.write(data)
    return open(reading)


def test_input_need_not_be_text(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, a last line without an end, and several pieces per line are all read."""

    async def main(descriptor: int) -> list[str]:
        return [line async for line in stdin.lines(descriptor)]

    file = tmp_path / "input"
    file.write_bytes("größer\n".encode() * 20_000 + b"\xff tail")
    with file.open() as standard_input:
        outcome = asyncio.run(main(standard_input.fileno()))
    assert outcome == ["größer"] * 20_000 + ["\ufffd tail"]


def test_no_history_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the history can't be written, a chat says so and goes on."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert isinstance(chat.history(), InMemoryHistory)
    assert "no history is kept" in capsys.readouterr().err


def test_history_has_one_place() -> None:
    """Prompts are kept where the desktop's rules say."""
    assert chat.history_file({"XDG_STATE_HOME": "/x"}) == Path("/x/dynamo/history")
    assert chat.history_file({}) == Path.home() / ".local/state/dynamo/history"
