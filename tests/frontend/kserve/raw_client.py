"""HTTP/2 by hand, for clients that no library would be."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM: Final = 1
END_HEADERS: Final = 4
ACK: Final = 1
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_HEADER_LIST_SIZE: Final = 6
METHODS: Final = "/inference.GRPCInferenceService/"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values: int) -> bytes:
    """The frame SETTINGS; `window` is the bytes that an answer may have before it is read."""
    window = values.get("window")
    return frame(SETTINGS, 0, 0, b"" if window is None else struct.pack(">HI", INITIAL_WINDOW_SIZE, window))


def block(method: str, *more: tuple[str, str]) -> bytes:
    """Headers of a call, none of them compressed."""
    pairs = [
        (":method", "POST"), (":scheme", "http"), (":path", METHODS + method), (":authority", "test"),
        ("content-type", "application/grpc"), ("te", "trailers"), *more,
    ]  # fmt: skip
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in pairs)


def _text(text: str) -> bytes:
    """Its length, and its bytes."""
    size = len(text)
    if size < 127:
        return bytes([size]) + text.encode()
    size -= 127
    head = bytearray([127])
    while size >= 128:
        head.append(size % 128 + 128)
        size //= 128
    return bytes([*head, size]) + text.encode()


def message(body: bytes) -> bytes:
    """A message of gRPC: not compressed, its length, its bytes."""
    return b"\x00" + len(body).to_bytes(4, "big") + body


class Raw:
    """One connection, greeted."""

    def __init__(self, address: str, *, window: int | None = None, greet: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=20)
        self._received = b""
        if greet:
            self.send(PREFACE + (settings() if window is None else settings(window=window)))

    def send(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(frames))

    def call(self, stream: int, method: str, *more: tuple[str, str], body: bytes | None = None) -> None:
        """Begin a call; with `body`, ask it."""
        self.send(frame(HEADERS, END_HEADERS, stream, block(method, *more)))
        if body is not None:
            self.send(frame(DATA, END_STREAM, stream, message(body)))

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of what comes; pings and settings are answered; ends with the connection."""
        while (head := self._take(9)) is not None:
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            payload = self._take(int.from_bytes(head[:3], "big"))
            if payload is None:
                return
            if kind == PING and not flags & ACK:
                self.send(frame(PING, ACK, 0, payload))
            if kind == SETTINGS and not flags & ACK:
                self.send(frame(SETTINGS, ACK, 0))
            yield kind, flags, stream, payload

    def closed(self) -> bool:
        """Read until the other side closes; `TimeoutError` where it doesn't in 20 s."""
        for _ in self.frames():
            pass
        return True

    def greeting(self) -> dict[int, int]:
        """The server's settings."""
        payload = next(payload for kind, flags, _, payload in self.frames() if kind == SETTINGS and not flags & ACK)
        return dict(struct.iter_unpack(">HI", payload))

    def _take(self, size: int) -> bytes | None:
        while len(self._received) < size:
            try:
                came = self.sock.recv(65536)
            except ConnectionResetError:
                return None
            if not came:
                return None
            self._received += came
        data, self._received = self._received[:size], self._received[size:]
        return data

    def close(self) -> None:
        self.sock.close()
