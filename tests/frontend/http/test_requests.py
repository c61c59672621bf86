"""Requests over raw sockets, cut wherever a network may cut them: offers to upgrade, hosts, versions, pipelines."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import eventually

from dynamo.runtime.http.protocol import BadRequestError, Target, check_host, plain_head, target_of

BODY = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 3}).encode()
OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
TWO_LINES = b"connection: keep-alive\r\nconnection: UPGRADE\r\nupgrade: TLS/1.0\r\n"
LIVE = b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def post(*, offer: bytes = OFFER, chunked: bool = False, version: bytes = b"1.1", body: bytes = BODY) -> bytes:
    head = b"POST /v1/completions HTTP/%s\r\nhost: x\r\ncontent-type: application/json\r\n" % version + offer
    if not chunked:
        return head + b"content-length: %d\r\n\r\n" % len(body) + body
    half = len(body) // 2
    parts = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]))
    return head + b"transfer-encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"


def received(sock: socket.socket, until: bytes) -> bytes:
    """What arrives up to and with these bytes, however it is cut."""
    data = b""
    while until not in data and (more := sock.recv(65536)):
        data += more
    return data


def answers(site: Any, *pieces: bytes) -> list[int]:
    """The status of every answer until the server closes."""
    data = b""
    with site.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            sock.sendall(piece)
        while more := sock.recv(65536):
            data += more
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize(
    "offer",
    [OFFER, b"Upgrade: websocket\r\nConnection: upgrade\r\n", TWO_LINES],
    ids=["h2c", "websocket", "two lines"],
)  # fmt: skip
def test_an_offer_to_upgrade_loses_no_body(served: Any, echo: Any, offer: bytes, chunked: bool) -> None:
    """It is answered in HTTP/1.1, and so is what was sent behind it on the connection."""
    assert answers(served, post(offer=offer, chunked=chunked) + LIVE) == [200, 200]
    assert len(echo.seen[-1]["token_ids"]) == len(b"hello")


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_an_offer_to_upgrade_may_be_cut_anywhere(served: Any, echo: Any, chunked: bool) -> None:
    """Two segments, cut at every byte of the request."""
    raw = post(chunked=chunked)
    for at in range(1, len(raw)):
        assert answers(served, raw[:at], raw[at:] + LIVE) == [200, 200], at
    assert len(echo.seen) == len(raw) - 1


def test_offers_in_a_row(served: Any, echo: Any) -> None:
    """Many requests of one segment, each with an offer, with a length or in chunks: each is answered, in turn."""
    raw = b"".join(post(chunked=n % 3 == 1, offer=OFFER if n % 2 else b"") for n in range(50))
    assert answers(served, raw + LIVE) == [200] * 51
    assert len(echo.seen) == 50


def test_an_offer_changes_nothing_else(served: Any) -> None:
    """Without a body, and over HTTP/1.0, and with bounds and errors as ever."""
    get = b"GET /live HTTP/1.1\r\nhost: x\r\n" + OFFER + b"\r\n"
    assert answers(served, get + LIVE) == [200, 200]
    assert answers(served, post(version=b"1.0")) == [200]
    assert answers(served, post(body=b"{") + LIVE) == [400, 200]
    both = post().replace(b"content-length", b"transfer-encoding: chunked\r\ncontent-length")
    assert answers(served, both)[:1] == [400]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /live HTTP/1.1\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", 400),
        (b"GET /live HTTP/1.0\r\nhost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET http://a/live HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nhost: a b\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nhost: u@a\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nhost: a:b\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nhost: [::1\r\n\r\n", 400),
        (b"GET /live\r\n\r\n", 400),
        (b"GET /live HTTP/0.9\r\nhost: a\r\n\r\n", 400),
        (b"GET /live HTTP/1.2\r\nhost: a\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n", 400),
        (b"CONNECT /live HTTP/1.1\r\nhost: a:443\r\n\r\n", 400),
        (b"GET ftp://a/live HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET http://u@a/live HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET http:///live HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET http://other:80/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 200),
        (b"GET HTTPS://a/live?x=1 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 200),
        (b"GET http://a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 200),
        (b"GET http://a?x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 200),
        (b"OPTIONS * HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 204),
        (b"GET /live HTTP/1.1\r\nhost:\r\nconnection: close\r\n\r\n", 200),
        (b"GET /live HTTP/1.1\r\nhost: [::1]:8000 \r\nconnection: close\r\n\r\n", 200),
        (b"GET /live HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_hosts_and_versions(site: Any, raw: bytes, status: int) -> None:
    """RFC 9112, section 3: what isn't a request of HTTP/1.1 is answered 400 and closed, once."""
    assert answers(site, raw) == [status]
    assert answers(site, raw + LIVE)[0] == status


