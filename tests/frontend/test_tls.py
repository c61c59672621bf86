"""HTTPS: real certificates, streams, early answers and clients that must show who they are."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import trustme

from dynamo.frontend.settings import FrontendSettings, problem
from dynamo.runtime.errors import InvalidArgument

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
    site = make_site(tls_cert_path=files["cert"], tls_key_path=files["key"], header_timeout=0.3)
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
    assert "belong together" in (problem(FrontendSettings(tls_cert_path="a")) or "")
    assert "needs --tls-cert-path" in (problem(FrontendSettings(tls_client_ca_cert_path="a")) or "")
