"""`python -m tests.fuzz.probe SITES`, with JSON: asks both sites all the time, and says what it saw.

A process of its own, so that nothing that an attack costs its sender is taken for the site's. A line `take` on stdin
is answered by one line of JSON with what was seen since the last one. Times are the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

WORTH: Final = 0.015
"""Shorter waits are not kept."""
PATIENCE: Final = 120.0
_MOST: Final = 20_000
_ERROR: Final = b'{"error"'
_NEW: Final = 100
"""Questions per connection."""


class Notes:
    """What the clients of one site saw since it was last told."""

    def __init__(self) -> None:
        self.live: list[tuple[float, float]] = []
        self.gaps: list[tuple[float, float]] = []
        self.failures: list[str] = []
        self.asked = self.chunks = 0
        self.open: dict[str, float] = {}
        """Since when each client waits now."""

    def waited(self, kind: str, began: float) -> None:
        """Keep a wait that has ended."""
        took = time.monotonic() - began
        waits = self.live if kind == "live" else self.gaps
        if took >= WORTH and len(waits) < _MOST:
            waits.append((began, took))

    def failed(self, text: str) -> None:
        if len(self.failures) < 20:
            self.failures.append(text[:500])

    def told(self) -> dict[str, Any]:
        """Return everything, with the waits that go on, and begin anew."""
        now = time.monotonic()
        going = [(client, began, now - began) for client, began in self.open.items() if now - began >= WORTH]
        said = {
            "live": self.live + [(began, took) for client, began, took in going if client == "live"],
            "gaps": self.gaps + [(began, took) for client, began, took in going if client != "live"],
            "failures": self.failures,
            "asked": self.asked,
            "chunks": self.chunks,
        }
        self.live, self.gaps, self.failures, self.asked, self.chunks = [], [], [], 0, 0
        return said


async def ask_live(port: int, every: float, notes: Notes) -> None:
    """Ask `/live` again and again, as an idle client does, by a new connection now and then."""
    question = b"GET /live HTTP/1.1\r\nhost: probe\r\n\r\n"
    while True:
        try:
            reader, writer = await _connected(port)
            try:
                for _ in range(_NEW):
                    notes.open["live"] = began = time.monotonic()
                    writer.write(question)
                    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
                    await reader.readexactly(_length(head))
                    notes.waited("live", began)
                    notes.asked += 1
                    if b" 200 " not in head[:16]:
                        notes.failed(f"/live answered {head[:40]!r}")
                        break
                    await asyncio.sleep(every)
            finally:
                notes.open.pop("live", None)
                writer.close()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            notes.failed(f"/live: {type(error).__name__} {error}")
            await asyncio.sleep(0.05)


async def read_streams(client: str, port: int, body: dict[str, Any], notes: Notes) -> None:
    """Read one stream after the other, and keep the pauses in them."""
    content = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: probe\r\ncontent-type: application/json\r\nconnection: close\r\n"
    question = head + b"x-request-id: probe\r\ncontent-length: %d\r\n\r\n" % len(content) + content
    while True:
        try:
            reader, writer = await _connected(port)
            try:
                writer.write(question)
                await _read_stream(client, reader, notes)
            finally:
                notes.open.pop(client, None)
                writer.close()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            notes.failed(f"a stream: {type(error).__name__} {error}")
            await asyncio.sleep(0.2)


async def _read_stream(client: str, reader: asyncio.StreamReader, notes: Notes) -> None:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    if b" 200 " not in head[:16]:
        notes.failed(f"a stream was answered {head[:16]!r} {(await reader.read(300))!r}")
        await asyncio.sleep(0.2)
        return
    tail, began = b"", 0.0
    while piece := await asyncio.wait_for(reader.read(1 << 16), PATIENCE):
        if began:
            notes.waited("gaps", began)
        notes.chunks += 1
        notes.open[client] = began = time.monotonic()
        tail = (tail + piece)[-4096:]
        if (at := tail.find(_ERROR)) >= 0:
            notes.failed(f"a stream ended with {tail[at:][:300]!r}")
            return
    if b"[DONE]" not in tail:
        notes.failed(f"a stream just stopped behind {tail[-80:]!r}")


async def _connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), PATIENCE)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


async def probe(sites: dict[str, dict[str, Any]]) -> None:
    """Ask until stdin ends."""
    notes = {name: Notes() for name in sites}
    tasks = [asyncio.create_task(ask_live(site["port"], site["every"], notes[name])) for name, site in sites.items()]
    for name, site in sites.items():
        tasks += [
            asyncio.create_task(read_streams(f"stream-{number}", site["port"], site["body"], notes[name]))
            for number in range(site["streams"])
        ]
    lines = asyncio.StreamReader()
    protocol: Callable[[], asyncio.BaseProtocol] = lambda: asyncio.StreamReaderProtocol(lines)  # noqa: E731
    await asyncio.get_running_loop().connect_read_pipe(protocol, sys.stdin)
    while await lines.readline():
        sys.stdout.write(json.dumps({name: note.told() for name, note in notes.items()}) + "\n")
        sys.stdout.flush()
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(probe(json.loads(sys.argv[1])))
