"""An engine's KV events on the bus: steps as they come, beats while nothing does, snapshots for those who ask.

The decisions are in `dynamo.llm.kv.events`; this is the shell around its `Sender`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from dynamo.llm.kv.events import OPERATION, KvStep, Part, Sender
from dynamo.runtime.errors import CannotConnect, InvalidArgument
from dynamo.runtime.names import EndpointPath, kv_subject
from dynamo.runtime.ports import Bus
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engine import KvCaching

log = logging.getLogger(__name__)

FIRST_BEAT: Final = 0.25
"""Seconds after a step until its number is repeated."""
LAST_BEAT: Final = 10.0
"""Each beat comes twice as late as the one before, but not later than this: who hears nothing for longer is cut off."""


class KvPublisher:
    """What one engine caches, told to whoever listens. `instance` gives its id as it is now."""

    def __init__(self, bus: Bus, path: EndpointPath, instance: Callable[[], int]) -> None:
        self._bus, self._path, self._instance = bus, path, instance
        self._sender = Sender()
        self._pause = FIRST_BEAT
        self._quiet = True
        """Nothing was sent since the timer was set."""
        self._timer: asyncio.TimerHandle | None = None
        self.lost = 0
        """Messages that could not be sent; who listens will notice."""

    def step(self, step: KvStep) -> None:
        """What an engine step did; called on the loop."""
        worker = self._instance()
        for data in self._sender.step(step, worker, self._bus.max_payload):
            self._publish(data)
            self._quiet = False
        if not self._quiet and self._pause > FIRST_BEAT:
            self._beat_in(FIRST_BEAT)

    def snapshot(self, body: Any) -> Part:
        """Answers the control operation; from the first time on steps are sent."""
        part = self._sender.snapshot(body, self._bus.max_payload)
        if self._timer is None:
            self._beat_in(FIRST_BEAT)
        return part

    def stop(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat_in(self, seconds: float) -> None:
        self.stop()
        self._pause = seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._beat)

    def _beat(self) -> None:
        if self._quiet:
            self._publish(self._sender.beat(self._instance()))
        pause = min(2 * self._pause, LAST_BEAT) if self._quiet else FIRST_BEAT
        self._quiet = True
        self._beat_in(pause)

    def _publish(self, data: bytes) -> None:
        try:
            self._bus.publish(kv_subject(self._path.namespace, self._path.component, self._instance()), data)
        except (CannotConnect, InvalidArgument) as error:
            self.lost += 1
            log.debug("a KV event could not be sent: %s", error)


def publish_kv_events(runtime: DistributedRuntime, path: EndpointPath, engine: KvCaching) -> KvPublisher:
    """Tell what `engine` caches from now on; to be called before its first request."""
    publisher = KvPublisher(runtime.bus, path, lambda: runtime.id)
    engine.on_kv(publisher.step)
    runtime.server.on_control(path, OPERATION, publisher.snapshot)
    return publisher
