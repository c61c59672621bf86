"""What workers remark of themselves in `/health`: whom to ask, and what of an answer a status shows. Pure.

Kubernetes keeps of a failing readiness probe only that it failed. The worker's process knows why: it waits for its
server, or its engine is away. One that serves may remark something, too: what its server announced isn't so. Answers
may be anybody's: what is shown is short and printable, and pods are asked seldom and few at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from dynamo.operator.api.shown import shown_text
from dynamo.operator.cluster.observe import is_ready, label
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.workers import CONTAINER

EVERY_SECONDS: Final = 5.0
AT_MOST: Final = 4
"""Pods of a pipeline that are asked at a time."""
REMARK_CHARACTERS: Final = 300
_SENTENCES: Final = 3
_UNSAID: Final = "no endpoint is served yet"
"""What every process says that starts."""


class WorkerHealth(msgspec.Struct, frozen=True):
    """The fields that are read of a worker's `/health`."""

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def remark_of(health: WorkerHealth) -> str:
    """Return what a status shows of an answer; empty where it says nothing of use."""
    sentences = [text.strip() for text in (*health.reasons, *health.notes) if text.strip() and text != _UNSAID]
    return shown_text("; ".join(sentences[:_SENTENCES]), REMARK_CHARACTERS)


def pods_to_ask(pods: Iterable[Mapping[str, Any]], remarking: Collection[str], turn: int) -> list[tuple[str, str]]:
    """Return names and addresses of the pods to ask: those that aren't ready first.

    Ready ones are asked only of the components `remarking`, and take turns.
    """
    started = sorted((pod for pod in pods if _is_started(pod)), key=lambda pod: str(pod["metadata"]["name"]))
    unready = [pod for pod in started if not is_ready(pod)]
    ready = [pod for pod in started if is_ready(pod) and label(pod, naming.COMPONENT) in remarking]
    first = turn * AT_MOST % len(ready) if ready else 0
    chosen = [*unready, *ready[first:], *ready[:first]][:AT_MOST]
    return [(str(pod["metadata"]["name"]), str(pod["status"]["podIP"])) for pod in chosen]


def _is_started(pod: Mapping[str, Any]) -> bool:
    """Return whether a worker's process answers, and isn't about to end."""
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp") or not status.get("podIP"):
        return False
    return any(c.get("name") == CONTAINER and c.get("started") for c in status.get("containerStatuses", []))
