"""HTTPS: real certificates, streams, early answers and clients that must show who they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import trustme
from tests.waiting import until

from dynamo.frontend.http.sockets import bind
from dynamo.frontend.http.tls_listener import SPARE, TlsListener, too_many
from dynamo.frontend.settings import FrontendSettings, problem
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.settings import build

BODY = {"model": "m", "prompt": "hello", "max_tokens": 5}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A server's certificate and key, and the flags that name them."""
    authority = trustme.CA()
    mine = authority.issue_cert("127.0.0.1", "localhost")
    paths = {name: tmp_path / f"{name}.pem" for name in ("cert", "key", "ca")}
    for pem in mine.cert_chain_pems:
        pem.write_to_path(paths["cert"], append=True)
    mine.private_key_pem.write_to_path(paths["key"])
    authority.cert_pem.write_to_path(paths["ca"])
    return {name: str(path) for name, path in paths.items()}


def served(site: Any, client: httpx.Client, within: Any) -> httpx.Response:
    """An answer, once the worker is known."""

    def look() -> httpx.Response | None:
        answer = client.post(f"{site.url}/v1/completions", json=BODY)
        return answer if answer.status_code == 200 else None

    found: httpx.Response = within("an answer", look)
    return found


def test_https_serves_and_streams(make_site: Any, engines: Any, within: Any, files: dict[str, str]) -> None:
    """Answers and streams come whole over TLS; one that is refused before its body was read is answered, too."""
    site = make_site(tls_cert_path=files["cert"], tls_key_path=files["key"], body_limit_mb=0.01)
    assert site.url.startswith("https://")
    site.worker(engines(), wait=False)
    with httpx.Client(verify=ssl.create_default_context(cafile=files["ca"])) as client:
        assert served(site, client, within).json()["usage"]["completion_tokens"] == 5
        streamed = client.post(f"{site.url}/v1/completions", json=BODY | {"stream": True}).text
        assert streamed.rstrip().endswith("data: [DONE]")
        large = client.post(f"{site.url}/v1/completions", content=json.dumps(BODY | {"prompt": "x" * 100_000}))
        assert large.status_code in (413, 415)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{site.url}/live")


def test_a_client_that_never_greets_is_closed(make_site: Any, files: dict[str, str]) -> None:
    """Before TLS has begun there is no request whose headers could be late: the same time limit holds."""
    site = make_site(tls_cert_path=files["cert"], tls_key_path=files["key"], header_timeout_secs=0.3)
    url = urlsplit(site.url)
    with socket.create_connection((url.hostname, url.port), timeout=20) as silent:
        assert silent.recv(1) == b""


