"""A user's file as an engine, in this process: ends, errors by their lines, cancelling, what holds the loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from dynamo.llm import open_model
from dynamo.llm.protocols import LENGTH, STOP, PreprocessedRequest, StopConditions, TextRequest
from dynamo.runtime.context import Context
from dynamo.runtime.errors import CapacityExceeded, EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.engines import create_engine, takes_text
from dynamo.worker.engines.python import loop_watchdog
from dynamo.worker.engines.python.engine import Python
from dynamo.worker.engines.support import request_checks
from dynamo.worker.instance.canary import MARK, health_check
from dynamo.worker.settings import WorkerSettings


class Recorder:
    """A sink that remembers, and belongs to a request."""

    def __init__(self) -> None:
        self.context = Context("the-request")
        self.produced: list[Any] = []
        self.extras: list[Any] = []
        self.ends: list[Any] = []

    def push(self, produced: list[int] | str, extras: dict[str, Any] | None = None) -> None:
        assert not self.ends
        self.produced += produced
        self.extras.append(extras)

    def finish(self, reason: str, extras: dict[str, Any] | None = None) -> None:
        self.ends.append(reason)
        self.extras.append(extras)

    def fail(self, error: Exception) -> None:
        self.ends.append(error)

    async def end(self) -> Any:
        await until("an end", lambda: self.ends)
        assert len(self.ends) == 1
        return self.ends[0]

    @property
    def text(self) -> str:
        return "".join(self.produced)


class Rig:
    """A started engine of one file."""

    def __init__(self, engine: Python, settings: WorkerSettings) -> None:
        self.engine, self._text = engine, takes_text(settings)

    def submit(self, said: str = "hello", **body: Any) -> tuple[Recorder, Callable[[], None]]:
        sink = Recorder()
        request: Any = TextRequest(
            model="m", kind="chat", body={"messages": [{"role": "user", "content": said}], **body}
        )
        if not self._text:
            request = PreprocessedRequest(model="m", token_ids=[*said.encode()], stop_conditions=StopConditions(**body))
        return sink, self.engine.submit(request, sink)

    async def begun(self, said: str) -> tuple[Recorder, Callable[[], None]]:
        sink, abort = self.submit(said)
        await until("the first piece", lambda: sink.produced)
        return sink, abort

    async def ask(self, said: str = "hello", **body: Any) -> Recorder:
        sink, _ = self.submit(said, **body)
        await sink.end()
        return sink


def run(folder: Path, text: str, body: Callable[[Rig], Awaitable[None]], *, mode: str = "text", **more: Any) -> None:
    """Run `body` with a started engine of a file with this text."""
    file = folder / "engine.py"
    file.write_text(text)
    settings = WorkerSettings(engine="python", python_file=str(file), python_mode=mode, **more)

    async def main() -> None:
        engine = create_engine(settings, open_model(None))
        assert isinstance(engine, Python)
        try:
            await engine.start()
            await body(Rig(engine, settings))
        finally:
            await engine.stop()

    asyncio.run(main())


CHUNK = (
    'def chunk(text, finish=None):\n    return {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}\n'
)


def test_text_in_text_out(tmp_path: Path) -> None:
    """Text in order, the file's finish reason, and the usage that follows it, in one end."""
    text = (
        CHUNK
        + """
async def generate(request):
    for word in request["messages"][-1]["content"].split():
        yield chunk(word)
    yield chunk("!", "length")
    yield {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}
"""
    )

    async def body(rig: Rig) -> None:
        sink = await rig.ask("a b c")
        assert (sink.text, sink.ends) == ("abc!", [LENGTH])
        assert sink.extras[-1] == {"prompt_tokens": 4, "completion_tokens": 3}
        assert (await rig.ask("a b c", stop=["bc"])).text == "a"

    run(tmp_path, text, body)


def test_tokens_in_tokens_out(tmp_path: Path) -> None:
    """A file that just returns ends with `stop`; one that yields on is ended at `max_tokens`, and closed."""
    text = """
closed = []
async def generate(request):
    try:
        for token in request["token_ids"]:
            yield {"token_ids": [token]}
    finally:
        closed.append(len(request["token_ids"]))
"""

    async def body(rig: Rig) -> None:
        assert (await rig.ask("ab")).ends == [STOP]
        sink = await rig.ask("abc", max_tokens=2)
        assert (bytes(sink.produced), sink.ends) == (b"ab", [LENGTH])
        await until("no answer is open", lambda: not rig.engine.load().running)
        main: Any = sys.modules["__main__"]
        assert main.closed == [2, 3]
        assert (await rig.ask("abc", max_tokens=0)).produced == []

    run(tmp_path, text, body, mode="tokens")


