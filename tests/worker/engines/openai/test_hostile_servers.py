"""Servers that do what none should: each is a clear end of the request, in time, and nothing is followed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.worker.chain_model import write_gguf
from tests.worker.engine_rigs import Recorder
from tests.worker.engines.openai.scripted_server import ScriptedServer

from dynamo.llm import open_model
from dynamo.llm.protocols import EOS, PreprocessedRequest, TextRequest
from dynamo.runtime.errors import CapacityExceeded, Disconnected, EngineError, InvalidArgument
from dynamo.worker.engines import create_engine
from dynamo.worker.settings import WorkerSettings

HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
MODELS: Final = json.dumps({"data": [{"id": "m"}]}).encode()
Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]


def event(text: str, finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": finish}]}).encode() + b"\n\n"


async def stays_open(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event("hi") + event("", "stop") + b"data: [DONE]\n\n")
    await asyncio.sleep(30)


async def breaks_off(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event("hi"))


async def never_ends_a_line(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    for _ in range(80):
        writer.write(b"data: " + b"x" * (1 << 16))
        await writer.drain()
    await asyncio.sleep(30)


async def refuses_within(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b'data: {"error": {"message": "no such grammar", "type": "BadRequestError", "code": 400}}\n\n')


async def fails_within(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event("hi") + b'data: {"error": {"message": "out of memory", "code": 500}}\n\n')


async def sends_no_json(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"data: <html>\n\n")


async def redirects(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n")


async def says_nothing(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def test_ids_outside_the_vocabulary_reach_no_server(tmp_path: Path) -> None:
    """SGLang's server dies of one: it is the caller's mistake, before anything is asked."""
    model = open_model(str(write_gguf(tmp_path)))
    async with ScriptedServer() as server:
        arguments = json.dumps({"url": server.url, "api": "vllm", "check_secs": 0})
        settings = WorkerSettings(engine="openai", engine_args=arguments, model_path=str(model.path))
        engine: Any = create_engine(settings, model)
        await engine.start()
        try:
            for ids in ([2, 1 << 18], [2, -4]):
                with pytest.raises(InvalidArgument, match="token"):
                    engine.submit(PreprocessedRequest(model="m", token_ids=ids), Recorder())
            assert "/v1/completions" not in server.asked
        finally:
            await engine.stop()


CASES: Final[list[tuple[Reply, str | type[Exception], str]]] = [
    (stays_open, EOS, "hi"),
    (breaks_off, Disconnected, "hi"),
    (never_ends_a_line, EngineError, ""),
    (refuses_within, InvalidArgument, ""),
    (fails_within, EngineError, "hi"),
    (sends_no_json, EngineError, ""),
    (redirects, EngineError, ""),
    (says_nothing, CapacityExceeded, ""),
]


@pytest.mark.parametrize(("reply", "end", "text"), CASES, ids=lambda value: getattr(value, "__name__", None))
async def test_what_it_does_ends_the_request(reply: Reply, end: Any, text: str) -> None:
    """Within seconds, with what had come; the next request is taken, and no address is told."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(MODELS) + MODELS)
            else:
                await reply(writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    arguments = json.dumps({"url": url, "api": "openai", "silence_secs": 1})
    engine: Any = create_engine(WorkerSettings(engine="openai", engine_args=arguments), open_model(None))
    await engine.start()
    try:
        for _ in range(2):
            sink = Recorder()
            engine.submit(TextRequest(model="m", kind="completions", body={"prompt": "x"}), sink)
            async with asyncio.timeout(10):
                reached = await sink.end()
            assert "".join(sink.produced) == text
            assert reached == end if isinstance(end, str) else isinstance(reached, end), reached
            assert url not in str(reached)
        assert engine.load().running == 0
    finally:
        await engine.stop()
        server.close()
