"""What the kubelet and Prometheus ask: `/healthz`, `/readyz` and `/metrics`.

kopf's own probe stays green while its watches are dead, and bookmarks never reach handlers;
so health is judged by our own periodic list of the pipelines, by what of it the watches
haven't delivered, by the last sign of life of our own watches, and by how long work waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from aiohttp import web

STALE_SECONDS = 180.0
STUCK_SECONDS = 300.0
LATE_SECONDS = 150.0
"""Two sweeps and as many new watches haven't helped."""
SILENT_SECONDS = 180.0
"""The server sends a bookmark every minute."""


class ProbesError(Exception):
    """Raised when the probes' address can't be listened on."""


class Health:
    """Knows when the API server was last read, and what else must hold."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read = clock()
        self.rest()

    def rest(self) -> None:
        """Drop all conditions but that the server answers: nobody works now."""
        self.oldest: Callable[[], float] = lambda: 0.0
        self.late: Callable[[], float] = lambda: 0.0
        self.silent: Callable[[], float] = lambda: 0.0

    def read(self) -> None:
        """Note that the API server answered."""
        self._read = self._clock()

    def sick(self) -> str:
        """Return what is wrong; empty if nothing is."""
        silent = self._clock() - self._read
        if silent > STALE_SECONDS:
            return f"the API server has not answered for {silent:.0f} s"
        return next((text.format(f"{seconds:.0f}") for text, seconds, most in self._waits() if seconds > most), "")

    def _waits(self) -> Iterator[tuple[str, float, float]]:
        yield "a pipeline has been waiting to be reconciled for {} s", self.oldest(), STUCK_SECONDS
        yield (
            "the watch of pipelines is dead: it hasn't delivered a change that was listed {} s ago",
            self.late(),
            LATE_SECONDS,
        )
        yield "a watch of children is dead: silent for {} s", self.silent(), SILENT_SECONDS


class Probes:
    """Serves the probes over HTTP; `port` 0 takes a free one, `start` says which."""

    def __init__(self, health: Health, report: Callable[[], str], host: str = "0.0.0.0", port: int = 8080) -> None:
        self._health, self._report, self._host, self._port = health, report, host, port
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._healthz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> int:
        """Listen and return the port. Raises `ProbesError`."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise ProbesError(
                f"cannot listen on {where}: {error.strerror}: choose another address with --host and --port"
            ) from error
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the server."""
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        sick = self._health.sick()
        return web.Response(text=sick or "ok", status=503 if sick else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._report(), headers={"Content-Type": "text/plain; version=0.0.4"})
