"""The load of `make bench-overload`: as many requests as are due, whatever becomes of those before them.

One process, started by the suite for each phase. It reads one JSON task from standard input, sends requests for so
many seconds, each on an idle keep-alive connection or a new one, and prints one JSON line of figures. `at_once` keeps
that many under way (what the servers can do); `rate` sends so many a second, at random times (more than they can).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import uvloop
from bench.figures import percentile
from bench.sse import Answer

REQUEST_SECONDS = 60.0
RAMP_SECONDS = 3.0
"""At the beginning of a phase: what is served then doesn't count, since nothing ran before."""
QUICK_SECONDS = 0.05
"""The bar for a refusal."""


@dataclass(slots=True)
class Task:
    """What to send, and for how long after the ramp."""

    url: str
    model: str
    tokens_out: int
    seconds: float
    at_once: int = 0
    rate: float = 0.0

    def request(self, number: int) -> bytes:
        """One whole HTTP request; prompts differ from their first words on."""
        body = {
            "model": self.model, "max_tokens": self.tokens_out, "ignore_eos": True, "stream": True,
            "messages": [{"role": "user", "content": f"request {number} " + "the house at the river " * 8}],
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        content = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(content)}\r\n"
        return head.encode() + b"Content-Type: application/json\r\n\r\n" + content


@dataclass(slots=True)
class Figures:
    """What was seen."""

    refused: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    without_retry_after: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    opened: int = 0


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request under way."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._parser: Any = None
        self.answer = Answer()
        self.headers: dict[bytes, bytes] = {}
        self.status = 0
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what writes."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of asyncio's

    async def ask(self, request: bytes) -> None:
        """Send one request and read its answer to the end."""
        assert self._transport is not None
        self.answer, self.headers, self.status = Answer(), {}, 0
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        async with asyncio.timeout(REQUEST_SECONDS):
            await self._done

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """One read."""
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        """Called by the parser: a piece of the answer without its HTTP framing."""
        self.answer.feed(body)

    def on_message_complete(self) -> None:
        """Called by the parser: the answer is whole."""
        self.status = self._parser.get_status_code()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server hung up: an error if a request was under way."""
        self.open = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"the server closed the connection: {exc}"))


class Load:
    """Sends the requests of one phase."""

    def __init__(self, task: Task) -> None:
        self._task = task
        parts = urlsplit(task.url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._idle: list[Connection] = []
        self._sent = 0
        self._counts_from = 0.0
        self.figures = Figures()

    async def run(self) -> None:
        """Send for as long as the task says, then wait for what is under way; only answers within the time count."""
        self._counts_from = time.perf_counter() + RAMP_SECONDS
        end = self._counts_from + self._task.seconds
        running: set[asyncio.Task[None]] = set()
        if self._task.at_once:
            running = {asyncio.create_task(self._again_and_again(end)) for _ in range(self._task.at_once)}
        due = time.perf_counter()
        while self._task.rate and due < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            one = asyncio.create_task(self._one(end))
            running.add(one)
            one.add_done_callback(running.discard)
            due += random.expovariate(self._task.rate)
        if running:
            await asyncio.wait([*running])
        for connection in self._idle:
            connection.close()

    async def _again_and_again(self, end: float) -> None:
        while time.perf_counter() < end:
            await self._one(end)

    async def _one(self, end: float) -> None:
        self._sent += 1
        request = self._task.request(self._sent)
        began = time.perf_counter()
        try:
            connection = await self._connection()
            await connection.ask(request)
        except (OSError, TimeoutError) as error:
            self.figures.faults[f"{type(error).__name__}: {error}"] += 1
            return
        self._note(connection, began, end)
        self._idle.append(connection)

    def _note(self, connection: Connection, began: float, end: float) -> None:
        now, figures = time.perf_counter(), self.figures
        if connection.status in (429, 503):
            figures.refused.append(now - began)
            figures.without_retry_after += b"retry-after" not in connection.headers
        elif fault := connection.answer.fault(connection.status, self._task.tokens_out, streamed=True):
            figures.faults[fault] += 1
        elif self._counts_from <= now <= end:
            figures.whole.append(now - began)

    async def _connection(self) -> Connection:
        while self._idle:
            if (found := self._idle.pop()).open:
                return found
        self.figures.opened += 1
        _, made = await asyncio.get_running_loop().create_connection(Connection, *self._address)
        return made


def summary(figures: Figures, task: Task) -> dict[str, Any]:
    """The figures of one phase; milliseconds, requests a second."""
    refused, whole = sorted(figures.refused), sorted(figures.whole)
    return {
        "served_per_second": len(whole) / task.seconds,
        "served": len(whole),
        "refused": len(refused),
        "refused_p50_ms": percentile(refused, 50) * 1e3,
        "refused_p99_ms": percentile(refused, 99) * 1e3,
        "refused_slower_than_bar": sum(seconds > QUICK_SECONDS for seconds in refused),
        "whole_p50_ms": percentile(whole, 50) * 1e3,
        "whole_p99_ms": percentile(whole, 99) * 1e3,
        "without_retry_after": figures.without_retry_after,
        "connections": figures.opened,
        "faults": sum(figures.faults.values()),
        "first_faults": [text for text, _ in figures.faults.most_common(3)],
    }


def main() -> None:
    """Carry out the task on standard input."""
    task = Task(**json.loads(sys.stdin.readline()))
    load = Load(task)
    uvloop.run(load.run())
    print(json.dumps(summary(load.figures, task)), flush=True)


if __name__ == "__main__":
    main()
