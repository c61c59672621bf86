"""Slow bodies have a total time, and no connection ends in a reset while an answer is due."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from typing import Any

import httpx
import pytest

BODY = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 3}).encode()
LIVE = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"


def head(length: int | None, *more: bytes) -> bytes:
    how = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
    lines = [b"POST /v1/completions HTTP/1.1", b"host: x", b"content-type: application/json", how, *more]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def whole_answer(sock: socket.socket) -> bytes:
    """One whole answer with its length: head and body may come one after the other."""
    data = b""
    while b"\r\n\r\n" not in data and (more := sock.recv(65536)):
        data += more
    length = re.search(rb"content-length: (\d+)", data)
    end = data.find(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
    while len(data) < end and (more := sock.recv(65536)):
        data += more
    return data


def trickle(sock: socket.socket, piece: bytes, every: float) -> bytes:
    """Send `piece` again and again until there is an answer."""
    sock.settimeout(every)
    while True:
        sock.sendall(piece)
        with contextlib.suppress(TimeoutError):
            return sock.recv(65536)


def test_a_body_of_tiny_chunks_is_refused(make_site: Any, engines: Any) -> None:
    """Each chunk is a call of the parser, so a body may not be made of them; a small one may come byte by byte."""
    site = make_site()
    site.worker(engines())
    with site.socket() as sock:
        sock.sendall(head(None, b"connection: close") + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 200 ")
    with site.socket() as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(head(None) + b"1\r\n \r\n" * 20_000)
        answer = sock.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413 "), answer
        assert b"chunks of a few bytes" in answer


@pytest.mark.parametrize(("length", "piece"), [(10_000, b" "), (None, b"1\r\n \r\n")], ids=["length", "chunked"])
def test_trickled_bytes_do_not_renew_a_body_s_time(make_site: Any, length: int | None, piece: bytes) -> None:
    """A byte now and then keeps no connection: 408 once the time for all of the body has passed."""
    site = make_site(body_timeout_secs=0.5)
    began = time.monotonic()
    with site.socket() as slow:
        slow.sendall(head(length))
        answer = trickle(slow, piece, 0.05)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert 0.4 < time.monotonic() - began < 10
    assert site.metric("timeouts_total", type="body") == 1


def test_a_steady_body_earns_its_time(make_site: Any, engines: Any) -> None:
    """One that takes far longer than --body-timeout-secs is answered where it comes at --body-min-rate-kb or faster."""
    site = make_site(body_timeout_secs=0.2, body_min_rate_kb=0.1)
    site.worker(engines())
    with site.socket() as steady:
        steady.sendall(head(3000 + len(BODY)))
        for _ in range(30):
            steady.sendall(b" " * 100)
            time.sleep(0.03)
        steady.sendall(BODY)
        assert steady.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_waits_for_its_turn_is_not_late(make_site: Any, engines: Any, within: Any) -> None:
    """Behind a request that is answered nobody reads it: that time is not the client's."""
    site = make_site(body_timeout_secs=0.3, body_min_rate_kb=1e6)
    engine = engines()
    site.worker(engine)
    engine.hold = asyncio.Event()
    large = b" " * 2_000_000 + BODY
    with site.socket() as sock:
        sock.sendall(head(len(BODY)) + BODY)
        within("it runs", lambda: len(engine.seen) == 1)
        sending = threading.Thread(target=sock.sendall, args=(head(len(large)) + large + LIVE,))
        sending.start()
        time.sleep(1.5)
        site.call(engine.hold.set)
        data = b""
        while data.count(b"HTTP/1.1 200 ") < 3:
            piece = sock.recv(65536)
            assert piece, data
            data += piece
        sending.join(10)


def test_who_sends_on_reads_why_it_was_refused(make_site: Any) -> None:
    """A 400 or a 408 isn't lost to a reset though the client goes on sending."""
    site = make_site(body_timeout_secs=0.3)
    for begin, status in ((head(None) + b"zz\r\n", 400), (head(2_000_000), 408)):
        with site.socket() as sock:
            sock.sendall(begin)
            if status == 408:
                time.sleep(0.6)
            for _ in range(20):
                sock.sendall(b"x" * 50_000)
            assert sock.recv(65536).startswith(b"HTTP/1.1 %d " % status)


