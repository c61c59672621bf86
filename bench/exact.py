"""Many streams at once, each compared letter by letter: `python bench/run.py exact [URL]`.

An engine that echoes its prompt (echo_core) makes every stream's right text known beforehand. Each stream has a
prompt of its own, with characters that span tokens, so one token lost, doubled, swapped or delivered to the wrong
stream shows. Also told: the longest pause of any stream against the median step of all. Without a URL it starts this
project's frontend with two echo workers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import uvloop
from bench.model import model_folder
from bench.processes import BenchError, Servers
from bench.sides import start_echo
from bench.sse import event_texts

STREAM_SECONDS = 300.0
# Text whose bytes don't end where tokens end, in most tokenizers.
_PIECES = (
    "naïve",
    "Straße",
    "東京",
    "мир",
    "🙂",
    "👩‍👩‍👧",
    "café",
    "x_1",
    "0.25",
    "the",
    "pipeline",
    "flows",
    "…",
    "→",
)
BAR = 10.0


@dataclass(slots=True)
class Stream:
    """One finished stream: what was expected, what came, and the pauses between its reads in seconds."""

    expected: str
    text: str
    gaps: list[float] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether the text is the one that was sent."""
        return self.text == self.expected


def longest_over_median(streams: Sequence[Stream]) -> float:
    """The longest pause of any stream, in median steps; NaN when there were none."""
    gaps = [gap for stream in streams for gap in stream.gaps]
    return max(gaps) / statistics.median(gaps) if gaps else math.nan


def texts(count: int, length: int) -> list[str]:
    """Prompts that differ from each other at every place."""
    source = random.Random("exact")
    return [f"stream {n}: " + " ".join(source.choices(_PIECES, k=length)) for n in range(count)]


class Reader(asyncio.Protocol):
    """One request on one connection; keeps the whole body and the times of its reads."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._seen = 0.0
        self.body = bytearray()
        self.gaps: list[float] = []
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send at once."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note the pause since the last read that had events."""
        before = len(self.body)
        self._parser.feed_data(data)
        if len(self.body) > before:
            now = time.perf_counter()
            if self._seen:
                self.gaps.append(now - self._seen)
            self._seen = now

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self.body += body

    def on_message_complete(self) -> None:
        """Called by the parser: the answer is whole."""
        if not self.done.done():
            self.done.set_result(self._parser.get_status_code())

    def connection_lost(self, exc: Exception | None) -> None:
        """An answer that was cut off has status 0."""
        if not self.done.done():
            self.done.set_result(0)


def _request(host: str, model: str, prompt: str) -> bytes:
    # A byte-level tokenizer needs a token a byte.
    body = json.dumps({"model": model, "prompt": prompt, "stream": True, "max_tokens": len(prompt.encode()) + 8})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}".encode()


async def one(url: str, model: str, prompt: str) -> Stream:
    """One stream from beginning to end."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    loop = asyncio.get_running_loop()
    request = _request(host, model, prompt)
    transport, reader = await loop.create_connection(lambda: Reader(request), host, port)
    try:
        async with asyncio.timeout(STREAM_SECONDS):
            status = await reader.done
    finally:
        transport.close()
    body = bytes(reader.body)
    whole = status == 200 and b"data: [DONE]" in body
    text = "".join(event_texts(body)) if whole else f"status {status}: {body[-300:].decode(errors='replace')}"
    # The last read brings the end of the stream, not a step.
    return Stream(prompt, text, reader.gaps[:-1])


async def run(url: str, model: str, count: int, length: int) -> list[Stream]:
    """All streams at once."""
    return list(await asyncio.gather(*(one(url, model, prompt) for prompt in texts(count, length))))


def figures(streams: Sequence[Stream], seconds: float) -> dict[str, Any]:
    """What is printed."""
    gaps = [gap for stream in streams for gap in stream.gaps]
    wrong = [stream for stream in streams if not stream.exact]
    return {
        "streams": len(streams),
        "exact": len(streams) - len(wrong),
        "seconds": round(seconds, 2),
        "median_step_ms": round(statistics.median(gaps) * 1e3, 3) if gaps else None,
        "longest_gap_ms": round(max(gaps) * 1e3, 3) if gaps else None,
        "longest_over_median": round(longest_over_median(streams), 2) if gaps else None,
        "bar": BAR,
        "first_wrong": {"expected": wrong[0].expected, "got": wrong[0].text[:500]} if wrong else None,
    }


def _drive(url: str, model: str, count: int, length: int) -> int:
    start = time.perf_counter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        streams = runner.run(run(url, model, count, length))
    found = figures(streams, time.perf_counter() - start)
    print(json.dumps(found, indent=1, ensure_ascii=False))
    share = found["longest_over_median"]
    return int(found["exact"] != count or share is None or share > BAR)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 0 if every stream was exact and none paused longer than the bar."""
    parser = argparse.ArgumentParser(prog="bench/run.py exact")
    parser.add_argument("url", nargs="?", help="a server with an echo engine (starts ours)")
    parser.add_argument("--model", default="bench")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--length", type=int, default=60, help="pieces of text in a prompt (60, some 120 tokens)")
    parser.add_argument("--delay-ms", type=int, default=25, help="time of a step of the echo workers it starts (25)")
    options = parser.parse_args(argv)
    try:
        if options.url:
            return _drive(options.url, options.model, options.streams, options.length)
        with tempfile.TemporaryDirectory(prefix="dynamo-exact-") as folder, Servers(Path(folder)) as servers:
            side = start_echo(servers, model_folder(), options.delay_ms)
            return _drive(side.url, options.model, options.streams, options.length)
    except (BenchError, OSError, TimeoutError) as error:
        print(f"exact: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
