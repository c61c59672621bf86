"""The system server of a process: `/live`, `/health`, `/metrics` and what else it is given, on a port of its own.

A bare ASGI application in the process's own event loop, so that it answers exactly as long
as that loop turns (`server.py` serves it, and keeps rude clients off). Probes ask it.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.http.local_callers import from_this_machine

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from dynamo.runtime.discovery.readiness import Readiness
    from dynamo.runtime.http.server import ProbeLimits, ProbeServer
    from dynamo.runtime.names import EndpointPath
    from dynamo.runtime.transport.bus import Bus

BODY_LIMIT: Final = 1 << 20
_JSON: Final = "application/json"
_READS: Final = ("GET", "HEAD")
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Tree = Callable[[str, str, Mapping[bytes, bytes], bytes], Awaitable[tuple[int, str, bytes]]]
"""Method, path, headers and body to status, content type and body."""

log = logging.getLogger(__name__)
BUS_AWAY: Final = "the bus is away: no request can come"
"""A reason of `/health`, by which `dynamo doctor` knows it."""


class Health(NamedTuple):
    """`endpoints`: name to ready or not; `reasons` says why it is not, `notes` what is amiss all the same."""

    ready: bool
    endpoints: Mapping[str, bool]
    reasons: Sequence[str] = ()
    notes: Sequence[str] = ()
    """Problems beside which it serves."""

    def with_remarks(self, remarks: Sequence[str]) -> Health:
        """Return it with what an engine remarks: reasons while it isn't ready, else notes."""
        if self.ready:
            return self._replace(notes=[*self.notes, *remarks])
        return self._replace(reasons=[*remarks, *self.reasons])


class ServedEndpoint(Protocol):
    """An endpoint that this process serves."""

    @property
    def path(self) -> EndpointPath:
        """Return its name."""

    def readiness(self) -> Readiness:
        """Say whether every frontend can route to it."""


class HealthSource(Protocol):
    """The part of a runtime that its health is read from."""

    health: bool | None

    @property
    def bus(self) -> Bus:
        """Return what requests come over."""

    @property
    def served(self) -> Sequence[ServedEndpoint]:
        """Return the endpoints of this process."""


def runtime_health(runtime: HealthSource) -> Health:
    """Return ready when every endpoint is and requests can come; `set_health_status` has the last word."""
    endpoints: dict[str, bool] = {}
    reasons: list[str] = []
    for served in runtime.served:
        readiness = served.readiness()
        endpoints[served.path.endpoint] = readiness.ready
        reasons += [f"{served.path}: {reason}" for reason in readiness.reasons]
    ready = bool(endpoints) and all(endpoints.values())
    if not endpoints:
        reasons.append("no endpoint is served yet")
    if not runtime.bus.connected:
        ready = False
        reasons.append(BUS_AWAY)
    if runtime.health is not None:
        ready = runtime.health
        if not ready:
            reasons.append("the program has set itself not ready")
    return Health(ready, endpoints, reasons)


class SystemServer:
    """Answer probes of this process; `start` returns once it listens, and `port` is the one it got."""

    def __init__(
        self,
        health: Callable[[], Health],
        metrics: CollectorRegistry | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        routes: Mapping[str, Callable[[], tuple[int, str, bytes]]] | None = None,
        trees: Mapping[str, Tree] | None = None,
        limits: ProbeLimits | None = None,
        open_trees: bool = False,
    ) -> None:
        """Make the server; `trees`: what answers everything whose path begins so, with the body of the request.

        What changes something there is taken from this machine only; with `open_trees` from everybody.
        """
        self._health, self._metrics = health, metrics
        self._host, self._wanted, self._limits = host, port, limits
        self._trees = dict(trees or {})
        self._open_trees = open_trees
        self._started = time.monotonic()
        self._routes: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/live": self._live,
            "/health": self._ready,
            "/metrics": self._figures,
            **(routes or {}),
        }
        self._server: ProbeServer | None = None
        self.port = port

    async def start(self) -> int:
        """Listen; raises `CannotConnect` where the port is taken."""
        from dynamo.runtime.http.server import ProbeServer

        listener = _listen(self._host, self._wanted)
        self.port = listener.getsockname()[1]
        self._server = ProbeServer(self._app, self._limits)
        await self._server.start(listener)
        return self.port

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    async def _app(self, scope: Mapping[str, Any], receive: Receive, send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        tree = None if path in self._routes else next((t for p, t in self._trees.items() if path.startswith(p)), None)
        if tree is None:
            status, kind, body = self._answer(scope["method"], path)
        elif not (self._open_trees or scope["method"] in _READS or _is_local(scope)):
            text = f"{path} is for callers on this machine, not for proxies and web pages; see --open-engine-routes"
            status, kind, body = _json(403, {"error": "Forbidden", "message": text})
        elif (asked := await _body(receive)) is None:
            return
        elif len(asked) > BODY_LIMIT:
            text = f"the body is larger than {BODY_LIMIT} bytes"
            status, kind, body = _json(413, {"error": "Too large", "message": text})
        else:
            status, kind, body = await tree(scope["method"], path, dict(scope["headers"]), asked)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        route = self._routes.get(path)
        if route is None:
            known = ", ".join(sorted(self._routes))
            return _json(404, {"error": "Route not found", "message": f"{path} is not served here; try {known}"})
        if method not in ("GET", "HEAD"):
            return _json(405, {"error": "Method not allowed", "message": f"{path} answers GET only"})
        try:
            return route()
        except Exception:  # a probe must get an answer whatever a collector does
            log.exception("%s failed", path)
            return _json(500, {"error": "Internal", "message": f"{path} failed; the log says why"})

    def _live(self) -> tuple[int, str, bytes]:
        return _json(200, {"status": "live", "uptime": self._uptime()})

    def _ready(self) -> tuple[int, str, bytes]:
        health = self._health()
        words = {True: "ready", False: "notready"}
        body = {
            "status": words[health.ready],
            "uptime": self._uptime(),
            "endpoints": {name: words[ready] for name, ready in health.endpoints.items()},
            "reasons": list(health.reasons),
        } | ({"notes": list(health.notes)} if health.notes else {})
        return _json(200 if health.ready else 503, body)

    def _figures(self) -> tuple[int, str, bytes]:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        return 200, CONTENT_TYPE_LATEST, generate_latest(self._metrics) if self._metrics is not None else b""

    def _uptime(self) -> dict[str, int]:
        secs, rest = divmod(time.monotonic() - self._started, 1)
        return {"secs": int(secs), "nanos": int(rest * 1e9)}


def _is_local(scope: Mapping[str, Any]) -> bool:
    client = scope.get("client")
    return from_this_machine(client[0] if client else None, (name for name, _ in scope["headers"]))


async def _body(receive: Receive) -> bytes | None:
    """Read a request's body, or as much of it as shows that it is too large.

    None where the client left before its end.
    """
    body, more = b"", True
    while more and len(body) <= BODY_LIMIT:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CannotConnect(f"the system server can't listen on {host}:{port}: {error.strerror}") from error
    return listener


def _json(status: int, body: Mapping[str, Any]) -> tuple[int, str, bytes]:
    return status, _JSON, json.dumps(body).encode()
