"""`--workers N`: executes N frontend processes that share the port, and answers for them.

Children are executed, not forked (gRPC's threads don't survive a fork). Each is a client
of its own to etcd and NATS and shares the port by SO_REUSEPORT; the kernel spreads the
connections. A probe on that port would reach a random child, so the supervisor owns
`/health` and the merged `/metrics` on `--system-port`; it asks the children over private Unix sockets.

Counters and histograms of the children add up; so do gauges that count something, while facts of a
model (context length, block size) are the same everywhere and are not added."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dynamo.frontend.http.guard import REQUESTS, SYSTEM_ROUTES, UNDER_WAY
from dynamo.frontend.http.sockets import url_of
from dynamo.frontend.request_log.log import MOST_SHOWN
from dynamo.frontend.request_log.timeline import RunningRequests
from dynamo.frontend.responses.stream import Send
from dynamo.frontend.server import open_port, open_system_port
from dynamo.frontend.settings import FrontendSettings, to_argv
from dynamo.runtime.http.server import ProbeServer
from dynamo.runtime.process.backoff import Backoff
from dynamo.runtime.process.shutdown import ShutdownSignal

_COUNTS: Final = (
    "_inflight_requests",
    "_stage_requests",
    "_worker_active_decode_blocks",
    "_worker_active_prefill_tokens",
    "_active_requests",
    "_disconnected_clients",
    "_pending_requests",
    "_pending_isl_tokens",
)


class _Merged(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def merge_metrics(texts: Sequence[str]) -> str:
    """Merge the metrics of all into one exposition."""
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            sums = values.setdefault(family.name, {})
            added = family.type != "gauge" or family.name.endswith(_COUNTS)
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                sums[key] = sums.get(key, 0.0) + sample.value if added else max(sums.get(key, 0.0), sample.value)
    for name, family in families.items():
        for (sample_name, labels), value in values[name].items():
            family.add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(list(families.values())))
    return generate_latest(registry).decode()


def merge_health(answers: Sequence[tuple[int, dict[str, object]]]) -> tuple[int, dict[str, object]]:
    """Merge to healthy while any process is (the port is served); the body is the healthy one's, with all states."""
    healthy = [body for status, body in answers if status == 200]
    states = [{"status": body.get("status"), "message": body.get("message")} for _, body in answers]
    best = healthy[0] if healthy else answers[0][1]
    return (200 if healthy else 503), {**best, "processes": states}


log = logging.getLogger(__name__)
CHILD_SOCKET: Final = "DYN_FRONTEND_CHILD_SOCKET"
CHILD_PORT: Final = "DYN_FRONTEND_CHILD_PORT"
"""Variables by which a child knows that it is one. Not settings: nobody else sets them."""
_ASK_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 1.0
_LARGEST_ANSWER: Final = 64 * 1024 * 1024
BACKOFF: Final = Backoff(0.5, 30.0)
_STABLE_SECONDS: Final = 60.0
_OF_ANY: Final = tuple(path for path in SYSTEM_ROUTES if path != "/metrics")
_PASSED_ON: Final = (b"content-type", b"content-security-policy", b"x-content-type-options", b"referrer-policy")
_JSON: Final = (b"content-type", b"application/json")
_NOBODY: Final = b'{"error":{"message":"No process answers","type":"service_unavailable"}}'
_LONGEST_ID: Final = 128


def next_backoff(last: float, ran_for: float) -> float:
    """Return the seconds to wait before a child that ran for `ran_for` is started again."""
    return BACKOFF.after(0.0 if ran_for >= _STABLE_SECONDS else last)


