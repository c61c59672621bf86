"""Target `http`: bytes that are almost, or not at all, HTTP/1.1, in all cuts and at all speeds."""

from __future__ import annotations

import json
from random import Random
from typing import Final

from tests.fuzz.firing import Shot
from tests.fuzz.judging import FORGED
from tests.fuzz.site import MODEL

NAME: Final = "http"
MODELS: Final = (MODEL,)
BODY: Final = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 2}).encode()
_END: Final = b"\r\n"
_METHODS: Final = (
    b"POST",
    b"GET",
    b"PUT",
    b"OPTIONS",
    b"CONNECT",
    b"TRACE",
    b"PRI",
    b"post",
    b"\x00",
    b"M" * 5000,
    b"",
)
_TARGETS: Final = (
    b"/v1/completions",
    b"/v1/chat/completions",
    b"/live",
    b"/v1/models",
    b"/v1/models/" + b"a" * 9000,
    b"/metrics",
    b"/tokenize",
    b"/openapi.json",
    b"http://x/v1/completions",
    b"*",
    b"/%00%ff%0a",
    b"/v1/models/..%2f..%2fetc",
    b"//",
    b"/v1/models/x%0a" + FORGED.replace(" ", "%20").encode(),
    b"/" + b"a/" * 5000,
    b"/?" + b"a=b&" * 5000,
    b"/\xff\xfe",
    b"",
    b"x",
    b"/v1/completions#a",
    b"/health",
    b"/busy_threshold",
    b"http://[::1",
    b"http://a:b@c:99999/",
)
_VERSIONS: Final = (
    b" HTTP/1.1",
    b" HTTP/1.0",
    b" HTTP/2.0",
    b" HTTP/1.1 ",
    b"",
    b" HTTP/1.",
    b" HTTP/9.9",
    b" http/1.1",
)
_HEADERS: Final = (
    b"host: x",
    b"host: y",
    b"connection: keep-alive",
    b"connection: upgrade",
    b"upgrade: h2c",
    b"upgrade: websocket",
    b"http2-settings: AAMAAABkAAQAAP__",
    b"transfer-encoding: chunked",
    b"transfer-encoding: identity",
    b"transfer-encoding: gzip, chunked",
    b"transfer-encoding : chunked",
    b"Transfer-Encoding:\tchunked",
    b"content-length: 0",
    b"content-length: -1",
    b"content-length: +5",
    b"content-length: 5, 5",
    b"content-length: 99999999999",
    b"content-length: 1e3",
    b"content-length:",
    b"expect: 100-continue",
    b"expect: x",
    b"content-encoding: gzip",
    b"content-type: application/json",
    b"content-type: text/plain",
    b"content-type: " + b"a" * 9000,
    b" folded: yes",
    b"a\x00b: c",
    b"x: a\x00b",
    b"x: \xff\xfe",
    b": empty",
    b"nocolon",
    b"x: " + b"y" * 30_000,
    b"x-request-id: " + b"r" * 500,
    b"x-request-id: a\x1b[31mb",
    b"x-request-timeout-ms: 1",
    b"x-request-timeout-ms: 000000000001" + b"9" * 400,
    b"x-request-timeout-ms: 99999999999999999999",
    b"x-request-timeout-ms: -1",
    b"x-request-timeout-ms: \xd9\xa1",
    b"traceparent: 00-" + b"f" * 32 + b"-" + b"f" * 16 + b"-01",
    b"traceparent: zz",
    b"tracestate: " + b"a=b," * 2000,
    b"x-tenant-id: " + b"t" * 4000,
    b"x-forwarded-for: 127.0.0.1",
    b"range: bytes=0-0",
    b"cookie: " + b"a=b; " * 1000,
    b"accept-encoding: gzip",
    b"te: trailers",
    b"trailer: host",
    b"keep-alive: timeout=99999",
    b"origin: null",
    b"authorization: Bearer " + b"k" * 3000,
    b"x-session-id: " + b"s" * 3000,
    b"x-dynamo-priority: 1e9",
)
_CHUNKED: Final = b"transfer-encoding: chunked"


def good(body: bytes = BODY, *headers: bytes) -> bytes:
    """A request as it should be."""
    lines = [b"POST /v1/completions HTTP/1.1", b"host: x", b"content-type: application/json", *headers]
    return _END.join([*lines, b"content-length: %d" % len(body), b"", b""]) + body


def case(random: Random) -> tuple[str, list[Shot]]:
    """One connection's bytes, or several connections of a kind."""
    kinds = {
        "mutated": _mutated,
        "written": _written,
        "chunks": _chunks,
        "pipelined": _pipelined,
        "flood": _flood,
        "slow": _slow,
        "half-closed": _half_closed,
        "noise": _noise,
        "left": _left,
    }
    name = random.choice([*kinds])
    shots = kinds[name](random)
    return f"{name}: {bytes(shots[0].pieces[0][:60])!r}", shots


