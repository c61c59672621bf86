"""The listener against rude and ordinary clients, over raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
import socket
import time
from typing import Any

import httpx
import pytest

from dynamo.frontend.http.connection import Connection

BODY = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 5}).encode()
STREAM = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 500, "stream": True}).encode()


def request(body: bytes = BODY, path: str = "/v1/completions", *extra: str, length: int | None = None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *extra]
    lines.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_answer(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One answer with a content-length."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        assert piece, f"closed after {data!r}"
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += sock.recv(65536)
    return int(status.split()[1]), headers, body


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


@pytest.mark.parametrize("lines", [(), ("connection: close",), ("x-request-id: mine", "origin: http://o")])
def test_a_head_written_at_once_is_the_one_that_send_writes(
    make_site: Any, engines: Any, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...]
) -> None:
    """Streams begin without uvicorn's `send`; byte for byte a client sees the same."""
    site = make_site(cors_origin=["http://o"])
    site.worker(engines())
    body = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 2, "stream": True}).encode()
    heads = []
    for _ in range(2):
        with site.socket() as sock:
            sock.sendall(request(body, "/v1/completions", *lines))
            data = b""
            while not data.endswith(b"\r\n0\r\n\r\n"):
                data += sock.recv(65536)
        head, _, rest = data.partition(b"\r\n\r\n")
        assert int(rest.partition(b"\r\n")[0], 16)
        heads.append(re.sub(rb"(?m)^(date|x-request-id): [^\r]{29,}", rb"\1: ", head))
        monkeypatch.setattr(Connection, "opener", lambda self, send: lambda *message: False)
    assert heads[0] == heads[1]
    assert b"transfer-encoding: chunked" in heads[0]


def test_half_sent_headers_time_out(make_site: Any, engines: Any) -> None:
    """A client that stops inside its headers is answered 408 and closed; others are served meanwhile."""
    site = make_site(header_timeout_secs=0.3)
    site.worker(engines())
    with site.socket() as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
        assert site.post("/v1/completions", json.loads(BODY)).status_code == 200
        status, headers, body = read_answer(slow)
        assert (status, headers["connection"]) == (408, "close")
        assert json.loads(body)["error"]["code"] == "request_timeout"
        assert slow.recv(1) == b""


def test_trickled_headers_time_out(make_site: Any) -> None:
    """A byte now and then does not keep a connection open."""
    site = make_site(header_timeout_secs=0.4)
    began = time.monotonic()
    with site.socket() as slow:
        slow.settimeout(0.05)
        answer = b""
        for byte in b"GET /health HTTP/1.1\r\nx-long: " + b"a" * 1000:
            slow.send(bytes([byte]))
            try:
                answer = slow.recv(100)
                break
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began < 5


def test_half_sent_body_times_out(make_site: Any) -> None:
    """A client that stops inside its body is answered 408."""
    site = make_site(body_timeout_secs=0.3)
    with site.socket() as slow:
        slow.sendall(request(length=len(BODY) + 10))
        assert read_answer(slow)[0] == 408


def test_announced_oversize_is_refused_unread(make_site: Any) -> None:
    """A content-length over the limit is 413 before any of the body arrives."""
    site = make_site(body_limit_mb=1)
    with site.socket() as sock:
        sock.sendall(request(b"", length=50_000_000))
        status, headers, body = read_answer(sock)
        assert (status, headers["connection"]) == (413, "close")
        assert "1 MB" in json.loads(body)["error"]["message"]


