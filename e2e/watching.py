"""Beside a scenario: whether a pipeline says that it is Ready while its endpoint refuses.

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
from e2e.namespace import PIPELINE, Namespace
from e2e.traffic import outside
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

POLL_SECONDS = 0.2
ALLOWED_SECONDS = 2.0
"""Ready may lag behind the endpoint for so long."""
PATIENCE_SECONDS = 1.5
"""An endpoint that says nothing for so long refuses. Held requests (`holdSeconds`) aren't refused: give more there."""

Object = dict[str, Any]


class Truth:
    """What the status said and what the endpoint did, poll by poll; times are any clock's."""

    def __init__(self, allowed: float = ALLOWED_SECONDS) -> None:
        self._allowed = allowed
        self._since: float | None = None
        """When it began to say so while the endpoint refused."""
        self._told = False
        self.polls = 0
        self.ready = 0
        """Polls at which it said Ready of the present generation."""
        self.longest = 0.0
        """Seconds that it said so while the endpoint refused."""
        self.lies: list[str] = []

    def saw(self, now: float, is_ready: bool, refusal: str) -> None:
        """One poll; `refusal` is empty where the endpoint answered."""
        self.polls += 1
        self.ready += is_ready
        if not (is_ready and refusal):
            self._since, self._told = None, False
            return
        self._since = now if self._since is None else self._since
        lasted = now - self._since
        self.longest = max(self.longest, lasted)
        if lasted > self._allowed and not self._told:
            self.lies.append(f"Ready for {lasted:.1f} s and more while the endpoint refused: {refusal}")
            self._told = True

    def __str__(self) -> str:
        return f"{self.polls} polls, Ready at {self.ready}, at most {self.longest:.1f} s while the endpoint refused"


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
                # A status that changed while the endpoint was asked speaks of neither moment.
                truth.saw(time.monotonic(), said and _said(namespace, name), refusal)

    thread = threading.Thread(target=poll, name="watching")
    thread.start()
    try:
        yield truth
    finally:
        ended.set()
        thread.join()


def _said(namespace: Namespace, name: str) -> bool:
    """What users read; an API server that doesn't answer says nothing."""
    try:
        return is_ready(namespace.get(PIPELINE, name) or {})
    except (ApiException, HTTPError):
        return False


def _refusal(client: httpx.Client, url: str, body: Object) -> str:
    try:
        answer = client.post(url, json=body)
    except httpx.TransportError as error:
        return repr(error)
    return "" if answer.status_code == 200 else f"{answer.status_code} {answer.text[:200]}"
