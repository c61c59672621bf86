"""Asks an etcd and a NATS of a user's own whether they answer, and take the credentials. Each has a deadline."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from dynamo.cli.diagnosis.servers import ServerFact

SECONDS: Final = 3.0
_MOST_BYTES: Final = 1 << 16
_MOST_SERVERS: Final = 9
_NATS_PORT: Final = 4222
_SIGNED: Final = ("NATS_AUTH_CREDENTIALS_FILE", "NATS_AUTH_NKEY", "NATS_AUTH_DIR")
"""Credentials that sign what NATS asks: left to the programs themselves."""


def ask(environment: Mapping[str, str], *, log_in: bool = True) -> tuple[ServerFact, ...]:
    """Ask the servers that variables name, side by side; without any, `dynamo up` starts its own."""
    etcd = [url.strip() for url in environment.get("ETCD_ENDPOINTS", "").split(",") if url.strip()]
    nats = [url.strip() for url in environment.get("NATS_SERVER", "").split(",") if url.strip()]
    questions: list[Callable[[], ServerFact]] = [partial(_etcd, url, environment) for url in etcd[:_MOST_SERVERS]]
    questions += [partial(_nats, url, environment, log_in=log_in) for url in nats[:_MOST_SERVERS]]
    with ThreadPoolExecutor(len(questions) or 1) as threads:
        return tuple(threads.map(lambda question: question(), questions))


def _etcd(url: str, environment: Mapping[str, str]) -> ServerFact:
    """Read `/health`, which needs no user; then log in where there is one."""
    address = url if "://" in url else f"http://{url}"
    shown = _shown(address)
    try:
        health = _json(f"{address}/health", environment)
        if "health" not in health:
            return ServerFact("etcd", shown, other="its answer to /health is another program's")
        if str(health["health"]).lower() != "true":
            return ServerFact("etcd", shown, sick=str(health.get("reason") or "it says so itself"))
        name = environment.get("ETCD_AUTH_USERNAME")
        if name:
            password = environment.get("ETCD_AUTH_PASSWORD", "")
            _json(f"{address}/v3/auth/authenticate", environment, {"name": name, "password": password})
    except urllib.error.HTTPError as error:
        said = error.read(_MOST_BYTES).decode(errors="replace")
        error.close()
        return _http_error(shown, error.code, said)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _unanswered("etcd", shown, error)
    return ServerFact("etcd", shown)


def _http_error(shown: str, status: int, said: str) -> ServerFact:
    if status == http.client.NOT_FOUND:
        return ServerFact("etcd", shown, other="it has no /health")
    if "reason" in said and "health" in said:
        return ServerFact("etcd", shown, sick=said.strip())
    if "auth" in said:
        return ServerFact("etcd", shown, refused=_message(said))
    return ServerFact("etcd", shown, error=f"it answers {status}")


def _message(said: str) -> str:
    try:
        return str(json.loads(said).get("message") or said)
    except (ValueError, AttributeError):
        return said


def _json(url: str, environment: Mapping[str, str], body: dict[str, str] | None = None) -> dict[str, Any]:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=content)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]  # our own client knows no proxy
    if url.startswith("https"):
        handlers.append(urllib.request.HTTPSHandler(context=_tls(environment)))
    with urllib.request.build_opener(*handlers).open(request, timeout=SECONDS) as answer:
        made = json.loads(answer.read(_MOST_BYTES))
    return made if isinstance(made, dict) else {}


def _tls(environment: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=environment.get("ETCD_AUTH_CA") or None)
    if certificate := environment.get("ETCD_AUTH_CLIENT_CERT"):
        context.load_cert_chain(certificate, environment.get("ETCD_AUTH_CLIENT_KEY") or None)
    return context


def _nats(url: str, environment: Mapping[str, str], *, log_in: bool) -> ServerFact:
    """Read its INFO, and where no TLS is wanted say hello with the name and password."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    shown = _shown(urlunsplit(parts))
    try:
        place = (parts.hostname or "localhost", parts.port or _NATS_PORT)
        with closing(socket.create_connection(place, SECONDS)) as connection, connection.makefile("rb") as lines:
            line = lines.readline(_MOST_BYTES)
            if not line.startswith(b"INFO "):
                return ServerFact("NATS", shown, other="its first words aren't NATS'")
            info = json.loads(line[5:])
            most = int(info.get("max_payload") or 0) or None
            if not log_in or info.get("tls_required") or any(environment.get(variable) for variable in _SIGNED):
                return ServerFact("NATS", shown, max_payload=most)
            return ServerFact("NATS", shown, refused=_hello(connection, lines, parts, environment), max_payload=most)
    except (OSError, ValueError) as error:
        return _unanswered("NATS", shown, error)


def _hello(connection: socket.socket, lines: Any, parts: Any, environment: Mapping[str, str]) -> str:
    """Return what NATS says to the credentials; empty where it takes them."""
    given = {
        "user": environment.get("NATS_AUTH_USERNAME") or parts.username,
        "pass": environment.get("NATS_AUTH_PASSWORD") or parts.password,
        "auth_token": environment.get("NATS_AUTH_TOKEN"),
    }
    options = {"verbose": False, "lang": "python", "version": "1", **{k: v for k, v in given.items() if v}}
    connection.sendall(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
    for _ in range(8):
        line = lines.readline(_MOST_BYTES)
        if line.startswith(b"PONG"):
            return ""
        if line.startswith(b"-ERR") or not line:
            return line.decode(errors="replace").removeprefix("-ERR").strip(" \r\n'") or "it hung up"
    return ""


def _unanswered(kind: str, shown: str, error: Exception) -> ServerFact:
    """Say why in words; neither names nor passwords are quoted."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str) and isinstance(error, urllib.error.URLError):
        return ServerFact(kind, shown, error=reason)
    error = reason if isinstance(reason, OSError) else error
    if isinstance(error, TimeoutError):
        return ServerFact(kind, shown, error=f"no answer within {SECONDS:g} s")
    if isinstance(error, ssl.SSLError):
        return ServerFact(kind, shown, error=f"TLS: {error.reason or 'it speaks none'}")
    if isinstance(error, (http.client.HTTPException, ValueError)):
        return ServerFact(kind, shown, other="its answer can't be read")
    return ServerFact(kind, shown, error=getattr(error, "strerror", None) or type(error).__name__)


def _shown(url: str) -> str:
    """Return an address without the password in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
