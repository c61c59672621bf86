"""An OpenAI-compatible server that does as it is told, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from dynamo.llm import open_model
from dynamo.worker.engines import create_engine
from dynamo.worker.settings import WorkerSettings

TEXT: Final = b'data: {"choices": [{"text": "hi", "finish_reason": "stop"}]}\n\n'


class ScriptedServer:
    """`replies` has what each route answers: a status and a body; a status of 0 closes the connection."""

    def __init__(self) -> None:
        self.replies: dict[str, tuple[int, bytes]] = {
            "/health": (200, b""),
            "/v1/models": models(),
            "/v1/completions": (200, answer(2)),
        }
        self.asked: list[str] = []
        self.bodies: list[Any] = []
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._answer(reader, writer):
                pass
        self._writers.discard(writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = [line for line in head.lower().splitlines() if line.startswith("content-length:")]
        if length:
            self.bodies.append(json.loads(await reader.readexactly(int(length[0].partition(":")[2]))))
        route = head.split()[1]
        self.asked.append(route)
        status, body = self.replies.get(route, (404, b""))
        if status:
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)))
            writer.write(body)
            await writer.drain()
        return bool(status)


def models(name: str = "m", **more: Any) -> tuple[int, bytes]:
    """What `/v1/models` answers."""
    return 200, json.dumps({"data": [{"id": name, **more}]}).encode()


def answer(tokens: int) -> bytes:
    """An answer in text that counts so many tokens."""
    usage = {"prompt_tokens": 1, "completion_tokens": tokens}
    return TEXT + b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"


def cut_answer(tokens: int) -> bytes:
    """An answer that ended for its length, and counts so many tokens."""
    return answer(tokens).replace(b'"stop"', b'"length"')


@contextlib.asynccontextmanager
async def engine_over(server: ScriptedServer, **arguments: Any) -> AsyncIterator[Any]:
    """An engine that asks the server in text."""
    given = json.dumps({"url": server.url, "api": "openai", **arguments})
    engine: Any = create_engine(WorkerSettings(engine="openai", engine_args=given), open_model(None))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
