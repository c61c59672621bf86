"""The cluster that the scenarios run on: E2E_KUBECONFIG names it, whoever made it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from e2e.kind.places import REPOSITORY, Places
from kubernetes.client import ApiClient, ApiException
from kubernetes.config import new_client_from_config
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ResourceNotFoundError

T = TypeVar("T")
POLL_SECONDS = 0.2
KUBECTL_SECONDS = 120


class RefusedError(Exception):
    """kubectl ended with an error; the text is what a user reads."""


@dataclass(frozen=True)
class Cluster:
    """A kubeconfig, and what reads and writes with it."""

    kubeconfig: Path

    @cached_property
    def api(self) -> ApiClient:
        """The Python client's connection."""
        client: ApiClient = new_client_from_config(str(self.kubeconfig))  # type: ignore[no-untyped-call]
        return client

    @cached_property
    def _dynamic(self) -> DynamicClient:
        return DynamicClient(self.api)  # type: ignore[no-untyped-call]

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, None if it is not there. `kind` is a kind, with `group/version/` before it if need be."""
        try:
            found: dict[str, Any] = self._resource(kind).get(name=name, namespace=namespace).to_dict()
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        return found

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        """Objects of one kind; an empty list also if the cluster does not know the kind."""
        try:
            resource = self._resource(kind)
        except ResourceNotFoundError:
            return []
        found = resource.get(namespace=namespace, label_selector=selector).to_dict()
        return list(found.get("items", []))

    def _resource(self, kind: str) -> Any:
        version, _, name = kind.rpartition("/")
        return self._dynamic.resources.get(kind=name, **({"api_version": version} if version else {}))

    def kubectl(self, *words: str, text: str = "", seconds: float = KUBECTL_SECONDS) -> str:
        """What kubectl prints. Raises RefusedError with what it says if it fails or takes too long."""
        command = [program("kubectl"), "--kubeconfig", str(self.kubeconfig), *words]
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as error:
            raise RefusedError(f"kubectl {' '.join(words)} had not ended after {seconds:.0f} s") from error
        if done.returncode:
            raise RefusedError(done.stderr.strip())
        return done.stdout

    def apply(self, *manifests: str | Path | Mapping[str, Any], namespace: str = "default") -> str:
        """`kubectl apply` of YAML texts, files or objects. Raises RefusedError with the sentence that a user sees."""
        return self.kubectl("apply", "-n", namespace, "-f", "-", text="\n---\n".join(map(_text, manifests)))


def _text(manifest: str | Path | Mapping[str, Any]) -> str:
    if isinstance(manifest, Path):
        return (REPOSITORY / manifest).read_text()
    return manifest if isinstance(manifest, str) else json.dumps(manifest)


def program(name: str) -> str:
    """Path of a program: the one that `make e2e` built, else the one on PATH."""
    built = Places.of(os.environ).bin / name
    found = str(built) if built.exists() else shutil.which(name)
    assert found, f"{name} is not there: `make e2e-up` builds it into {built.parent}, or put one on PATH"
    return found


def wait_for(what: str, condition: Callable[[], T | None], seconds: float) -> T:
    """Ask until `condition` gives something true, and return that. Raises TimeoutError that says what was awaited."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s; last seen: {found!r}")
        time.sleep(POLL_SECONDS)
    return found
