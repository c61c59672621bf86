"""A namespace of one's own: what a scenario applies, waits for, talks to."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.cluster import Cluster, program, wait_for

PIPELINE = "dynamo.dev/v1alpha1/DynamoPipeline"
# Every pod of ours must pass it, so every namespace asks for it.
POD_SECURITY = {"pod-security.kubernetes.io/enforce": "restricted"}
# By which a run that is interrupted finds its namespaces.
RUN_LABEL = "e2e.dynamo.dev/run"
READY_SECONDS = 240
LOAD_SECONDS = 1500
"""For a pipeline whose model gets on loading, however slowly."""
FORWARD_SECONDS = 60
GONE_SECONDS = 60
"""The bar. Most of it is Kubernetes' own: it looks again after half of the longest grace of a pod."""


@dataclass(frozen=True)
class Namespace:
    """Names without a namespace mean this one."""

    cluster: Cluster
    name: str

    def create(self) -> None:
        """Make it, with the pod security standard that our pods promise to pass."""
        labels = {**POD_SECURITY, RUN_LABEL: os.environ.get("E2E_RUN", "by-hand")}
        metadata = {"name": self.name, "labels": labels}
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def leave(self) -> None:
        """Have it deleted with all that it holds; that takes a while, for which no scenario has to wait."""
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false", "--ignore-not-found")

    def delete(self) -> None:
        """Delete it with all that it holds, and wait until it is gone."""
        self.leave()
        wait_for(
            f"namespace {self.name} is gone", lambda: self.cluster.get("Namespace", self.name) is None, GONE_SECONDS
        )

    def kubectl(self, *words: str, text: str = "", seconds: float = 120) -> str:
        """What kubectl prints, in this namespace; RefusedError if it fails."""
        return self.cluster.kubectl("-n", self.name, *words, text=text, seconds=seconds)

    def apply(self, *manifests: str | Path | Mapping[str, Any]) -> str:
        """`kubectl apply` of YAML texts, files (relative to the repository) or objects."""
        return self.cluster.apply(*manifests, namespace=self.name)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object, None if it is not there."""
        return self.cluster.get(kind, name, self.name)

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Objects of one kind."""
        return self.cluster.list(kind, self.name, selector)

    def pipeline(self, name: str) -> dict[str, Any]:
        """A pipeline as the API server has it; empty if it is not there."""
        return self.get(PIPELINE, name) or {}

    def condition(self, name: str, kind: str = "Ready") -> dict[str, Any]:
        """A condition of a pipeline's status, once it speaks of the present spec; else empty."""
        pipeline = self.pipeline(name)
        status = pipeline.get("status") or {}
        if status.get("observedGeneration") != pipeline.get("metadata", {}).get("generation"):
            return {}
        return next((found for found in status.get("conditions", []) if found["type"] == kind), {})

    def wait_ready(self, name: str, seconds: float = READY_SECONDS) -> dict[str, Any]:
        """Wait until a pipeline is Ready; the pipeline."""

        def ready() -> dict[str, Any] | None:
            return self.pipeline(name) if self.condition(name).get("status") == "True" else None

        return wait_for(f"pipeline {self.name}/{name} is Ready", ready, seconds)

    def wait_loaded(self, name: str, silence: float = READY_SECONDS, most: float = LOAD_SECONDS) -> dict[str, Any]:
        """As `wait_ready`, where a model is loaded: as long as its pods get on, by what they are or compute.

        A machine that does much else may take many times as long; one that stands still for `silence` seconds fails.
        """
        end, seen, since = time.monotonic() + most, "", time.monotonic()

        def ready() -> dict[str, Any] | None:
            nonlocal seen, since
            if self.condition(name).get("status") == "True":
                return self.pipeline(name)
            now = time.monotonic()
            if (state := self._progress()) != seen:
                seen, since = state, now
            if now - since > silence:
                raise TimeoutError(f"pipeline {self.name}/{name}: nothing has changed for {silence:.0f} s: {seen}")
            return None

        return wait_for(f"pipeline {self.name}/{name} is Ready", ready, max(0.0, end - time.monotonic()))

    def _progress(self) -> str:
        """What its pods are, and the CPU time of those that run; other words mean that something has got on."""
        states = []
        for pod in self.list("v1/Pod"):
            containers = pod.get("status", {}).get("containerStatuses", [])
            state = [
                (container["name"], container["restartCount"], sorted(container.get("state", {})))
                for container in containers
            ]
            computed = ""
            if any("running" in container.get("state", {}) for container in containers):
                with suppress(Exception):  # it may be ending, or have no such file: then its state tells enough
                    words = self.kubectl("exec", pod["metadata"]["name"], "--", "cat", "/proc/1/stat", seconds=30)
                    computed = " ".join(words.rpartition(")")[2].split()[11:13])
            states.append(f"{pod['metadata']['name']} {pod['status'].get('phase')} {state} {computed}")
        return "; ".join(sorted(states))

    @contextmanager
    def reach(self, service: str, port: int | str) -> Iterator[str]:
        """An http:// URL on loopback that leads to one pod of a Service (or `pod/NAME`) while the block runs."""
        target = [service if "/" in service else f"service/{service}", f":{port}"]
        command = [
            program("kubectl"),
            "--kubeconfig",
            str(self.cluster.kubeconfig),
            "-n",
            self.name,
            "port-forward",
            *target,
        ]
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
            try:
                yield f"http://127.0.0.1:{_local_port(process, said.fileno(), service)}"
            finally:
                process.terminate()
                process.wait(10)


def _local_port(process: subprocess.Popen[bytes], said: int, service: str) -> int:
    """The port that kubectl chose, read from what it says."""
    deadline = time.monotonic() + FORWARD_SECONDS
    while True:
        text = Path(f"/proc/self/fd/{said}").read_text()
        if found := re.search(r"127\.0\.0\.1:(\d+) ->", text):
            return int(found[1])
        if process.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError(f"port-forward to service {service}: {text.strip() or 'no answer'}")
        time.sleep(0.05)