def test_what_comes_behind_an_answer_is_refused_in_turn(served: Any, engines: Any) -> None:
    """Rubbish behind a request is answered 400 after that request's answer, never instead of it, and nothing is cut."""
    stream = post(
        offer=b"", body=json.dumps({"model": "m", "prompt": "hello", "max_tokens": 40, "stream": True}).encode()
    )
    for rubbish in (
        b"\x00\x01\r\n\r\n",
        b"GET /live HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    ):
        assert answers(served, stream + rubbish) == [200, 400], rubbish
        assert answers(served, post(offer=b"") + rubbish) == [200, 400], rubbish
        assert answers(served, post(offer=b"") * 3 + rubbish + LIVE) == [200, 200, 200, 400], rubbish


@given(st.binary(max_size=40), st.sampled_from(["1.0", "1.1"]))
def test_a_host_is_checked_whatever_it_is(value: bytes, version: str) -> None:
    """No value raises anything else, and one that is taken has nothing in it that could end a header."""
    try:
        check_host(version, [(b"host", value)])
    except BadRequestError:
        return
    assert not set(value.strip(b" \t")) & set(b'\r\n\0 /@?#"<>')


@given(st.sampled_from([b"GET", b"OPTIONS", b"CONNECT"]), st.binary(min_size=1, max_size=40))
def test_a_target_is_read_or_refused(method: bytes, url: bytes) -> None:
    """Whatever a request line asks for becomes a path, or a refusal."""
    try:
        found = target_of(method, url)
    except BadRequestError:
        return
    assert found.path.startswith(b"/")


def test_the_absolute_form_goes_before_the_host() -> None:
    """Its authority is what counts, as RFC 9112 has it."""
    assert target_of(b"GET", b"http://a:80/x?y=1") == Target(b"/x?y=1", b"a:80")
    assert target_of(b"GET", b"http://a?y") == Target(b"/?y", b"a")


def test_a_head_without_its_offer() -> None:
    """The rest of `connection` stays; a value with a line break would be another header, and is refused."""
    fields = [(b"connection", b"Upgrade, close"), (b"upgrade", b"h2c"), (b"a", b"b")]
    assert plain_head(b"GET", b"/", "1.1", fields) == b"GET / HTTP/1.1\r\nconnection:  close\r\na: b\r\n\r\n"
    with pytest.raises(BadRequestError):
        plain_head(b"GET", b"/", "1.1", [(b"a", b"b\r\nc: d")])


@pytest.mark.parametrize("before", [b"", b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["first", "later"])
def test_a_path_that_cant_be_read_is_told_so(served: Any, before: bytes) -> None:
    """Whether it is the first of its connection or not."""
    with served.socket() as sock:
        if before:
            sock.sendall(before)
            assert received(sock, b'is live"}').startswith(b"HTTP/1.1 200")
        sock.sendall(b"GET /l\xffve HTTP/1.1\r\nhost: x\r\n\r\n")
        assert received(sock, b"}}").startswith(b"HTTP/1.1 400")


def refusal(site: Any, raw: bytes) -> tuple[int, dict[str, str], Any]:
    """The one answer to these bytes, after which the connection ends: status, headers and body."""
    with site.socket() as sock:
        sock.sendall(raw)
        head, _, body = received(sock, b"never").decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), json.loads(body)


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"FOO /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n", 501, "unknown_method"),
        (b"get /live HTTP/1.1\r\nhost: x\r\n\r\n", 501, "unknown_method"),
        (b"GET /%s HTTP/1.1\r\nhost: x\r\n\r\n" % (b"a" * 100_000), 414, "url_too_long"),
        (b"GET /%s HTTP/1.1\r\nhost: x\r\n\r\n" % (b"a" * 65_535), 414, "url_too_long"),
        (b"GET /%s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % (b"a" * 65_534), 404, "unknown_url"),
        (b"GET /%s HTTP/1.1\r\nx: %s\r\n" % (b"a" * 9000, b"a" * 60_000), 431, "headers_too_large"),
        (b"PLAY /live HTTP/1.1\r\nhost: x\r\n\r\n", 400, "bad_http"),
        (b"FOO /live HTTP/3.0\r\nhost: x\r\n\r\n", 400, "bad_http"),
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00", 400, "bad_http"),
    ],
    ids=[
        "a method", "a method in small letters", "100 KB", "one byte too many", "the longest", "headers", "of RTSP",
        "a version", "TLS",
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_request_line_is_told(site: Any, raw: bytes, status: int, code: str) -> None:
    """A method that nobody knows and a URL that is too long are HTTP; each refusal has an id, as any answer."""
    answered, headers, said = refusal(site, raw)
    assert (answered, said["error"]["code"]) == (status, code)
    assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])


