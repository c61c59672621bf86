"""The page of a cluster as an ASGI application: who gets in, how many, and what a viewer is sent."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.waiting import until

from dynamo.cli.monitor.cluster_console import server
from dynamo.cli.monitor.cluster_console.server import MOST_VIEWERS, ClusterConsole
from dynamo.frontend.console.paths import EVENTS

HEAD = [(b"host", b"127.0.0.1:8000"), (b"authorization", b"Bearer k")]


class Viewer:
    """One request, and what it was sent; `leave` closes its connection."""

    def __init__(self, app: ClusterConsole, method: str = "GET", path: str = EVENTS, headers: Any = HEAD) -> None:
        self.status, self.body, self._gone = 0, b"", asyncio.Event()
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._gone.set()

    def was_sent(self, part: bytes) -> bool:
        return part in self.body

    async def _receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


async def test_viewers_share_snapshots_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster is read once for all; one viewer too many is refused until another has left."""
    monkeypatch.setattr(server, "EVERY", 0.05)
    reads: list[bytes] = []

    def sample() -> bytes:
        reads.append(b"%d" % len(reads))
        return reads[-1]

    app = ClusterConsole(sample, "k", 8000)
    viewers = [Viewer(app) for _ in range(MOST_VIEWERS)]
    for viewer in viewers:
        await until("a later snapshot", partial(viewer.was_sent, b"data: 3\n\n"))
    assert len(reads) < 2 * MOST_VIEWERS
    refused = Viewer(app)
    await refused.task
    assert refused.status == 503
    viewers[0].leave()
    await viewers[0].task
    again = Viewer(app)
    await until("it is let in", partial(again.was_sent, b"data: "))
    for viewer in (*viewers, again):
        viewer.leave()
    await asyncio.gather(*(viewer.task for viewer in (*viewers, again)))


async def test_what_does_not_change_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a comment says from time to time that the stream lives."""
    monkeypatch.setattr(server, "EVERY", 0.02)
    monkeypatch.setattr(server, "QUIET", 0.1)
    viewer = Viewer(ClusterConsole(lambda: b"{}", "k", 8000))
    await until("two signs of life", partial(viewer.was_sent, b":\n\n:\n\n"))
    viewer.leave()
    await viewer.task
    assert viewer.body.count(b"data: {}") == 1


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", EVENTS, HEAD[:1], 401),
        ("GET", EVENTS, [HEAD[0], (b"authorization", b"Bearer \xff")], 401),
        ("GET", EVENTS, HEAD[1:], 421),
        ("GET", "/", [(b"host", b"127.0.0.1:8001")], 421),
        ("HEAD", EVENTS, HEAD, 405),
        ("POST", "/", HEAD, 405),
        ("GET", "/console/../cluster.html", HEAD, 404),
    ],
)
async def test_who_is_refused_gets_no_data(method: str, path: str, headers: Any, status: int) -> None:
    """Nobody reads the cluster for them."""

    def sample() -> bytes:
        raise AssertionError("the cluster was read")

    viewer = Viewer(ClusterConsole(sample, "k", 8000), method, path, headers)
    await viewer.task
    assert viewer.status == status