class Child:
    """One frontend process, started again whenever it ends."""

    def __init__(self, index: int, argv: list[str], port: int, folder: Path) -> None:
        self.index, self._argv, self._port = index, argv, port
        self._path = folder / f"child-{index}.sock"
        self._process: asyncio.subprocess.Process | None = None
        self.ready = asyncio.Event()
        self.failed: str | None = None
        self.last_metrics = ""
        """Kept for when it dies: counters must not fall."""
        self.departed: list[str] = []

    async def run(self, leaving: ShutdownSignal) -> None:
        """Keep it running until `leaving`; then pass the signal on and wait."""
        backoff = 0.0
        while not leaving.asked.is_set():
            started = time.monotonic()
            code = await self._once(leaving)
            if leaving.asked.is_set():
                return
            if self.last_metrics:
                self.departed, self.last_metrics = [*self.departed[-1:], self.last_metrics], ""
                self.departed = [merge_metrics(self.departed)]
            backoff = next_backoff(backoff, time.monotonic() - started)
            self.failed = f"process {self.index} ended with code {code}"
            log.warning("%s; it is started again in %g s", self.failed, backoff)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff):
                    await leaving.asked.wait()

    async def _once(self, leaving: ShutdownSignal) -> int:
        self._path.unlink(missing_ok=True)
        env = {**os.environ, CHILD_SOCKET: str(self._path), CHILD_PORT: str(self._port)}
        self._process = await asyncio.create_subprocess_exec(
            *self._argv, env=env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        reader = asyncio.get_running_loop().create_task(self._read(self._process))
        signals = asyncio.get_running_loop().create_task(self._pass_on(self._process, leaving))
        try:
            return await self._process.wait()
        finally:
            signals.cancel()
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            await asyncio.wait((reader, signals))
            self.ready.clear()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b"ready "):
                self.failed = None
                self.ready.set()

    async def _pass_on(self, process: asyncio.subprocess.Process, leaving: ShutdownSignal) -> None:
        await leaving.asked.wait()
        number = leaving.number
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
            await leaving.now.wait()
            process.send_signal(number)

    async def ask(self, path: str) -> tuple[int, bytes, bytes]:
        """GET from the child: status, head and body; `OSError` or `TimeoutError` where it doesn't answer."""
        async with asyncio.timeout(_ASK_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(self._path))
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nhost: child\r\n\r\n".encode())
                raw = await reader.read(-1)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        head, _, body = raw.partition(b"\r\n\r\n")
        status = head.split(b" ", 2)[1:2]
        if not status or not status[0].isdigit():
            raise OSError("the child's answer can't be read")
        return int(status[0]), head, body

    async def metrics(self) -> str:
        """Return the child's figures now, or the last ones known."""
        with contextlib.suppress(OSError, TimeoutError):
            status, _, body = await self.ask("/metrics")
            if status == 200:
                self.last_metrics = body.decode()
        return self.last_metrics

    async def health(self) -> tuple[int, dict[str, object]]:
        try:
            status, _, body = await self.ask("/health")
            health: dict[str, object] = json.loads(body)
        except (OSError, TimeoutError, ValueError):
            return 503, {"status": "unhealthy", "message": self.failed or f"process {self.index} does not answer"}
        return status, health