def test_requests_behind_the_last_answer_reset_nothing(served: Any) -> None:
    """What is sent behind a request with `Connection: close`, even a lot, doesn't take its answer away."""
    for _ in range(20):
        with served.socket() as sock:
            sock.sendall(head(len(BODY), b"connection: close") + BODY)
            for _ in range(10):
                sock.sendall(LIVE * 1000)
            data = b""
            while piece := sock.recv(65536):
                data += piece
        assert data.startswith(b"HTTP/1.1 200 ")
        assert data.count(b"HTTP/1.1") == 1


def test_a_request_that_came_in_time_is_answered_by_a_busy_loop(make_site: Any) -> None:
    """The loop stood still while the keep-alive time passed: what the kernel has by then is answered, not reset."""
    site = make_site(keep_alive_timeout_secs=0.5)
    for _ in range(5):
        with site.socket() as sock:
            sock.sendall(LIVE)
            assert whole_answer(sock).startswith(b"HTTP/1.1 200 ")
            standing = threading.Event()

            def stand(standing: threading.Event = standing) -> None:
                standing.set()
                time.sleep(1.0)

            site.call(stand)
            assert standing.wait(10)
            sock.sendall(LIVE)
            assert whole_answer(sock).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("begun", [b"", LIVE[:12], head(len(BODY)) + BODY[:9]], ids=["nothing", "headers", "body"])
def test_a_request_is_not_late_for_a_busy_loop(make_site: Any, engines: Any, begun: bytes) -> None:
    """The loop stood still for longer than a request may take: one that had come by then is answered."""
    site = make_site(header_timeout_secs=0.3, body_timeout_secs=0.3)
    site.worker(engines())
    whole = LIVE if LIVE.startswith(begun) else head(len(BODY)) + BODY
    for _ in range(3):
        with site.socket() as sock:
            sock.sendall(begun)
            assert httpx.get(f"{site.url}/live").status_code == 200  # what was sent before is read by then
            standing = threading.Event()

            def stand(standing: threading.Event = standing) -> None:
                standing.set()
                time.sleep(1.0)

            site.call(stand)
            assert standing.wait(10)
            sock.sendall(whole[len(begun) :])
            assert whole_answer(sock).startswith(b"HTTP/1.1 200 ")


def test_an_idle_connection_ends_in_order(make_site: Any) -> None:
    """Its time is over: the client reads an end, and a request that crosses it on the way meets no reset either."""
    site = make_site(keep_alive_timeout_secs=0.2)
    with site.socket() as sock:
        sock.sendall(LIVE)
        assert whole_answer(sock).startswith(b"HTTP/1.1 200 ")
        assert sock.recv(10) == b""
        sock.sendall(LIVE)
        assert sock.recv(10) == b""


def test_what_has_come_when_a_frontend_leaves_is_answered(make_site: Any) -> None:
    """Requests in the kernel, connections that nobody has accepted yet and half requests: each gets its answer."""
    site = make_site(graceful_shutdown_timeout_secs=10.0)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(site.socket()) for _ in range(20)]
        half = stack.enter_context(site.socket())
        for sock in (*idle, half):
            sock.sendall(LIVE)
            assert whole_answer(sock).startswith(b"HTTP/1.1 200 ")
        half.sendall(LIVE[:12])
        standing, sent = threading.Event(), threading.Event()

        def stand() -> None:
            site.leaving.signal()
            standing.set()
            sent.wait(20)

        site.call(stand)
        assert standing.wait(10)
        late = [stack.enter_context(site.socket()) for _ in range(50)]
        for sock in (*idle, *late):
            sock.sendall(LIVE)
        sent.set()
        for sock in (*idle, *late):
            answer = sock.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 "), answer
        half.sendall(LIVE[12:])
        assert half.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_who_sends_several_requests_and_leaves_frees_the_engine(served: Any, echo: Any, within: Any) -> None:
    """A client with requests behind the running one is gone for all of them."""
    echo.delay = 0.05
    stream = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 900, "stream": True}).encode()
    with served.socket() as sock:
        sock.sendall((head(len(stream)) + stream) * 3)
        within("it runs", lambda: echo.running == 1)
    within("the engine is told", lambda: echo.running == 0 and echo.cancelled >= 1)
    assert httpx.get(f"{served.url}/live").status_code == 200
