"""The platform, installed once for all scenarios out of charts/dynamo-platform, as a user does it."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyhelm3
import yaml
from e2e.cluster import dump
from e2e.cluster.cluster import Cluster, program
from e2e.kind.places import REPOSITORY

CHART = REPOSITORY / "charts/dynamo-platform"
RELEASE = "dynamo"
NAMESPACE = "dynamo-system"
INSTALL_SECONDS = 150


class NotInstalledError(Exception):
    """The platform does not come up."""


@dataclass(frozen=True)
class Platform:
    """An installed release."""

    cluster: Cluster
    namespace: str
    release: str


@contextmanager
def held(folder: Path, *, alone: bool) -> Iterator[None]:
    """Use the platform beside other scenarios, or alone: to stop the operator, say, which would fail the others.

    Who waits for it holds a second lock, the turn: later ones can't keep out one that wants to be alone for ever.
    Whoever holds one is a test with a time limit, or a process that is gone. `folder` is one for all processes.
    """
    lock = folder / "platform.lock"
    with lock.open("w") as file:
        with lock.with_suffix(".turn").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def helm(cluster: Cluster) -> pyhelm3.Client:
    """Helm for this cluster."""
    return pyhelm3.Client(executable=program("helm"), kubeconfig=cluster.kubeconfig)


def install(cluster: Cluster, values: Mapping[str, Any], namespace: str = NAMESPACE, release: str = RELEASE) -> None:
    """Install or upgrade the chart and wait until all of it is ready; a CRD that is there already is taken over.

    Raises NotInstalledError with helm's words and what the cluster says.
    """

    async def carry_out() -> None:
        client = helm(cluster)
        chart = await client.get_chart(CHART)
        await client.install_or_upgrade_release(
            release,
            chart,
            dict(values),
            namespace=namespace,
            create_namespace=True,
            take_ownership=True,
            wait=True,
            timeout=f"{INSTALL_SECONDS}s",
        )

    try:
        asyncio.run(carry_out())
    except pyhelm3.Error as error:
        said = error.stderr.decode(errors="replace")
        raise NotInstalledError(f"{said}\n{dump.of(cluster, [], namespace)}") from error


def uninstall(cluster: Cluster, namespace: str = NAMESPACE, release: str = RELEASE) -> None:
    """Remove the release; the CRD stays, as the chart promises."""
    asyncio.run(helm(cluster).uninstall_release(release, namespace=namespace, wait=True, timeout="120s"))


def values_of_run() -> dict[str, Any]:
    """The chart's defaults; for a cluster of one's own (where its images lie, say) what the file E2E_VALUES says."""
    file = os.environ.get("E2E_VALUES")
    return dict(yaml.safe_load(Path(file).read_text())) if file else {}


def once(folder: Path, cluster: Cluster) -> Platform:
    """The platform; the first process that asks installs it, the others wait. `folder` is one for all processes."""
    with (folder / "install.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not marker(folder).exists():
            install(cluster, values_of_run())
            marker(folder).touch()
    return Platform(cluster, NAMESPACE, RELEASE)


def marker(folder: Path) -> Path:
    """There when this run has installed the platform."""
    return folder / "installed"