@pytest.mark.parametrize("form", ["async def initialize(args)", "def initialize(args)"])
def test_initialize_gets_the_arguments(form: str, tmp_path: Path) -> None:
    """Once, before the first request, whether it is async or blocks."""
    text = f"given = []\n{form}:\n    given.extend(args)\nasync def generate(request):\n    yield str(given)\n"

    async def body(rig: Rig) -> None:
        assert (await rig.ask()).text == "['-n', '42']"

    run(tmp_path, text, body, python_arg=["-n", "42"])


@pytest.mark.parametrize("form", ["async def", "def"])
def test_initialize_may_end_the_process(form: str, tmp_path: Path) -> None:
    """It is told as any other failure of it, by its line; nothing runs on or ends without a word."""
    text = f"import sys\n{form} initialize():\n    sys.exit(3)\nasync def generate(request):\n    yield ''\n"

    async def body(rig: Rig) -> None:
        raise AssertionError("it has started")

    with pytest.raises(InvalidArgument, match=r"^engine.py:3 in initialize: SystemExit: 3"):
        run(tmp_path, text, body)


def test_initialize_may_fail(tmp_path: Path) -> None:
    """With the line; the process is told in one sentence."""
    text = "async def initialize():\n    raise OSError('no such weights')\nasync def generate(request):\n    yield ''\n"

    async def body(rig: Rig) -> None:
        raise AssertionError("it has started")

    with pytest.raises(InvalidArgument, match=r"^engine.py:2 in initialize: OSError: no such weights"):
        run(tmp_path, text, body)


def test_errors_while_running_name_their_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each in the log with the request's id, and to the client; text before it is kept; others go on."""
    text = """
from dynamo.runtime.errors import InvalidArgument
async def generate(request, context):
    said = request["messages"][-1]["content"]
    if said == "refuse":
        raise InvalidArgument("say something else")
    yield "begun"
    if said == "break":
        raise KeyError("lost")
    if said == "list":
        yield [1]
    if said == "twice":
        yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        yield "more"
    yield context.id()
"""

    async def body(rig: Rig) -> None:
        assert (await rig.ask()).text == "begunthe-request"
        refused = await rig.ask("refuse")
        assert isinstance(refused.ends[0], InvalidArgument)
        broken = await rig.ask("break")
        assert (broken.text, type(broken.ends[0])) == ("begun", EngineError)
        assert str(broken.ends[0]) == "engine.py:9 in generate: KeyError: 'lost' (raise KeyError(\"lost\"))"
        assert "engine.py:11: yields a list where a dict is meant" in str((await rig.ask("list")).ends[0])
        assert "engine.py:14: yields more output after" in str((await rig.ask("twice")).ends[0])
        assert "[the-request] engine.py:9 in generate: KeyError" in caplog.text
        assert "Traceback" not in caplog.text

    with caplog.at_level(logging.INFO):
        run(tmp_path, text, body)


def test_cancelling_closes_the_generator_at_once(tmp_path: Path) -> None:
    """It is ended where it waits, its `finally` runs, and the slot is free within a step; nothing is sent any more."""
    text = """
import asyncio
seen = []
async def generate(request):
    try:
        yield "one"
        await asyncio.sleep(3600)
        yield "two"
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise
    finally:
        seen.append("closed")
"""

    async def body(rig: Rig) -> None:
        sink, abort = rig.submit()
        await until("the first piece", lambda: sink.produced)
        abort()
        abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        main: Any = sys.modules["__main__"]
        assert main.seen == ["cancelled", "closed"]
        await until("the slot is free", lambda: not rig.engine.load().running)
        assert (sink.text, sink.ends) == ("one", [])

    run(tmp_path, text, body)


def test_a_generator_that_goes_on_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that swallows the cancellation is closed at its next yield; one that yields even then is named."""
    text = """
import asyncio
async def generate(request):
    said = request["messages"][-1]["content"]
    while True:
        try:
            yield "one"
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
        except GeneratorExit:
            if said == "stubborn":
                yield "still here"
            raise
