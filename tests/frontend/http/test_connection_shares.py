"""Who holds the connections of a port, and who makes room: rules alone, then floods of a real listener."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from typing import Any

import httpx
import pytest

from dynamo.frontend.http.connection_shares import Crowd, network_of

LIVE = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("", ""), ("a:b", "a:b"),
        ("2001:db8:0:1::5", "20010db800000001::/64".lstrip("0")), ("2001:db8:0:1:ffff::9", "20010db800000001::/64"),
    ],
)  # fmt: skip
def test_what_counts_as_an_address(address: str, name: str) -> None:
    """An address of IPv4 however it is written, or a network of IPv6, of which one client has all."""
    assert network_of(address) == name


def test_an_address_has_all_but_an_eighth() -> None:
    """Past its share its own connection goes that waits longest; others come in until the port is full."""
    crowd: Crowd[str] = Crowd(16)
    for n in range(14):
        assert not crowd.enter(f"a{n}", "10.0.0.1")
    crowd.works("a0")
    assert crowd.enter("a14", "10.0.0.1")
    assert next(crowd.candidates("a14")) == "a1"
    crowd.leave("a1")
    crowd.waits("a0")
    assert not crowd.enter("b", "10.0.0.2")
    assert not crowd.enter("c", "10.0.0.3")
    assert crowd.enter("d", "10.0.0.4")
    assert next(crowd.candidates("d")) == "a2"


def test_nobody_closes_the_connection_of_who_has_fewer() -> None:
    """A flood whose requests all run is refused, rather than taking the few connections of others."""
    crowd: Crowd[str] = Crowd(7)
    crowd.enter("b", "10.0.0.2")
    for n in range(6):
        crowd.enter(f"a{n}", "10.0.0.1")
        crowd.works(f"a{n}")
    assert crowd.enter("a6", "10.0.0.1")
    assert list(crowd.candidates("a6")) == []
    crowd.leave("a6")
    assert crowd.enter("c", "10.0.0.3")
    assert list(crowd.candidates("c")) == ["b"]


def test_nothing_is_kept_of_who_left() -> None:
    """Whoever comes, works, waits and leaves, in any order: counts are right, and nothing stays."""
    choose = random.Random(5)
    crowd: Crowd[int] = Crowd(40)
    there: dict[int, str] = {}
    for n in range(5000):
        act = choose.random()
        if act < 0.5:
            address = f"10.0.0.{choose.randrange(9)}"
            there[n] = address
            if crowd.enter(n, address):
                victim = next(crowd.candidates(n), n)
                crowd.leave(victim)
                del there[victim]
        elif there:
            who = choose.choice(list(there))
            if act < 0.65:
                crowd.works(who)
            elif act < 0.8:
                crowd.waits(who)
            else:
                crowd.leave(who)
                del there[who]
        assert len(crowd) == len(there) <= 40
    for who in [*there, -1]:
        crowd.leave(who)
    assert (len(crowd), crowd._groups, crowd._by_count) == (0, {}, {})


def connect(site: Any, address: str = "127.0.0.1") -> socket.socket:
    """A connection from an address of one's choice."""
    host, port = site.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10, source_address=(address, 0))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
@pytest.mark.parametrize(
    "half",
    [
        b"", b"GET /li", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n", LIVE,
    ],
    ids=["silent", "headers", "body", "chunks", "idle"],
)  # fmt: skip
def test_connections_that_wait_shut_nobody_out(make_site: Any, half: bytes, address: str) -> None:
    """However a thousand connections of one address wait, the next client is served at once, from there or not."""
    site = make_site(max_connections=20, header_timeout_secs=60.0, body_timeout_secs=60.0)
    with contextlib.ExitStack() as stack:
        for _ in range(1000 if not half else 100):
            slow = stack.enter_context(connect(site))
            with contextlib.suppress(OSError):
                slow.sendall(half)
        for _ in range(5):
            began = time.monotonic()
            with connect(site, address) as client:
                client.sendall(LIVE)
                assert client.recv(100).startswith(b"HTTP/1.1 200 ")
            assert time.monotonic() - began < 5
    assert site.metric("rejected_requests_total", model="", reason="connections") >= 80


def test_who_makes_room_in_the_middle_of_a_request_is_told(make_site: Any) -> None:
    """Its half request gets a 503 with a time to come again, not a reset."""
    site = make_site(max_connections=2, header_timeout_secs=60.0)
    with connect(site) as half, connect(site) as other:
        half.sendall(b"GET /live HTTP/1.1\r\nhost")
        other.sendall(LIVE)
        assert other.recv(100).startswith(b"HTTP/1.1 200 ")  # by now the half request has been read, too
        with connect(site), connect(site):
            answer = half.recv(65536)
    assert answer.startswith(b"HTTP/1.1 503 "), answer
    assert b"\r\nretry-after: " in answer


def test_running_answers_of_one_address_leave_an_eighth(make_site: Any, engines: Any, within: Any) -> None:
    """An address whose streams hold its share is refused; another one is served."""
    site = make_site(max_connections=16)
    engine = engines(delay=0.05)
    site.worker(engine)
    raw = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 900, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(14):
            one = stack.enter_context(connect(site))
            one.sendall(head % len(raw) + raw)
        within("all run", lambda: engine.running == 14)
        with connect(site) as same:
            assert same.recv(100).startswith(b"HTTP/1.1 503 ")
        with connect(site, "127.0.0.9") as other:
            other.sendall(LIVE)
            assert other.recv(100).startswith(b"HTTP/1.1 200 ")
        assert engine.running == 14
    within("nothing runs", lambda: engine.running == 0)
    assert httpx.get(f"{site.url}/live").status_code == 200
