"""HTTP beside the routes: HEAD, OPTIONS, slashes, compressed bodies, pages of this machine, half a connection."""

from __future__ import annotations

import gzip
import importlib
import json
import socket
import sys
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

TEXT: Final = "/v1/completions"
BODY: Final = {"model": "m", "prompt": "hi", "max_tokens": 2}
JSON: Final = {"content-type": "application/json"}
zstd = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def _wide(raw: bytes) -> Any:
    """Compress with a window of 128 MB, which one such body would have its reader hold."""
    made = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    return made.compress(raw) + made.flush()


@pytest.mark.parametrize("path", ["/", "/ping", "/version", "/health", "/live", "/metrics", "/docs", "/openapi.json",
                                  "/v1/models", "/v1/models/m", "/v1/models/m/ready", "/tokenizer_info"])  # fmt: skip
def test_head_and_options_of_each_get(served: Any, path: str) -> None:
    """HEAD has GET's status and no body; OPTIONS names both; a slash at the end changes nothing."""
    asked, head = httpx.get(served.url + path), httpx.head(served.url + path)
    assert (asked.status_code, head.status_code, head.content) == (200, 200, b"")
    assert head.headers["content-type"] == asked.headers["content-type"]
    options = httpx.options(served.url + path)
    allowed = "GET, HEAD, OPTIONS, POST" if path == "/ping" else "GET, HEAD, OPTIONS"
    assert (options.status_code, options.headers["allow"]) == (204, allowed)
    assert httpx.get(f"{served.url}{path.rstrip('/')}/").status_code == 200


def test_options_and_slashes_of_a_hot_route(served: Any) -> None:
    """A route of requests says what it takes; nothing is at other paths."""
    assert httpx.options(served.url + TEXT).headers["allow"] == "OPTIONS, POST"
    assert served.post(f"{TEXT}/", BODY).json()["choices"][0]["text"] == "hi"
    assert (httpx.options(f"{served.url}/nope").status_code, httpx.head(f"{served.url}/nope").status_code) == (404, 404)


NO_PROBES = (("POST", "/live"), ("PUT", "/ping"))


def test_a_ping_may_be_posted(served: Any, make_site: Any, tmp_path: Path) -> None:
    """As vLLM and SageMaker have it; a probe needs no key."""
    keys = tmp_path / "keys"
    keys.write_text("secret-1\n")
    for site in (served, make_site(api_keys_file=str(keys))):
        answer = site.post("/ping")
        assert (answer.status_code, answer.content) == (200, b"{}")
    assert httpx.put(f"{served.url}/ping").headers["allow"] == "GET, HEAD, POST"
    assert [httpx.request(method, site.url + path).status_code for method, path in NO_PROBES] == [401, 401]


def test_root_names_what_this_is(served: Any) -> None:
    """The first page has a name, a version and links that answer."""
    about = httpx.get(served.url).json()
    assert about["name"] == "Dynamo Pipelines"
    assert about["version"] == httpx.get(f"{served.url}/version").json()["version"]
    assert {httpx.get(served.url + about["links"][name]).status_code for name in ("models", "docs", "health")} == {200}


def test_compressed_bodies(served: Any) -> None:
    """A compressed body, of one part or several, is the same request; chunked, too."""
    raw = json.dumps(BODY).encode()
    for name, packed in (("gzip", gzip.compress), ("zstd", zstd.compress), ("identity, ZSTD", zstd.compress)):
        for body in (packed(raw), packed(raw[:9]) + packed(raw[9:]), iter([packed(raw)])):
            answer = httpx.post(served.url + TEXT, content=body, headers=JSON | {"content-encoding": name})
            assert answer.json()["choices"][0]["text"] == "hi"
    plain = httpx.post(served.url + TEXT, content=raw, headers=JSON | {"content-encoding": "identity"})
    assert plain.status_code == 200