class SystemApp:
    """`/health`, `/live` and `/metrics` of all children, as ASGI; what else is the same for all, any child says."""

    def __init__(self, children: list[Child]) -> None:
        self._children = children

    async def __call__(self, scope: dict[str, object], receive: object, send: Send) -> None:
        path = str(scope.get("path", ""))
        if path == UNDER_WAY and scope.get("method") == "GET":
            status, body, more = await self._running()
        elif path.startswith(REQUESTS) and scope.get("method") == "GET":
            status, body, more = await self._found(path.removeprefix(REQUESTS))
        elif path in _OF_ANY and scope.get("method") == "GET":
            status, body, more = await self._any(path)
        else:
            status, body, kind = await self._answer(path)
            more = [(b"content-type", kind)]
        headers = [*more, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _any(self, path: str) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        for child in self._children:
            with contextlib.suppress(OSError, TimeoutError):
                status, head, body = await child.ask(path)
                fields = (line.partition(b": ") for line in head.split(b"\r\n")[1:])
                return status, body, [(name, value) for name, _, value in fields if name in _PASSED_ON]
        return 503, _NOBODY, [_JSON]

    async def _found(self, request_id: str) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        """Ask every child for a request: one of them had it. An id may hold anything, so it is written as a path is."""
        path, answer = REQUESTS + quote(request_id[:_LONGEST_ID], safe=""), (503, _NOBODY, [_JSON])
        for child in self._children:
            with contextlib.suppress(OSError, TimeoutError):
                status, _, body = await child.ask(path)
                answer = status, body, [_JSON]
                if status == 200:
                    break
        return answer

    async def _running(self) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        """Ask every child for the requests under way: the oldest of all, and not the oldest of each."""
        listed, status = [], 503
        for child in self._children:
            with contextlib.suppress(OSError, TimeoutError, msgspec.MsgspecError):
                status, _, body = await child.ask(UNDER_WAY)
                listed.append(msgspec.json.decode(body, type=RunningRequests))
        if not listed:
            return status, _NOBODY, [_JSON]
        oldest = sorted((request for some in listed for request in some.running), key=lambda request: request.received)
        return 200, msgspec.json.encode(RunningRequests(oldest[:MOST_SHOWN])), [_JSON]

    async def _answer(self, path: str) -> tuple[int, bytes, bytes]:
        if path == "/live":
            return 200, b'{"status":"live","message":"Service is live"}', b"application/json"
        if path == "/health":
            answers = await asyncio.gather(*(child.health() for child in self._children))
            status, body = merge_health(answers)
            return status, json.dumps(body).encode(), b"application/json"
        if path == "/metrics":
            texts = await asyncio.gather(*(child.metrics() for child in self._children))
            departed = [text for child in self._children for text in child.departed]
            return 200, merge_metrics([*texts, *departed]).encode(), b"text/plain; version=0.0.4; charset=utf-8"
        return 404, b'{"error":{"message":"Unknown route","type":"invalid_request_error"}}', b"application/json"


def _of_each(settings: FrontendSettings) -> FrontendSettings:
    """Return the settings of one of the processes: its share of what all of them may store together."""
    stored, share = settings.stored, settings.workers
    part = replace(stored, max_count=max(1, stored.max_count // share), max_mb=stored.max_mb / share)
    return replace(settings, workers=1, stored=part)


async def supervise(settings: FrontendSettings, on_ready: Callable[[str, str | None], None]) -> None:
    """Run the children until a signal; `on_ready(url, system_url)` once all of them serve."""
    with contextlib.ExitStack() as stack:
        # Exclusive first: with SO_REUSEPORT alone, somebody else's server would go unnoticed.
        open_port(settings).close()
        reserved = stack.enter_context(contextlib.closing(open_port(settings, shared=True)))
        port = int(reserved.getsockname()[1])
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dyn-frontend-")))
        argv = [sys.executable, "-m", "dynamo.frontend", *to_argv(_of_each(settings), http_port=port)]
        children = [Child(index, argv, port, folder) for index in range(settings.workers)]
        leaving = ShutdownSignal()
        with leaving.handling():
            await _run(
                settings,
                children,
                leaving,
                lambda system: on_ready(url_of(reserved, settings.tls.scheme), system),
            )


async def _run(
    settings: FrontendSettings, children: list[Child], leaving: ShutdownSignal, on_ready: Callable[[str | None], None]
) -> None:
    system = ProbeServer(SystemApp(children))
    system_url: str | None = None
    try:
        if settings.system_port is not None:
            sock = open_system_port(settings)
            system_url = url_of(sock)
            await system.start(sock)
        async with asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(child.run(leaving))
            announcing = group.create_task(_announce(children, lambda: on_ready(system_url)))
            polling = group.create_task(_poll(children))
            await leaving.asked.wait()
            announcing.cancel()
            polling.cancel()
    finally:
        await system.stop()


async def _announce(children: list[Child], on_ready: Callable[[], None]) -> None:
    for child in children:
        await child.ready.wait()
    on_ready()


async def _poll(children: list[Child]) -> None:
    """Keep the last figures of each child, for when it dies."""
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        for child in children:
            if child.ready.is_set():
                await child.metrics()