ANTHROPICS = b"POST /v1/messages%s HTTP/1.1\r\nx-request-id: mine\r\n%s"


@pytest.mark.parametrize(
    ("raw", "status", "kind", "rid"),
    [
        (ANTHROPICS % (b"", b"host: x\r\ncontent-length: 9\r\n\r\n{"), 408, "invalid_request_error", "mine"),
        (ANTHROPICS % (b"?beta=true", b"host: x\r\ncontent-length: 9\r\n\r\n"), 408, "invalid_request_error", "mine"),
        (ANTHROPICS % (b"/count_tokens", b"\r\n"), 400, "invalid_request_error", "mine"),
        (ANTHROPICS % (b"", b"host: x\r\nx-long: %s\r\n" % (b"a" * 70_000)), 431, "invalid_request_error", "mine"),
        (ANTHROPICS % (b"", b"host: x\r\n"), 408, "invalid_request_error", "mine"),
        (
            ANTHROPICS % (b"", b"host: x\r\ntransfer-encoding: chunked\r\n\r\n") + b"1\r\n \r\n" * 2000,
            413, "request_too_large", "mine",
        ),
        (b"FOO /v1/messages HTTP/1.1\r\nhost: x\r\n\r\n", 501, "api_error", None),
    ],
    ids=["a body", "a query", "no host", "headers", "half of the headers", "tiny chunks", "a method"],
)  # fmt: skip
def test_a_connection_answers_in_the_words_of_its_api(
    make_site: Any, raw: bytes, status: int, kind: str, rid: str | None
) -> None:
    """What no route sees of a request under `/v1/messages` is refused in Anthropic's shape, with the ids."""
    site = make_site(body_timeout_secs=0.3, header_timeout_secs=0.3)
    answered, headers, said = refusal(site, raw)
    assert (answered, said["type"], said["error"]["type"]) == (status, "error", kind)
    assert said["request_id"] == headers["request-id"] == headers["x-request-id"]
    assert rid in (None, said["request_id"])


def test_a_late_body_is_refused_under_the_id_of_its_route(make_site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The route has begun by then, and the connection says the id that it has drawn."""
    site = make_site(body_timeout_secs=0.3)
    with caplog.at_level("INFO", "dynamo"):
        _, headers, _ = refusal(site, post(offer=b"")[:-1])
    rid = headers["x-request-id"]
    eventually("the request has ended", lambda: httpx.get(f"{site.url}/requests/{rid}").status_code == 200)
    assert f"[{rid}] 408" in caplog.text
