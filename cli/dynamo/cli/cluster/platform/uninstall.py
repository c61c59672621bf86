"""The steps of `dynamo uninstall`: count, ask, remove, say what stays."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Final

import click

from dynamo.cli.cluster.client import Cluster, Live, connect
from dynamo.cli.cluster.errors import ClusterError, RefusedError
from dynamo.cli.cluster.kubeconfig import Target
from dynamo.cli.cluster.pipelines.follow import interruptible
from dynamo.cli.cluster.platform.helm import Helm
from dynamo.cli.cluster.platform.install import CRDS
from dynamo.cli.cluster.platform.state import CRD, ReleaseName, count, owner, what_stays
from dynamo.operator.kube.resources import PIPELINES, resource_of

_LOOK_EVERY: Final = 0.5


def remove(target: Target, place: ReleaseName, seconds: float, *, crds: bool, yes: bool) -> None:
    """Uninstall; raises where it can't be done, or isn't confirmed."""
    cluster = connect(target)
    helm = Helm(target, place.namespace, place.release, seconds)
    before, crd = helm.current(), cluster.find(CRDS.path(name=CRD))
    if before is None and not (crds and crd):
        raise ClusterError(
            f"there is no release {place.release} in namespace {place.namespace}{_elsewhere(crd, place)}"
        )
    pipelines = _pipelines(cluster)
    if crds and crd and not yes:
        _confirm(pipelines, cluster.label)
    with interruptible():
        if before is not None:
            helm.uninstall(wait=True)
            click.echo(f"release {place.release} in namespace {place.namespace} is gone")
        if crds and crd:
            cluster.delete(CRDS.path(name=CRD))
            _wait_for_crd(cluster, seconds)
            click.echo(f"{CRD} and {count(len(pipelines), 'pipeline')} are gone")
    _say_what_stays(cluster, place, [] if crds else pipelines)


def _elsewhere(crd: Live | None, place: ReleaseName) -> str:
    """Return where else it may be, or what is left of it."""
    other = owner(crd) if crd else None
    if other == place:
        return ", but its CRD is still there: dynamo uninstall --crds removes it, with every pipeline"
    if other is None:
        return ": helm list -A shows what there is"
    return f": the CRD is of another one: dynamo uninstall --release {other.release} -n {other.namespace}"


def _pipelines(cluster: Cluster) -> list[Live]:
    try:
        return cluster.items(PIPELINES, None)
    except RefusedError as refused:
        if refused.crd_missing:
            return []
        raise


def _confirm(pipelines: Sequence[Live], label: str) -> None:
    names = [f"  {p['metadata']['namespace']}/{p['metadata']['name']}" for p in pipelines]
    listed = "\n".join(names[:20]) + (f"\n  and {len(names) - 20} more" if len(names) > 20 else "")
    question = f"This deletes the CRD and {count(len(names), 'pipeline')} of {label}"
    if not sys.stdin.isatty():
        raise ClusterError(f"{question}: confirm with --yes")
    click.echo(f"{question}{':' if names else '.'}\n{listed}".rstrip())
    if not click.confirm("Go on?"):
        raise ClusterError("not confirmed: nothing was removed")


def _wait_for_crd(cluster: Cluster, seconds: float) -> None:
    end = time.monotonic() + seconds
    while cluster.find(CRDS.path(name=CRD)) is not None:
        if time.monotonic() >= end:
            raise ClusterError(f"{CRD} is still there after {seconds:.0f} s: a pipeline with a finalizer may hold it")
        time.sleep(_LOOK_EVERY)


def _say_what_stays(cluster: Cluster, place: ReleaseName, pipelines: Sequence[Live]) -> None:
    kept = cluster.find(CRDS.path(name=CRD)) is not None
    labels = f"app.kubernetes.io/instance={place.release},app.kubernetes.io/component=etcd"
    claims = cluster.visible(resource_of("PersistentVolumeClaim"), place.namespace, labelSelector=labels)
    lines = what_stays(kept, pipelines, claims)
    if lines:
        click.echo("\nWhat stays:")
        for line in lines:
            click.echo(f"  {line}")
