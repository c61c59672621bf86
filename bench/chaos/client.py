"""One request over a connection of its own, read to its very end, so that what comes after the end is seen too."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any, Final

import h11
from bench.chaos.asks import Ask
from bench.chaos.oracle import Record

BEYOND: Final = 45.0
"""Seconds after its time limit when a request is given up as one that hangs."""
_SLOW_BYTES: Final = 700
_SLOW_PAUSE: Final = 0.03
_SMALL: Final = 4096


class Client:
    """Sends to the port of one frontend. `clock`: seconds since the run began."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    async def send(self, ask: Ask, frontend: str, port: int) -> Record:
        """The record of the request; nothing is raised."""
        record = Record(ask, frontend, self._clock())
        given_up = ask.patience + BEYOND
        leaves = given_up if ask.leaves_after is None else min(ask.leaves_after, given_up)
        try:
            async with asyncio.timeout(leaves):
                await self._talk(record, port)
        except TimeoutError:
            if ask.leaves_after is None:
                return record  # without an end: it hangs
            record.left = True
        except (OSError, h11.RemoteProtocolError, ValueError) as error:
            record.broken = f"{type(error).__name__}: {error}"[:200]
        record.ended = self._clock()
        return record

    async def _talk(self, record: Record, port: int) -> None:
        ask, http = record.ask, h11.Connection(h11.CLIENT)
        reader, writer = await _connect(port, ask.slow)
        try:
            headers = [("host", "chaos"), ("connection", "close"), ("content-type", ask.media)]
            headers += [("content-length", str(len(ask.body))), ("x-request-id", f"chaos-{ask.number}")]
            if ask.limit is not None:
                headers.append(("x-request-timeout-ms", str(int(ask.limit * 1000))))
            head = http.send(h11.Request(method="POST", target=ask.path, headers=headers))
            writer.write(head + http.send(h11.Data(ask.body)) + http.send(h11.EndOfMessage()))
            await writer.drain()
            await self._read(record, http, reader)
        finally:
            writer.transport.abort()

    async def _read(self, record: Record, http: h11.Connection, reader: asyncio.StreamReader) -> None:
        body, events = b"", Events(record, self._clock)
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                if record.ask.slow:
                    await asyncio.sleep(_SLOW_PAUSE)
                http.receive_data(await reader.read(_SLOW_BYTES if record.ask.slow else 65536))
            elif isinstance(event, h11.Response):
                record.status = event.status_code
                events.stream = dict(event.headers).get(b"content-type", b"").startswith(b"text/event-stream")
            elif isinstance(event, h11.Data):
                body = events.feed(body + event.data)
            elif isinstance(event, h11.EndOfMessage):
                events.end(body)
                break
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise ValueError(f"the connection ended with {event!r}")
        if await reader.read(1):
            record.after += 1


class Events:
    """Reads a body, or the events of a stream, into a record."""

    def __init__(self, record: Record, clock: Callable[[], float]) -> None:
        self._record, self._clock = record, clock
        self._last: float | None = None
        self.stream = False

    def feed(self, data: bytes) -> bytes:
        """Take the whole events; what is left of it."""
        if not self.stream:
            return data
        *events, rest = data.split(b"\n\n")
        for event in events:
            self._event(event.removeprefix(b"data: "))
        return rest

    def end(self, rest: bytes) -> None:
        if self.stream:
            if rest:
                self._record.after += 1
            return
        self._message(json.loads(rest))
        if not self._record.errors:
            self._record.done += 1

    def _event(self, data: bytes) -> None:
        record = self._record
        if record.done or record.errors:
            record.after += 1
        if data == b"[DONE]":
            record.done += 1
        else:
            self._message(json.loads(data))

    def _message(self, message: dict[str, Any]) -> None:
        record, now = self._record, self._clock()
        if "error" in message or "choices" not in message:
            record.errors.append(message)
            return
        record.usage = message.get("usage") or record.usage
        for choice in message["choices"]:
            said = choice.get("delta") or choice.get("message") or choice
            text = said.get("content") if "content" in said else said.get("text")
            index = choice["index"]
            if text:
                record.texts[index] = record.texts.get(index, "") + text
                record.first = now if record.first is None else record.first
                if self._last is not None:
                    record.gap = max(record.gap, now - self._last)
                self._last = now
            if choice.get("finish_reason") is not None:
                record.finishes.setdefault(index, []).append(choice["finish_reason"])


async def _connect(port: int, slow: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock = socket.socket()
    try:
        sock.setblocking(False)
        if slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=sock, limit=_SMALL if slow else 1 << 20)
    except BaseException:
        sock.close()
        raise