def test_client_that_sends_on_still_reads_the_413(make_site: Any) -> None:
    """The refusal is not lost to a reset while the client is still sending."""
    site = make_site(body_limit_mb=1)
    answer = httpx.post(
        site.url + "/v1/completions", content=b"x" * 20_000_000, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413


def test_chunked_oversize_is_refused_while_reading(make_site: Any) -> None:
    """Without an announcement the limit is enforced on what arrives."""
    site = make_site(body_limit_mb=1)
    with site.socket() as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        for _ in range(20):
            sock.sendall(chunk)
        assert read_answer(sock)[0] == 413


CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize(
    ("head", "piece", "status"),
    [
        (b"GET /live HTTP/1.1\r\nx-long: ", b"a" * 4096, 431),
        (b"GET /", b"a" * 4096, 414),
        (b"GET /live?", b"a" * 100_000, 414),
        (b"GET /live HTTP/1.1\r\n", b"a: b\r\n" * 500, 431),
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"a: b\r\n" * 500, 413),
        (CHUNKED + b"1\r\n{\r\n0\r\nx-long: ", b"a" * 4096, 413),
        (CHUNKED, b"1;%s\r\nx\r\n" % (b"e" * 4096), 413),
    ],
    ids=["a header", "a path", "a query", "many headers", "trailers", "a trailer", "frames of chunks"],
)
def test_what_never_ends_is_refused(make_site: Any, head: bytes, piece: bytes, status: int) -> None:
    """Headers, trailers and the frames of chunks are bounded as bodies are; the client reads why."""
    site = make_site(body_limit_mb=1)
    with site.socket() as sock:
        sock.sendall(head)
        sock.setblocking(False)
        sent, answer = 0, b""
        while not answer and sent < 1 << 26:
            with contextlib.suppress(BlockingIOError):
                sent += sock.send(piece)
            with contextlib.suppress(BlockingIOError):
                answer = sock.recv(65536)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert httpx.get(f"{site.url}/live").status_code == 200


def test_trailers_are_no_headers(served: Any) -> None:
    """A trailer says nothing in the name of whoever is in front of us and has let no such header pass."""
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    with served.socket() as sock:
        sock.sendall(CHUNKED + chunk + b"x-request-id: theirs\r\n\r\n")
        status, headers, _ = read_answer(sock)
    assert status == 200
    assert headers["x-request-id"] != "theirs"


def test_empty_lines_between_requests_hold_no_connection(make_site: Any) -> None:
    """They may come before a request, which must then come in time."""
    site = make_site(header_timeout_secs=0.4)
    with site.socket() as sock:
        sock.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_answer(sock)[0] == 200
        sock.settimeout(0.05)
        answer = b""
        for _ in range(400):
            sock.send(b"\r\n")
            with contextlib.suppress(TimeoutError):
                answer = sock.recv(100)
                break
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_garbage_is_400(site: Any) -> None:
    """What is no HTTP is 400 in OpenAI's form."""
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n", b"NOPE\r\n\r\n"):
        with site.socket() as sock:
            sock.sendall(garbage)
            status, _, body = read_answer(sock)
            assert (status, json.loads(body)["error"]["code"]) == (400, "bad_http")


def test_keep_alive_and_pipelining(served: Any) -> None:
    """One connection serves request after request, also when they come at once."""
    with served.socket() as sock:
        for _ in range(3):
            sock.sendall(request())
            assert json.loads(read_answer(sock)[2])["choices"][0]["text"] == "hello"
        sock.sendall(request() + request(STREAM, "/v1/completions", "connection: close"))
        data = read_to_end(sock)
    assert data.count(b"HTTP/1.1 200 OK") == 2
    assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_headers_and_first_token_leave_together(site: Any, engines: Any) -> None:
    """The first segment of a stream has the headers and the first token."""

    class Stuck(engines):  # type: ignore[misc]
        """The second token never comes, so that no reader is too late to see the first by itself."""

        async def speak(self, incoming: Any, payload: dict[str, Any]) -> None:
            incoming.send(self.say(payload, payload["token_ids"][0], None))
            await asyncio.Event().wait()

    site.worker(Stuck())
    with site.socket() as sock:
        sock.sendall(request(STREAM))
        first = sock.recv(65536)
    head, _, body = first.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"content-type: text/event-stream" in head
    assert body.count(b"data: ") == 1


