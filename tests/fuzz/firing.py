"""Hostile requests, sent byte by byte as they are: `fire` sends a `Shot` and tells how it was answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.fuzz.judging import MEANT, Answer

PATIENCE: Final = 90.0
_CODE: Final = re.compile(rb'"code":\s*"([A-Za-z0-9_]{1,40})"')
_STATUS: Final = re.compile(rb"^HTTP/1\.[01] (\d{3}) ")
_HEAD: Final = 8192


@dataclass(frozen=True)
class Shot:
    """Bytes for one connection, in pieces with pauses between them."""

    what: str
    pieces: Sequence[bytes]
    pause: float = 0.0
    half_close: bool = False
    """Say after the last piece that nothing comes any more."""
    read: bool = True
    """False: leave without looking at the answer."""
    patience: float = PATIENCE
    silence_is_fine: bool = False
    """No answer is one: a client that doesn't finish its request has none to get."""
    source: str = "127.0.0.1"
    """The address that it comes from."""


def post(path: str, body: Any, what: str = "", **headers: str) -> Shot:
    """A request with JSON in it; bytes are sent as they are."""
    content = body if isinstance(body, bytes) else encoded(body)
    lines = {"host": "fuzz", "content-type": "application/json", "connection": "close", **headers}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(
        f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items()
    )
    return Shot(what or path, [head.encode("utf-8", "replace") + b"content-length: %d\r\n\r\n" % len(content), content])


def encoded(body: Any) -> bytes:
    """JSON; halves of surrogate pairs become escapes, as a client of another language would send them."""
    return json.dumps(body, ensure_ascii=True).encode()


async def fire(port: int, shot: Shot) -> Answer:
    """Send it, read what comes to its end, and tell."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(shot.patience):
            data, tail = await _exchange(port, shot)
    except TimeoutError:
        return Answer(-1 if shot.silence_is_fine else 0, "", time.monotonic() - began, shot.what)
    except OSError as error:
        return Answer(-1, type(error).__name__, time.monotonic() - began, shot.what)
    return read_answer(data, tail, time.monotonic() - began, shot.what)


def read_answer(head: bytes, tail: bytes, seconds: float, what: str) -> Answer:
    """What the first answer says; of a stream, what its last event says: it may fail at its end."""
    match = _STATUS.match(head)
    if match is None:
        return Answer(-1, "", seconds, what)
    status, streamed = int(match[1]), b"text/event-stream" in head and b'data: {"error"' in tail
    found = _CODE.search(tail[tail.rfind(b'data: {"error"') :] if streamed else head)
    code = found[1].decode() if found else ""
    if status == 200 and streamed:
        status = next((known for known, meant in MEANT.items() if code in meant), 500)
    return Answer(status, code if status >= 400 else "", seconds, what)


async def _exchange(port: int, shot: Shot) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(shot.source, 0))
    try:
        sending = asyncio.create_task(_send(writer, shot))
        try:
            if not shot.read:
                await sending
                return b"", b""
            return await _read(reader)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending
    finally:
        writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, shot: Shot) -> None:
    for piece in shot.pieces:
        writer.write(piece)
        await writer.drain()
        if shot.pause:
            await asyncio.sleep(shot.pause)
    if shot.half_close:
        writer.write_eof()


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head, tail = b"", b""
    while True:
        try:
            piece = await reader.read(1 << 18)
        except ConnectionResetError:
            break
        if not piece:
            break
        head = (head + piece)[:_HEAD] if len(head) < _HEAD else head
        tail = (tail + piece)[-_HEAD:]
    return head, tail


async def fire_all(port: int, shots: Sequence[Shot], times: int = 1) -> list[Answer]:
    """Send all of them at once, each `times`."""
    return list(await asyncio.gather(*(fire(port, shot) for shot in shots for _ in range(times))))