@pytest.mark.parametrize(
    ("encoding", "body", "status", "code"),
    [
        ("br", b"x", 415, "unsupported_content_encoding"),
        ("gzip, zstd", b"x", 415, "unsupported_content_encoding"),
        ("zstd", b"{}", 400, "invalid_encoding"),
        ("zstd", zstd.compress(b"{}")[:-3], 400, "invalid_encoding"),
        ("zstd", zstd.compress(b"{}") * 65, 400, "invalid_encoding"),
        ("zstd", zstd.compress(b" " * 20_000_000), 413, "request_too_large"),
        ("zstd", _wide(b"{}"), 400, "invalid_encoding"),
        ("gzip", b"{}", 400, "invalid_encoding"),
        ("gzip", b"", 400, "invalid_encoding"),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-3], 400, "invalid_encoding"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"more", 400, "invalid_encoding"),
        ("gzip", gzip.compress(b" " * 20_000_000, mtime=0), 413, "request_too_large"),
    ],
)
def test_bodies_that_cant_be_decoded(served: Any, encoding: str, body: bytes, status: int, code: str) -> None:
    """Other encodings, damaged bodies and bombs are refused by name, and the next request is answered."""
    answer = httpx.post(served.url + TEXT, content=body, headers=JSON | {"content-encoding": encoding})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert (answer.headers.get("accept-encoding") == "gzip, zstd") is (status == 415)
    assert served.post(TEXT, BODY).status_code == 200


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True), ("https://127.0.0.1", True), ("http://[::1]:5173", True),
        ("http://app.localhost", True), ("http://localhost.evil.example", False), ("http://evil.example", False),
        ("http://localhost:3000.evil.example", False), ("null", False),
    ],
)  # fmt: skip
def test_pages_of_this_machine_may_call(served: Any, origin: str, *, allowed: bool) -> None:
    """Without a flag pages of this machine may, and no others, also by a preflight."""
    asked = {"origin": origin, "access-control-request-method": "POST"}
    for answer in (
        served.post(TEXT, BODY, headers={"origin": origin}),
        httpx.options(served.url + TEXT, headers=asked),
    ):
        assert answer.headers.get("access-control-allow-origin") == (origin if allowed else None)


def test_no_page_may_call(make_site: Any) -> None:
    """`none` takes it back."""
    site = make_site(cors_origin=["none"])
    answer = httpx.get(f"{site.url}/live", headers={"origin": "http://localhost:3000"})
    assert "access-control-allow-origin" not in answer.headers


def _request(**changes: Any) -> bytes:
    body = json.dumps(BODY | changes).encode()
    return b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        TEXT.encode(), len(body), body,
    )  # fmt: skip


@pytest.mark.parametrize("delay", [0.0, 0.15])
def test_half_a_connection(site: Any, engines: Any, delay: float) -> None:
    """A client that has said all and closes its half is answered, at once or after a while."""
    site.worker(engines(delay))
    with site.socket() as sock:
        sock.sendall(_request(max_tokens=3))
        sock.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert json.loads(body)["choices"][0]["finish_reason"] == "length"
    assert (b"100 Continue" in answer) is bool(delay)


def test_who_leaves_is_told_from_who_listens(site: Any, engines: Any, within: Any) -> None:
    """A client that has gone frees its engine, though it looks like one that has closed its half."""
    engine = engines(30.0)
    site.worker(engine)
    with site.socket() as sock:
        sock.sendall(_request())
        within("the engine has it", lambda: engine.running == 1)
    within("the engine is free", lambda: engine.cancelled == 1, 5)


def test_http_1_0_has_no_chunks(served: Any) -> None:
    """A stream, and a body of unknown length, end with their connection."""
    body = json.dumps({**BODY, "stream": True}).encode()
    asked = b"POST %s HTTP/1.0\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(asked % (TEXT.encode(), len(body)) + body)
        head, _, events = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"chunked" not in head
    assert b"connection: close" in head
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")
