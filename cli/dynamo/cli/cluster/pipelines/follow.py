"""Follows pipelines until each is ready or never will be, and shows how far they are.

Asks rather than watches: one small request per pipeline and look, nothing to lose when the
API server or the network goes away for a moment.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dynamo.cli.cluster.client import Cluster
from dynamo.cli.cluster.errors import ClusterError, RefusedError
from dynamo.cli.cluster.pipelines.progress import Part, PipelinePhase, PipelineProgress, progress
from dynamo.cli.local.display import Display
from dynamo.cli.local.process_lifecycle import State
from dynamo.operator.kube.resources import PIPELINES, PODS
from dynamo.operator.manifests import naming

LOOK_EVERY: Final = 0.5
_LASTING: Final = (401, 403)
"""Refusals that waiting doesn't change."""


class Wanted(NamedTuple):
    """A pipeline that a command made."""

    namespace: str
    name: str
    uid: str


@dataclass
class Row:
    """One line of the display."""

    label: str
    state: State = State.WAITING
    seconds: float = 0.0
    note: str = ""
    doing: str = ""


class Tracker:
    """Turns progress into rows, and says what changed. Time is an argument."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._rows: dict[str, Row] = {}

    def show(self, progresses: Sequence[PipelineProgress], seconds: float) -> None:
        """Show one look."""
        several = len(progresses) > 1
        shown: dict[str, Row] = {}
        for pipeline in progresses:
            for part in _lines(pipeline):
                key, label = f"{pipeline.namespace}/{pipeline.name}/{part.name}", part.name
                shown[key] = self._rows.get(key) or Row(f"{pipeline.name}/{label}" if several else label)
                self._update(shown[key], part, seconds)
        self._rows = shown
        self._display.parts([row for row in self._rows.values() if row.state is State.STARTING])

    def _update(self, row: Row, part: Part, seconds: float) -> None:
        before = row.state
        row.state = State.READY if part.done else State.STARTING
        if row.state is not before or row.state is State.STARTING:
            row.seconds, row.doing = seconds, part.text
        row.note = part.text if part.done else ""
        if row.state is not before and row.state is State.READY:
            self._display.changed(row)


def _lines(progress: PipelineProgress) -> Iterator[Part]:
    """Yield the pipeline's parts, and whatever else it waits for."""
    if progress.phase is PipelinePhase.UNSEEN:
        yield Part("operator", False, "hasn't looked at it yet")
    yield from progress.parts
    if progress.phase is PipelinePhase.WAITING and all(part.done for part in progress.parts):
        yield Part("pipeline", False, f"{progress.reason}: {progress.message}")


def follow(
    look: Callable[[], list[PipelineProgress]],
    display: Display,
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[PipelineProgress]:
    """Return how each ended of what `look` sees; those that neither are ready nor failed ran out of time."""
    tracker = Tracker(display)
    began, lost, progresses = clock(), "", list[PipelineProgress]()
    while True:
        try:
            progresses, lost = look(), ""
        except ClusterError as error:
            if isinstance(error, RefusedError) and error.status in _LASTING:
                raise
            if not lost:
                lost = error.message
                display.say(f"{lost} (goes on asking)")
        passed = clock() - began
        tracker.show(progresses, passed)
        if passed >= seconds or (not lost and all(_settled(progress) for progress in progresses)):
            if lost:
                raise ClusterError(lost)
            return progresses
        sleep(LOOK_EVERY)


def _settled(progresses: PipelineProgress) -> bool:
    return progresses.phase in (PipelinePhase.READY, PipelinePhase.STALLED, PipelinePhase.DELETED)


def look_at(cluster: Cluster, wanted: Wanted) -> PipelineProgress:
    """Return one pipeline now; one that was made anew under the name is another."""
    live = cluster.find(PIPELINES.path(wanted.namespace, wanted.name))
    if live is None or live["metadata"].get("uid") != wanted.uid:
        return PipelineProgress(wanted.name, wanted.namespace, PipelinePhase.DELETED)
    pods: list[Mapping[str, Any]] = []
    if progress(live).phase is PipelinePhase.WAITING:
        selector = f"{naming.PIPELINE}={wanted.name}"
        pods = [*cluster.visible(PODS, wanted.namespace, labelSelector=selector)]
    return progress(live, pods)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C unwind, so that the terminal is left as it was."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
