"""Computes what a reconcile needs without holding up the event loop: `ComputeThread`, for what may take long.

One at a time, namespace by namespace, since threads share one interpreter. What took too long twice isn't
tried again before the pipeline's spec changes: `TooLong`. Counted is the thread's own time, so that a slow API server
or a busy machine is nobody's fault.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.kube.namespace_turns import Lanes
from dynamo.operator.kube.resources import Key

T = TypeVar("T")
LONG_SECONDS: Final = 5.0
PATIENCE: Final = 2
"""How often a spec may take so long."""
SWITCH_SECONDS: Final = 0.001
"""For so long the event loop may wait for the thread each time; Python's own 5 ms add up to seconds in a reconcile."""
SMALL: Final = 64
"""Objects and kilobytes that take a few milliseconds: they cost less than a thread's turn."""


class TooLong(Exception):  # noqa: N818 - says what it is
    """Raised when a spec has taken too long too often."""


def effort(pipeline: DynamoPipeline) -> float:
    """Return the cost of computing it, in the units of `SMALL`."""
    spec = pipeline.spec
    pods = sum((spec.replicas if c.replicas is None else c.replicas) * c.nodes for c in spec.components)
    templates = [spec.frontend.pod_template, *(c.pod_template for c in spec.components)]
    return pods + sum(len(repr(template)) for template in templates if template) / 1024


class _Spent(NamedTuple):
    generation: int
    times: int
    seconds: float


class ComputeThread:
    """Runs computations, long ones in its thread; shared by all reconciles."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock, self._lanes = clock, Lanes(at_once=1)
        self._spent: dict[Key, _Spent] = {}
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, key: Key, generation: int, size: float, what: Callable[[], T]) -> T:
        """Return what `what` returns; raises what it raises, and `TooLong`."""
        before = self._spent.get(key)
        if before is not None and before.generation != generation:
            self._spent.pop(key)
        elif before is not None and before.times >= PATIENCE:
            raise TooLong(
                f"computing this spec took the operator {before.seconds:.0f} s, the limit is {LONG_SECONDS:.0f} s: "
                "use fewer pods or a smaller podTemplate"
            )
        if size <= SMALL:
            return self._timed(key, generation, what)
        async with self._lanes.turn(key.namespace):
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "computing")
                sys.setswitchinterval(SWITCH_SECONDS)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._timed, key, generation, what)

    def gone(self, key: Key) -> None:
        """Forget a pipeline."""
        self._spent.pop(key, None)

    def close(self) -> None:
        """End the thread when it has done what it does."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None

    def _timed(self, key: Key, generation: int, what: Callable[[], T]) -> T:
        begun = self._clock()
        try:
            return what()
        finally:
            seconds = self._clock() - begun
            if seconds > LONG_SECONDS:
                before = self._spent.get(key)
                self._spent[key] = _Spent(generation, before.times + 1 if before else 1, seconds)
