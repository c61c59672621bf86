"""The load client: one process that is the same for both sides, started by `run.py` for each measurement.

It reads one JSON task from standard input, opens its connections, warms up, prints `warm`, waits for a line (the
caller reads the servers' CPU times now), sends the measured requests over keep-alive connections, and prints one
JSON line of figures. Every answer is checked: status, number of tokens, finish reason, `[DONE]`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import uvloop
from bench.figures import percentile
from bench.sse import Answer

# No workload of the table takes longer than this for one request, on any machine it can be used on.
REQUEST_SECONDS = 60.0


@dataclass(slots=True)
class Task:
    """What to send."""

    url: str
    model: str
    tokens_out: int
    at_once: int
    stream: bool
    quick_ack: bool
    warm_up: list[str]
    prompts: list[str]
    completions: bool = False
    """Ask for the continuation of a text, not for a chat."""
    wave_seconds: float = 0.0
    """Send a request on each connection at once, and the next ones so much later; 0: one after another."""
    request_seconds: float = REQUEST_SECONDS

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    def request(self, prompt: str) -> bytes:
        """One whole HTTP request."""
        body: dict[str, Any] = {
            "model": self.model,
            **({"prompt": prompt} if self.completions else {"messages": [{"role": "user", "content": prompt}]}),
            "max_tokens": self.tokens_out,
            "ignore_eos": True,
            "stream": self.stream,
        }
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        content = json.dumps(body).encode()
        route = "completions" if self.completions else "chat/completions"
        head = (
            f"POST /v1/{route} HTTP/1.1\r\nHost: {self.address[0]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content


@dataclass(slots=True)
class Times:
    """What was seen of a number of requests, in seconds."""

    first: array[float] = field(default_factory=lambda: array("d"))
    gaps: array[float] = field(default_factory=lambda: array("d"))
    whole: array[float] = field(default_factory=lambda: array("d"))
    faults: list[str] = field(default_factory=list)
    reads: int = 0
    events: int = 0


class Connection(asyncio.Protocol):
    """One keep-alive connection that has at most one request under way."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._socket: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._answer = Answer()
        self._done: asyncio.Future[None] | None = None
        self._times = Times()
        self._sent = 0.0
        self._seen = 0.0
        self._fresh = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what is needed to write and to acknowledge."""
        # uvloop's transports aren't subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._socket = transport.get_extra_info("socket")
        if self._socket is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def ask(self, request: bytes, times: Times) -> None:
        """Send one request and read its answer to the end."""
        assert self._transport is not None
        self._times = times
        self._answer = Answer()
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._acknowledge()
        self._sent = self._seen = time.perf_counter()
        self._transport.write(request)
        async with asyncio.timeout(self._task.request_seconds):
            await self._done

    @property
    def answer(self) -> Answer:
        """The last one, or as much of it as has come."""
        return self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """One read: note the time of the tokens in it."""
        now = time.perf_counter()
        self._acknowledge()
        had_text = self._answer.has_text
        self._fresh = 0
        self._parser.feed_data(data)
        times = self._times
        times.reads += 1
        if self._answer.has_text and not had_text:
            times.first.append(now - self._sent)
        elif self._fresh and had_text:
            times.gaps.append(now - self._seen)
            times.gaps.extend([0.0] * (self._fresh - 1))
        if self._fresh:
            self._seen = now

    def on_body(self, body: bytes) -> None:
        """Called by the parser: a piece of the answer without its HTTP framing."""
        self._fresh += self._answer.feed(body)

    def on_message_complete(self) -> None:
        """Called by the parser: the answer is whole."""
        task, times = self._task, self._times
        fault = self._answer.fault(self._parser.get_status_code(), task.tokens_out, task.stream)
        if fault is not None:
            times.faults.append(fault)
        times.events += self._answer.events
        times.whole.append(time.perf_counter() - self._sent)
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server hung up: an error if a request was under way."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"the server closed the connection: {exc}"))

    def _acknowledge(self) -> None:
        if self._task.quick_ack and self._socket is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


async def send(connections: Sequence[Connection], requests: Sequence[bytes]) -> tuple[Times, float]:
    """All requests over these connections, each taking the next when it is free; times and seconds in all."""
    times = Times()
    waiting = iter(requests)

    async def drain(connection: Connection) -> None:
        for request in waiting:
            await connection.ask(request, times)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(drain(connection))
    return times, time.perf_counter() - start


async def send_waves(connections: Sequence[Connection], requests: Sequence[bytes], every: float) -> tuple[Times, float]:
    """Requests in waves, a request on each connection; the next one begins on time, or once all answers are there."""
    times = Times()
    start = time.perf_counter()
    for number, begin in enumerate(range(0, len(requests), len(connections))):
        await asyncio.sleep(max(0.0, start + number * every - time.perf_counter()))
        async with asyncio.TaskGroup() as group:
            for connection, request in zip(connections, requests[begin : begin + len(connections)], strict=False):
                group.create_task(connection.ask(request, times))
    return times, time.perf_counter() - start


def summary(times: Times, seconds: float, task: Task) -> dict[str, Any]:
    """The figures of one measurement."""
    requests = len(times.whole)
    gaps = sorted(times.gaps)
    first = sorted(times.first)
    whole = sorted(times.whole)
    return {
        "requests": requests,
        "tokens": requests * task.tokens_out,
        "seconds": seconds,
        "tokens_per_second": requests * task.tokens_out / seconds,
        "ttft_p50_ms": percentile(first, 50) * 1e3,
        "ttft_p99_ms": percentile(first, 99) * 1e3,
        "itl_p50_ms": percentile(gaps, 50) * 1e3,
        "itl_p99_ms": percentile(gaps, 99) * 1e3,
        "whole_p50_ms": percentile(whole, 50) * 1e3,
        "whole_p99_ms": percentile(whole, 99) * 1e3,
        "events_per_read": times.events / max(1, times.reads),
        "faults": len(times.faults),
        "first_faults": times.faults[:3],
    }


async def measure(task: Task) -> dict[str, Any]:
    """Warm up, wait for the word, measure."""
    loop = asyncio.get_running_loop()
    host, port = task.address
    connections = [(await loop.create_connection(lambda: Connection(task), host, port))[1] for _ in range(task.at_once)]
    try:
        warm, _ = await send(connections, [task.request(p) for p in task.warm_up])
        requests = [task.request(p) for p in task.prompts]
        print("warm", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        if task.wave_seconds:
            await asyncio.sleep(task.wave_seconds)
            times, seconds = await send_waves(connections, requests, task.wave_seconds)
        else:
            times, seconds = await send(connections, requests)
        times.faults.extend(warm.faults)
        return {**summary(times, seconds, task), "client_cpu": time.process_time()}
    finally:
        for connection in connections:
            connection.close()


def as_process(measured: Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]) -> None:
    """What a client's process does: one task in JSON from standard input, one line of figures to standard output."""
    given = json.loads(sys.stdin.readline())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            print(json.dumps(runner.run(measured(given))), flush=True)
        except* (OSError, TimeoutError) as failed:
            sys.exit(f"client: {failed.exceptions[0]!r}")


if __name__ == "__main__":
    as_process(lambda given: measure(Task(**given)))