def test_only_known_clients_are_taken(
    make_site: Any, engines: Any, within: Any, files: dict[str, str], tmp_path: Path
) -> None:
    """With --tls-client-ca-cert-path a client shows a certificate of that authority or is no client."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "clients.pem")
    theirs = authority.issue_cert("client@example.org")
    theirs.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    site = make_site(
        tls_cert_path=files["cert"], tls_key_path=files["key"], tls_client_ca_cert_path=str(tmp_path / "clients.pem")
    )
    site.worker(engines(), wait=False)
    known = ssl.create_default_context(cafile=files["ca"])
    known.load_cert_chain(tmp_path / "client.pem")
    with httpx.Client(verify=known) as client:
        assert served(site, client, within).status_code == 200
    with httpx.Client(verify=ssl.create_default_context(cafile=files["ca"])) as client, pytest.raises(httpx.HTTPError):
        client.get(f"{site.url}/live")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tls_cert_path": "/no/such"}, "--tls-cert-path /no/such can't be read"),
        ({"tls_key_path": "/no/such"}, "--tls-key-path /no/such can't be read"),
        ({"tls_key_path": "ca"}, "can't be used together"),
        ({"tls_client_ca_cert_path": "key"}, "--tls-client-ca-cert-path"),
    ],
)
def test_files_that_do_not_fit(make_site: Any, files: dict[str, str], change: dict[str, str], says: str) -> None:
    """Each is named in one sentence before anything is served."""
    given = {"tls_cert_path": files["cert"], "tls_key_path": files["key"]}
    given |= {name: files.get(value, value) for name, value in change.items()}
    with pytest.raises(InvalidArgument) as caught:
        make_site(**given)
    assert says in caught.value.message


def test_flags_that_belong_together() -> None:
    """A certificate without its key, or an authority of clients without a certificate, is refused."""
    assert "belong together" in (problem(build(FrontendSettings, tls_cert_path="a")) or "")
    assert "needs --tls-cert-path" in (problem(build(FrontendSettings, tls_client_ca_cert_path="a")) or "")


def test_how_many_handshakes() -> None:
    """What the bound leaves beside the connections, and a few in any case; without a bound as many as come."""
    assert not too_many(79, 20, 100)
    assert too_many(80, 20, 100)
    assert not too_many(SPARE - 1, 100, 100)
    assert too_many(SPARE, 100, 100)
    assert not too_many(10_000, 10_000, None)


def connected(site: Any) -> socket.socket:
    """A TCP connection of a client that says nothing."""
    url = urlsplit(site.url)
    return socket.create_connection((url.hostname, url.port), timeout=20)


def test_who_never_shakes_hands_takes_no_one_s_place(make_site: Any, files: dict[str, str], within: Any) -> None:
    """Of handshakes under way there are as many as connections have room; past that the oldest is cut, and a real
    client is served."""
    site = make_site(
        tls_cert_path=files["cert"], tls_key_path=files["key"], header_timeout_secs=60.0, max_connections=SPARE + 4
    )
    with contextlib.ExitStack() as stack, httpx.Client(verify=ssl.create_default_context(cafile=files["ca"])) as client:
        silent = [stack.enter_context(connected(site)) for _ in range(200)]
        assert client.get(f"{site.url}/live").status_code == 200
        for one in silent[: -(SPARE + 4)]:
            assert one.recv(1) == b""
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)
        assert 'rejected_requests_total{model="",reason="handshake"}' in client.get(f"{site.url}/metrics").text


def test_who_is_one_too_many_is_told_over_tls(make_site: Any, engines: Any, files: dict[str, str], within: Any) -> None:
    """With all connections answered a few handshakes go on, so that a client reads its 503; then there is room."""
    site = make_site(
        tls_cert_path=files["cert"], tls_key_path=files["key"], header_timeout_secs=60.0, max_connections=2
    )
    trusted = ssl.create_default_context(cafile=files["ca"])
    engine = engines()
    site.worker(engine, wait=False)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(verify=trusted, timeout=30)) for _ in range(2)]
        assert served(site, clients[0], within).status_code == 200
        engine.hold = asyncio.Event()
        before = len(engine.seen)
        for client in clients:
            sending = stack.enter_context(ThreadPoolExecutor(1))
            sending.submit(client.post, f"{site.url}/v1/completions", json=BODY)
        within("both are answered", lambda: len(engine.seen) == before + 2)
        for _ in range(SPARE * 2):
            stack.enter_context(connected(site))
        refused = httpx.get(f"{site.url}/live", verify=trusted)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "connections"
        site.call(engine.hold.set)
    within("there is room", lambda: httpx.get(f"{site.url}/live", verify=trusted).status_code == 200)


def test_handshakes_that_come_to_nothing(make_site: Any, files: dict[str, str], within: Any) -> None:
    """Late, no TLS at all, or given up: each is closed, those that are late are counted, and others are served."""
    site = make_site(tls_cert_path=files["cert"], tls_key_path=files["key"], header_timeout_secs=0.5)
    with connected(site) as late, connected(site) as plain, connected(site) as leaves:
        plain.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        leaves.sendall(b"\x16\x03\x01")
        leaves.close()
        assert late.recv(1) == b""
        while plain.recv(100):
            pass
    with httpx.Client(verify=ssl.create_default_context(cafile=files["ca"])) as client:
        text = client.get(f"{site.url}/metrics").text
        assert 'timeouts_total{type="handshake"} 1.0' in text


def test_a_frontend_leaves_though_clients_shake_hands(make_site: Any, files: dict[str, str]) -> None:
    """They have asked nothing: they are cut at once, and hold nobody up."""
    site = make_site(tls_cert_path=files["cert"], tls_key_path=files["key"], header_timeout_secs=60.0)
    with connected(site) as silent:
        with httpx.Client(verify=ssl.create_default_context(cafile=files["ca"])) as client:
            assert client.get(f"{site.url}/live").status_code == 200
        site.close()
        assert silent.recv(1) == b""


async def test_short_of_files_is_a_pause(files: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """A process that may open no more files tries again a second later, and serves then."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files["cert"], files["key"])
    trusted = ssl.create_default_context(cafile=files["ca"])
    sock = bind("127.0.0.1", 0)
    sock.setblocking(False)
    port = sock.getsockname()[1]
    listener = TlsListener(
        sock,
        context,
        asyncio.Protocol,
        full=lambda _: False,
        seconds=10,
        shutdown_seconds=1,
        hit=print,
        refused=print,
    )
    listener.start(10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        try:
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
            await until("it says so", lambda: "no connection can be accepted" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        _, writer = await asyncio.open_connection(sock=client.dup(), ssl=trusted, server_hostname="127.0.0.1")
        writer.close()
    listener.close()
