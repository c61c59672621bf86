"""Beside a scenario: whether a pipeline says that it is Ready while its endpoint refuses, or a frontend lacks a worker.

`with watched(namespace, name) as truth: …`; afterwards `truth.lies` has each time that lasted longer than allowed. Its
Service must be of type NodePort, as for `traffic`. `Truth` is pure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from e2e.namespace.namespace import PIPELINE, Namespace
from e2e.traffic.traffic import outside
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

POLL_SECONDS = 0.2
ALLOWED_SECONDS = 2.0
"""Ready may lag behind the endpoint for so long."""
PATIENCE_SECONDS = 1.5
"""An endpoint that says nothing for so long refuses. Requests that wait (`workerWaitTimeoutSeconds`)
aren't refused: give more there."""

Object = dict[str, Any]


class Stretch:
    """How long Ready stood while something was wrong."""

    def __init__(self, wrong: str, allowed: float) -> None:
        self._wrong, self._allowed = wrong, allowed
        self._since: float | None = None
        self._told = False
        self.longest = 0.0
        """Seconds."""

    def saw(self, now: float, is_ready: bool, how: str) -> str:
        """One poll; `how` is empty where nothing was wrong. A sentence, once, when it lasted longer than allowed."""
        if not (is_ready and how):
            self._since, self._told = None, False
            return ""
        self._since = now if self._since is None else self._since
        lasted = now - self._since
        self.longest = max(self.longest, lasted)
        if lasted <= self._allowed or self._told:
            return ""
        self._told = True
        return f"Ready for {lasted:.1f} s and more while {self._wrong}: {how}"


class Truth:
    """What the status said and what the endpoint did, poll by poll; times are any clock's."""

    def __init__(self, allowed: float = ALLOWED_SECONDS) -> None:
        self._refused = Stretch("the endpoint refused", allowed)
        self._lacked = Stretch("a frontend lacked a worker", allowed)
        self.polls = 0
        self.ready = 0
        """Polls at which it said Ready of the present generation."""
        self.lies: list[str] = []
        self.lacks: list[str] = []
        """As `lies`, of the workers."""

    @property
    def longest(self) -> float:
        """Seconds that it said so while the endpoint refused."""
        return self._refused.longest

    def saw(self, now: float, is_ready: bool, refusal: str, lacking: str = "") -> None:
        """One poll; `refusal` is empty where the endpoint answered, `lacking` where a frontend could ask everybody."""
        self.polls += 1
        self.ready += is_ready
        self.lies += filter(None, [self._refused.saw(now, is_ready, refusal)])
        self.lacks += filter(None, [self._lacked.saw(now, is_ready, lacking)])

    def __str__(self) -> str:
        most = f"{self.longest:.1f} s while the endpoint refused, {self._lacked.longest:.1f} s while a worker lacked"
        return f"{self.polls} polls, Ready at {self.ready}, at most {most}"


def lacking(status: Object, health: Object) -> str:
    """Which of the workers that a pipeline wants a frontend can't ask; empty where there are as many as wanted."""
    wanted = sum(component["replicas"] for component in status.get("components", []))
    # Releases before this one say neither.
    found = (instance for instance in health.get("instances", []) if instance.get("routable", True))
    reached = {str(one.get("host") or one["instance_id"]) for one in found}
    return f"{len(reached)} of {wanted}, {sorted(reached)}" if len(reached) < wanted else ""


def is_ready(pipeline: Object) -> bool:
    """Ready=True of the present generation."""
    conditions = (pipeline.get("status") or {}).get("conditions", [])
    generation = pipeline.get("metadata", {}).get("generation")
    return any(
        (c["type"], c["status"], c.get("observedGeneration")) == ("Ready", "True", generation) for c in conditions
    )


@contextmanager
def watched(
    namespace: Namespace, name: str, model: str | None = None, patience: float = PATIENCE_SECONDS
) -> Iterator[Truth]:
    """Polls the pipeline's status and asks for one token, five times a second, while the block runs."""
    truth, ended = Truth(), threading.Event()
    url = outside(namespace, f"{name}-frontend")
    body = {"model": model or name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}

    def poll() -> None:
        with httpx.Client(timeout=patience) as client:
            while not ended.wait(POLL_SECONDS):
                said = _said(namespace, name)
                refusal = _refusal(client, f"{url}/v1/chat/completions", body)
                health = _health(client, url)
                lacks = lacking(said.get("status") or {}, health) if health is not None else ""
                # A status that changed while the endpoint was asked speaks of neither moment.
                truth.saw(time.monotonic(), is_ready(said) and is_ready(_said(namespace, name)), refusal, lacks)

    thread = threading.Thread(target=poll, name="watching")
    thread.start()
    try:
        yield truth
    finally:
        ended.set()
        thread.join()


def _said(namespace: Namespace, name: str) -> Object:
    """What users read; an API server that doesn't answer says nothing."""
    try:
        return namespace.get(PIPELINE, name) or {}
    except (ApiException, HTTPError):
        return {}


def _health(client: httpx.Client, url: str) -> Object | None:
    """What one of its frontends says; None where that has nothing to say yet, or leaves."""
    try:
        answer = client.get(f"{url}/health")
    except httpx.TransportError:
        return None
    return answer.json() if answer.status_code == 200 else None


def _refusal(client: httpx.Client, url: str, body: Object) -> str:
    try:
        answer = client.post(url, json=body)
    except httpx.TransportError as error:
        return repr(error)
    return "" if answer.status_code == 200 else f"{answer.status_code} {answer.text[:200]}"
