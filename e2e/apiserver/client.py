"""An administrator's view of the API server: `Client`, plain requests that give the code and the body."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

from dynamo.operator.kube.client import encoded
from dynamo.operator.kube.resources import PODS, Resource

Object = dict[str, Any]
T = TypeVar("T")
APPLY, MERGE, PLAIN = "application/apply-patch+yaml", "application/merge-patch+json", "application/json"
PATIENCE = 120.0
"""Nothing takes so long that works."""


class RefusedError(Exception):
    """An answer of 400 and more."""

    def __init__(self, code: int, body: Object) -> None:
        super().__init__(f"{code}: {body.get('message')}")
        self.code, self.body = code, body


class Client:
    """Asks as whoever has the token."""

    def __init__(self, server: str, token: str) -> None:
        self.server, self.token = server, token
        # The server signs its own certificate.
        self.context = ssl._create_unverified_context()

    def ask(self, method: str, path: str, body: Object | None = None, content: str = PLAIN) -> Object:
        """The answer; raises `RefusedError`, or `OSError` where nobody answers."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content}
        data = None if body is None else encoded(body)
        request = urllib.request.Request(self.server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.context) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise RefusedError(error.code, _json(error.read())) from None
        return _json(text)

    def code(self, method: str, path: str, body: Object | None = None, content: str = PLAIN) -> int:
        """Only how it was answered."""
        try:
            self.ask(method, path, body, content)
        except RefusedError as error:
            return error.code
        return 200

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """The object, or None."""
        try:
            return self.ask("GET", resource.path(namespace, name))
        except RefusedError as error:
            if error.code == 404:
                return None
            raise

    def items(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """All of a kind."""
        found: list[Object] = self.ask("GET", resource.path(namespace))["items"]
        return found

    def apply(self, resource: Resource, manifest: Object, manager: str = "somebody") -> Object:
        """Server-side, with force."""
        metadata = manifest["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"])
        return self.ask("PATCH", f"{path}?fieldManager={manager}&force=true", manifest, APPLY)

    def merge(self, resource: Resource, namespace: str | None, name: str, patch: Object, sub: str = "") -> Object:
        """A merge patch."""
        return self.ask("PATCH", resource.path(namespace, name, sub or None), patch, MERGE)

    def delete(self, resource: Resource, namespace: str | None, name: str) -> None:
        """In the background, as kubectl does."""
        self.ask("DELETE", resource.path(namespace, name), {"propagationPolicy": "Background"})

    def play(self, namespace: str | None) -> None:
        """The kubelets (of one namespace, or of all): every pod runs and is ready."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for pod in self.items(PODS, namespace):
            if not pod.get("status", {}).get("conditions"):
                ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
                status = {"phase": "Running", "conditions": [ready]}
                metadata = pod["metadata"]
                self.merge(PODS, metadata["namespace"], metadata["name"], {"status": status}, "status")


def until(what: str, holds: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Polls; what it found at last. Refusals count as not yet."""
    end = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < end:
        try:
            if found := holds():
                return found
            last = found
        except (RefusedError, OSError) as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:.0f} s: {what}; last: {last}")


async def holding(holds: Callable[[], object], pause: float = 0.05) -> None:
    """Returns when it holds; for what another thread changes."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(pause)


def _json(text: bytes) -> Object:
    try:
        found = json.loads(text)
    except ValueError:
        return {"message": text.decode(errors="replace")}
    return found if isinstance(found, dict) else {"message": str(found)}