def _shot(pieces: list[bytes], **more: float | bool) -> Shot:
    return Shot("raw", pieces, patience=3.0, silence_is_fine=True, **more)  # type: ignore[arg-type]


def cut(random: Random, data: bytes) -> list[bytes]:
    """In up to eight pieces."""
    ends = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((0, 1, 2, 7))))
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


def mutated(random: Random, data: bytes, times: int) -> bytes:
    """Some bytes are other ones, left out, doubled, or moved."""
    garbled = bytearray(data)
    for _ in range(times):
        at, upto = sorted((random.randrange(len(garbled) + 1), random.randrange(len(garbled) + 1)))
        upto = min(upto, at + random.choice((1, 4, 60)))
        what = random.choice(
            (b"", bytes([random.randrange(256)]), bytes(garbled[at:upto]) * 2, b"\r\n", b"\n", b"\0", b" ", b":")
        )
        garbled[at:upto] = what
    return bytes(garbled)


def _mutated(random: Random) -> list[Shot]:
    return [_shot(cut(random, mutated(random, good(), random.choice((1, 2, 5, 20)))))]


def _head(random: Random) -> bytes:
    line = random.choice(_METHODS[:3]) + b" " + random.choice(_TARGETS) + random.choice(_VERSIONS[:2])
    if random.random() < 0.3:
        line = random.choice(_METHODS) + b" " + random.choice(_TARGETS) + random.choice(_VERSIONS)
    headers = [b"host: x", *random.sample(_HEADERS, random.choice((0, 1, 2, 5)))]
    if random.random() < 0.2:
        headers.remove(b"host: x")
    end = random.choice((_END, _END, _END, b"\n", b"\r", b"\r\r\n"))
    return end.join([line, *headers, b"", b""])


def _written(random: Random) -> list[Shot]:
    return [_shot(cut(random, _head(random) + random.choice((b"", BODY, BODY * 3))))]


def _chunks(random: Random) -> list[Shot]:
    head = good(b"", _CHUNKED).replace(b"content-length: 0\r\n", b"")
    size = random.choice(
        (
            b"%x" % len(BODY),
            b"0x5",
            b"-1",
            b"+5",
            b"5 ",
            b"f" * 17,
            b"0" * 5000 + b"5",
            b"5;" + b"e" * 9000,
            b"5\n",
            b"",
            b"g",
            b"FFFFFFFF",
            b'5;a="\r\n"',
        )
    )
    kinds = (
        size + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
        b"1\r\n \r\n" * random.choice((10, 10_000, 200_000)) + b"0\r\n\r\n",
        b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n" + b"trailer: x\r\n" * random.choice((1, 1000, 50_000)) + b"\r\n",
        b"%x\r\n" % len(BODY) + BODY + b"\r\n",
        b"%x\r\n" % len(BODY) + BODY + b"0\r\n\r\n",
        b"400000\r\n" + b" " * 0x400000 + b"\r\n0\r\n\r\n",
    )
    return [_shot(cut(random, head + random.choice(kinds)))]


def _pipelined(random: Random) -> list[Shot]:
    several = [
        random.choice((good(), b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n", _head(random), good(b"{" * 9)))
        for _ in range(random.choice((2, 10, 200)))
    ]
    return [_shot(cut(random, b"".join(several)))]


def _flood(random: Random) -> list[Shot]:
    count = random.choice((100, 1_000, 20_000))
    line = random.choice((b"a: b\r\n", b"x%d: y\r\n", b": \r\n", b"a:" + b"z" * 500 + b"\r\n"))
    lines = b"".join(line % number if b"%d" in line else line for number in range(count))
    return [_shot(cut(random, b"GET /live HTTP/1.1\r\nhost: x\r\n" + lines + random.choice((b"\r\n", b""))))]


def _slow(random: Random) -> list[Shot]:
    """A hundred connections, a byte now and then, for a second or two."""
    text = random.choice((good(), b"GET /live HTTP/1.1\r\nhost: x\r\n", good().split(_END)[0]))
    pieces = [text[:1], *(text[at : at + 1] for at in range(1, random.choice((5, 20))))]
    return [Shot("slow", pieces, pause=0.1, patience=2.5, silence_is_fine=True)] * random.choice((1, 20, 100))


def _half_closed(random: Random) -> list[Shot]:
    data = random.choice((good(), good()[:-5], b"POST /v1/completions HTTP/1.1\r\n", b"", b"\r\n" * 3))
    return [_shot(cut(random, data), half_close=True)]


def _noise(random: Random) -> list[Shot]:
    length = random.choice((1, 100, 70_000))
    tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    h2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    return [_shot([random.choice((random.randbytes(length), tls + random.randbytes(500), h2, b"\n" * length))])]


def _left(random: Random) -> list[Shot]:
    """Clients that go away in the middle."""
    stream = json.dumps({"model": MODEL, "prompt": "a", "stream": True, "max_tokens": 50}).encode()
    data = random.choice((good(), good(stream)))
    return [_shot([data[: random.randrange(1, len(data) + 1)]], read=False)] * random.choice((1, 30))
