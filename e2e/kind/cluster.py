"""One kind cluster: up, images in, down. Each of these can be repeated, and `up` starts over what was left half."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.kind import dockerd, node_image
from e2e.kind.binaries import on_path
from e2e.kind.debian import install_missing
from e2e.kind.docker import Docker
from e2e.kind.places import HERE, Places
from e2e.kind.steps import run, say, step, succeeds

GPU = "nvidia.com/gpu"
GPUS_PER_NODE = "8"
CREATE_SECONDS = 300
READY_SECONDS = 120


@dataclass(frozen=True)
class Kind:
    """A cluster that is up."""

    places: Places
    docker: Docker

    @property
    def env(self) -> dict[str, str]:
        """Variables with which kubectl, helm and the tests find the cluster."""
        kubeconfig = str(self.places.kubeconfig)
        return {**self.docker.env, "PATH": on_path(self.places), "KUBECONFIG": kubeconfig, "E2E_KUBECONFIG": kubeconfig}

    def run(self, *command: str, seconds: float) -> str:
        """Run a command where the cluster can be reached."""
        return run([*self.docker.enter, *command], seconds=seconds, env=self.env)

    def load(self, archives: Iterable[Path]) -> None:
        """Bring docker-archives onto every node; an archive of a name that was brought already is left."""
        loaded = self.places.loaded
        there = loaded.read_text().splitlines() if loaded.exists() else []
        missing = [archive for archive in archives if archive.name not in there]
        if not missing:
            return
        with step(f"images onto three nodes: {', '.join(archive.stem for archive in missing)}"):
            for archive in missing:
                self.run("kind", "load", "image-archive", str(archive), "--name", self.places.name, seconds=300)
                with loaded.open("a") as file:
                    file.write(f"{archive.name}\n")


def up(places: Places, docker: Docker) -> Kind:
    """The cluster with three nodes, of which each says it has eight GPUs; one that is there and answers is taken."""
    cluster = Kind(places, docker)
    if docker.private:
        dockerd.start(places)
    if _answers(cluster):
        say(f"cluster {places.name} is up already")
        return cluster
    _delete(cluster)
    image = _image(cluster)
    with step("kind create cluster"):
        options = ["--name", places.name, "--image", image, "--config", f"{HERE}/files/kind.yaml"]
        kubeconfig = ["--kubeconfig", str(places.kubeconfig), "--wait", f"{READY_SECONDS}s"]
        cluster.run("kind", "create", "cluster", *options, *kubeconfig, seconds=CREATE_SECONDS)
        ready = ["--for=condition=Ready", f"--timeout={READY_SECONDS}s"]
        cluster.run("kubectl", "wait", "node", "--all", *ready, seconds=READY_SECONDS + 30)
    fake_gpus(cluster)
    return cluster


def down(places: Places) -> None:
    """Delete the cluster, and end the private daemon if there is one. Nothing there: nothing to do."""
    private = dockerd.docker_of(places)
    docker = private if private.answers() else users_docker(places)
    if (places.bin / "kind").exists() and docker.answers():
        _delete(Kind(places, docker))
    dockerd.stop(places)
    places.kept.unlink(missing_ok=True)


def fake_gpus(cluster: Kind) -> None:
    """Let every node say that it has GPUs: scheduler and kubelet believe it, and kubelets do not take it back."""
    paths = [f"/status/{part}/{GPU.replace('/', '~1')}" for part in ("capacity", "allocatable")]
    changes = [{"op": "add", "path": path, "value": GPUS_PER_NODE} for path in paths]
    for node in cluster.run("kubectl", "get", "nodes", "-o", "name", seconds=30).split():
        patch = ["--subresource=status", "--type=json", "-p", json.dumps(changes)]
        cluster.run("kubectl", "patch", node, *patch, seconds=30)


def users_docker(places: Places) -> Docker:
    """The Docker that the user's own commands reach."""
    return Docker({"PATH": on_path(places)}, (), private=False)


def docker_for(places: Places) -> Docker:
    """The daemon to use: the user's, if it has or can pull kind's node image; else one of ours, with what that needs.

    One of ours is not started yet. Raises StepError that says what is missing, before minutes of building.
    """
    docker, private = users_docker(places), dockerd.docker_of(places)
    if not private.answers() and docker.answers():
        if docker.obtains(_registry_image()):
            return docker
        say(f"Docker answers, but can't pull {_registry_image()}: one of our own, with an image from packages")
    install_missing()
    return private


def _registry_image() -> str:
    return os.environ.get("DYNAMO_E2E_NODE_IMAGE") or node_image.default_of_kind()


def _image(cluster: Kind) -> str:
    """The node image in the cluster's daemon: the registry's on the user's Docker, else the one made from packages."""
    if not cluster.docker.private:
        return _registry_image()
    archive = node_image.archive_of_node(cluster.places)
    stamp = cluster.places.cache / "docker" / f".{archive.stem}"
    if not (stamp.exists() and cluster.docker.has(node_image.name())):
        with step("docker load of the node image"):
            run([*cluster.docker.command, "load", "--quiet", "--input", archive], seconds=300, env=cluster.docker.env)
            run([*cluster.docker.command, "image", "prune", "--force"], seconds=60, env=cluster.docker.env)
        stamp.touch()
    return node_image.name()


def _answers(cluster: Kind) -> bool:
    """Whether the cluster is there, its nodes are Ready, and they run the node image of this tree."""
    if not cluster.places.kubeconfig.exists():
        return False
    waited = ["kubectl", "wait", "node", "--all", "--for=condition=Ready", "--timeout=20s"]
    return succeeds([*cluster.docker.enter, *waited], seconds=40, env=cluster.env)


def _delete(cluster: Kind) -> None:
    began = time.monotonic()
    places = cluster.places
    cluster.run("kind", "delete", "cluster", "--name", places.name, "--kubeconfig", str(places.kubeconfig), seconds=180)
    for file in (places.kubeconfig, places.loaded):
        file.unlink(missing_ok=True)
    if time.monotonic() - began > 1:
        say(f"kind delete cluster: {time.monotonic() - began:.0f} s")