def test_client_that_disappears_frees_the_engine(served: Any, echo: Any, within: Any) -> None:
    """Closing the connection cancels the request at the engine, streaming or not."""
    echo.delay = 0.01
    for number, body in enumerate((STREAM, STREAM.replace(b'"stream": true', b'"stream": false')), start=1):
        with served.socket() as sock:
            sock.sendall(request(body))
            within("the engine has it", lambda: echo.running == 1)
        within("the engine is free", lambda: echo.running == 0, 2)
        assert echo.cancelled == number
    within("it is counted", lambda: served.metric("model_cancellation_total", model="m") == 2)
    assert served.metric("disconnected_clients") == 2
    assert served.metric("inflight_requests", model="m") == 0


def test_half_closed_client_is_answered(served: Any, echo: Any, within: Any) -> None:
    """A client that closes its sending side may still read: it gets its stream. One that closes it all is gone."""
    with served.socket() as sock:
        sock.sendall(request(STREAM), socket.MSG_MORE)  # with its end in one segment: before the answer begins
        sock.shutdown(socket.SHUT_WR)
        assert b"data: [DONE]" in read_to_end(sock)
    echo.delay = 0.01
    with served.socket() as sock:
        sock.sendall(request(STREAM))
        within("the engine has it", lambda: echo.running == 1)
        sock.shutdown(socket.SHUT_WR)
    within("the engine is free", lambda: echo.running == 0, 2)


def test_half_closed_inside_the_body(served: Any) -> None:
    """A client that closes inside its body gets nothing and harms nothing."""
    with served.socket() as sock:
        sock.sendall(request(length=len(BODY) + 10))
        sock.shutdown(socket.SHUT_WR)
        assert read_to_end(sock) == b""
    assert served.post("/v1/completions", json.loads(BODY)).status_code == 200


def test_slow_client_delays_only_itself(site: Any, echo: Any) -> None:
    """A client that reads nothing for a while gets all of its text later; others are not held up."""
    site.worker(echo, context_length=100_000)
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 10_000, "stream": True}).encode()
    with site.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.sendall(request(body, "/v1/completions", "connection: close"))
        for _ in range(5):
            assert site.post("/v1/completions", json.loads(BODY)).json()["choices"][0]["text"] == "hello"
        data = read_to_end(slow)
    assert data.count(b'"text":"x"') == 10_000
    assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_client_that_never_reads_is_cut_off(make_site: Any, engines: Any, within: Any) -> None:
    """A client that reads nothing past the limit is cut, and its request cancelled."""
    site, engine = make_site(write_timeout_secs=0.3), engines()
    site.worker(engine, context_length=1_000_000)
    body = json.dumps({"model": "m", "prompt": "y" * 20, "max_tokens": 900_000, "stream": True}).encode()
    with site.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(request(body))
        within("the engine has it", lambda: engine.running == 1)
        within("the engine is free", lambda: engine.running == 0, 20)
    assert engine.cancelled == 1


def test_nodelay_is_on(served: Any) -> None:
    """Small writes leave at once."""
    with served.socket() as sock:
        sock.sendall(request())
        read_answer(sock)
        flags = served.run(_nodelay(served))
    assert flags
    assert all(flags)


def test_the_kernel_notices_who_vanished(make_site: Any, engines: Any) -> None:
    """Probes begin after half of the time that a client may be silent; with unacknowledged bytes it gets all of it."""
    site = make_site(write_timeout_secs=30)
    with site.socket() as sock:
        sock.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 200 ")
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *((socket.IPPROTO_TCP, name) for name in names)]
        found = [site.run(_options(level, option)) for level, option in options]
    assert found == [[1], [15], [5], [3], [30_000]]


async def _nodelay(site: Any) -> list[int]:
    return await _options(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def _options(level: int, option: int) -> list[int]:
    """Of each open connection."""
    found = [c for c in gc.get_objects() if isinstance(c, Connection) and not c.transport.is_closing()]
    socks = [c.transport.get_extra_info("socket") for c in found]
    return [s.getsockopt(level, option) for s in socks if s.family == socket.AF_INET]