"""

    async def body(rig: Rig) -> None:
        for said in ("swallows", "stubborn"):
            sink, abort = await rig.begun(said)
            abort()
            await until("the slot is free", lambda: not rig.engine.load().running)
            assert (sink.text, sink.ends) == ("one", [])
            assert ("ignored GeneratorExit" in caplog.text) is (said == "stubborn")
        gc.collect()

    run(tmp_path, text, body)


def test_stopping_ends_what_is_open(tmp_path: Path) -> None:
    """With `EngineShutdown`, once each."""
    text = "import asyncio\nasync def generate(request):\n    yield 'one'\n    await asyncio.sleep(3600)\n"

    async def body(rig: Rig) -> None:
        sinks = [rig.submit()[0] for _ in range(5)]
        await until("all have begun", lambda: all(sink.produced for sink in sinks))
        await rig.engine.stop()
        for sink in sinks:
            assert isinstance(await sink.end(), EngineShutdown)

    run(tmp_path, text, body)


def test_only_so_many_requests_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by other engines: one too many goes to another worker; one that ended makes room."""
    monkeypatch.setattr(request_checks, "MOST_OPEN", 2)
    text = "import asyncio\nasync def generate(request):\n    yield 'one'\n    await asyncio.Event().wait()\n"

    async def body(rig: Rig) -> None:
        _, abort = await rig.begun("a")
        await rig.begun("b")
        with pytest.raises(CapacityExceeded, match="2 requests"):
            rig.submit("c")
        abort()
        await until("it has ended", lambda: rig.engine.load().running == 1)
        await rig.begun("c")

    run(tmp_path, text, body)


def test_a_file_may_end_the_process(tmp_path: Path) -> None:
    """`sys.exit` in generate is the engine's death, with its line; the loop goes on until it is told to end."""
    text = "import sys\nasync def generate(request):\n    yield 'one'\n    sys.exit(3)\n"

    async def body(rig: Rig) -> None:
        dying = asyncio.ensure_future(rig.engine.failed())
        sink = await rig.ask()
        assert "engine.py:4 in generate: SystemExit: 3" in str(sink.ends[0])
        assert "engine.py:4 in generate" in str(await asyncio.wait_for(dying, 10))

    run(tmp_path, text, body)


def test_files_that_never_wait_hold_up_nobody(tmp_path: Path) -> None:
    """Others get their turn between the pieces of an endless answer, and it can be cancelled."""
    text = """
async def generate(request):
    if request["messages"][-1]["content"] == "short":
        yield "done"
        return
    while True:
        yield ""
"""

    async def body(rig: Rig) -> None:
        endless, abort = rig.submit("endless")
        assert (await rig.ask("short")).text == "done"
        abort()
        await until("the slot is free", lambda: not rig.engine.load().running)
        assert endless.ends == []

    run(tmp_path, text, body)


def test_what_holds_the_loop_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of the user's file that blocks, though the library's code is what runs; and when it goes on."""
    monkeypatch.setattr(loop_watchdog, "LIMIT", 0.1)
    monkeypatch.setattr(loop_watchdog, "_EVERY", 0.02)
    sentence = "engine.py:4 in generate has held the event loop"
    text = """import threading
event = threading.Event()
async def generate(request):
    event.wait(60)
    yield 'done'
"""

    async def body(rig: Rig) -> None:
        main: Any = sys.modules["__main__"]

        class Release(logging.Handler):
            """Ends the hold as soon as it is told."""

            def emit(self, record: logging.LogRecord) -> None:
                if sentence in record.getMessage():
                    main.event.set()

        handler = Release()
        logging.getLogger().addHandler(handler)
        try:
            assert (await rig.ask()).text == "done"
        finally:
            logging.getLogger().removeHandler(handler)
        assert sentence in caplog.text
        assert "(event.wait(60))" in caplog.text
        await until("its end is told", lambda: "the event loop goes on after" in caplog.text)

    with caplog.at_level(logging.INFO):
        run(tmp_path, text, body)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """The file, or the flag; and the flag is no other engine's."""
    model = open_model(None)
    for settings, says in (
        (WorkerSettings(engine="python"), "needs --python-file"),
        (WorkerSettings(engine="python", python_file=str(tmp_path / "no.py")), "no such file"),
        (WorkerSettings(engine="mocker", python_file="x.py"), "not for mocker"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            create_engine(settings, model)


def test_a_health_check_of_a_text_file_is_a_chat() -> None:
    """Such files read `messages`; the mark is in the body, which is all they see."""
    card = open_model(None).card
    card.model_input = "text"
    settings = WorkerSettings(engine="python", python_file="x.py", python_mode="text", health_check_enabled=True)
    asked = health_check(card, settings)
    assert isinstance(asked, TextRequest)
    assert (asked.kind, asked.body["messages"][0]["role"], asked.body[MARK]) == ("chat", "user", True)
