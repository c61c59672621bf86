"""The steps of `dynamo install`: look, ask, install, follow."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from dynamo.cli.cluster.client import Cluster, Live, connect
from dynamo.cli.cluster.diagnosis_facts import preflight
from dynamo.cli.cluster.discovery import Discovery
from dynamo.cli.cluster.errors import ClusterError
from dynamo.cli.cluster.kubeconfig import Target
from dynamo.cli.cluster.pipelines.events import event_lines
from dynamo.cli.cluster.pipelines.follow import follow, interruptible
from dynamo.cli.cluster.pipelines.next_steps import target_flags
from dynamo.cli.cluster.pipelines.progress import PipelinePhase, PipelineProgress
from dynamo.cli.cluster.pipelines.wait import EVENTS
from dynamo.cli.cluster.platform import permissions
from dynamo.cli.cluster.platform.helm import Helm, Release, chart_folder
from dynamo.cli.cluster.platform.state import (
    CRD,
    WORKLOADS,
    ReleaseName,
    adoption,
    new_sign_in,
    next_command,
    owner,
    platform_progress,
    selector,
    too_old,
    warnings,
    workload_part,
)
from dynamo.cli.cluster.platform.values import merge, read_files, set_all, value_at
from dynamo.cli.local.display import make_display
from dynamo.operator.kube.resources import PODS, Resource, resource_of

CRDS: Final = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_LAST_EVENTS: Final = 5
_OWN_BUSINESS: Final = (
    "no-namespace",
    "no-rights",
    "no-crd",
    "old-crd",
    "no-operator",
    "operator-off",
    "operator-down",
    "no-leader",
)
"""Findings that an installation mends, or has asked about already."""


class Wish(NamedTuple):
    """Command line of `dynamo install`, understood."""

    target: Target
    place: ReleaseName
    files: tuple[Path, ...]
    settings: tuple[tuple[str, bool], ...]
    reset_values: bool
    chart: str | None
    wait: bool
    seconds: float
    recover: bool
    is_bundled: bool = False
    """Whether the images come from a registry of the user's own, which must be named."""


class Ready(NamedTuple):
    """Installation that was checked: nothing stands in the way."""

    cluster: Cluster
    helm: Helm
    chart: Path
    before: Release | None
    values: dict[str, Any]
    manifests: list[Live]


def dry_run_of(wish: Wish) -> None:
    """Run the checks, and print the manifests on standard output."""
    import yaml

    ready = _prepare(wish)
    click.echo(yaml.safe_dump_all(ready.manifests, sort_keys=False, allow_unicode=True).rstrip())
    click.echo(f"+ {_doing(ready, wish.place)} (dry run: nothing was changed)", err=True)


def install_or_upgrade(wish: Wish) -> int:
    """Install or upgrade; returns the exit code."""
    with interruptible():
        ready = _prepare(wish)
        _adopt_crd(ready, wish.place)
        click.echo(f"+ {_doing(ready, wish.place)}")
        done = ready.helm.upgrade(ready.chart, ready.values)
        progress = _follow(ready, wish) if wish.wait else None
    for text in warnings(done.notes):
        click.echo(f"\n{text}", err=True)
    if progress is not None and progress.phase is not PipelinePhase.READY:
        _explain(ready, progress, wish)
        return 1
    watched = ((ready.values.get("operator") or {}).get("watchNamespaces") or [None])[0]
    click.echo("\nServe a first pipeline, which needs no GPU and downloads nothing:\n")
    click.echo(next_command(target_flags(wish.target), watched))
    return 0


def _prepare(wish: Wish) -> Ready:
    """Raise where something stands in the way; changes nothing but what --recover asks for."""
    cluster = connect(wish.target)
    chart = chart_folder(wish.chart)
    version = _check_version(cluster, chart)
    helm = Helm(wish.target, wish.place.namespace, wish.place.release, wish.seconds, version)
    administrator = _allowed(cluster, permissions.EVERYTHING)
    if not administrator:
        _require(cluster, permissions.for_helm(wish.place.namespace))
    before = _before(helm, wish)
    kept = before.values if before and not wish.reset_values else {}
    values = set_all(merge(kept, read_files(wish.files)), wish.settings)
    if wish.is_bundled:
        _check_registry(values)
    if kept:
        click.echo(
            f"+ keeps the values of revision {before.revision if before else 0}: {', '.join(sorted(kept))}", err=True
        )
    if before and (sentence := new_sign_in(before.computed, values, _defaults(chart))):
        raise ClusterError(sentence)
    manifests = helm.render(chart, values)
    needed = _needed(cluster, manifests, wish.place.namespace)
    if not administrator:
        _require(cluster, needed)
    click.echo("+ you may do all that it takes", err=True)
    preflight(cluster, _OWN_BUSINESS)
    return Ready(cluster, helm, chart, before, values, manifests)


def _check_registry(values: Mapping[str, Any]) -> None:
    """Raise where the values don't name the registry, or name images by digests that they don't have there."""
    if not value_at(values, "global", "imageRegistry"):
        raise ClusterError(
            "the cluster must know where the bundle's images are: push them with `dynamo bundle push FILE REGISTRY`, "
            "and add --set global.imageRegistry=REGISTRY"
        )
    pinned = [part for part in ("operator", "etcd", "nats") if value_at(values, part, "image", "digest")]
    if pinned:
        flags = " ".join(f"--set {part}.image.digest=" for part in pinned)
        raise ClusterError(f"the bundle's images have digests of their own: add {flags}")


def _doing(ready: Ready, place: ReleaseName) -> str:
    what = f"release {place.release} in namespace {place.namespace}"
    return f"upgrades {what} (revision {ready.before.revision})" if ready.before else f"installs {what}"


def _check_version(cluster: Cluster, chart: Path) -> str:
    """Return the server's version; raises where it is too old."""
    server = str(cluster.get("/version").get("gitVersion", ""))
    wanted = _kube_version(chart)
    if too_old(server, wanted):
        raise ClusterError(
            f"{cluster.label} is Kubernetes {server}, and the platform needs {wanted}: upgrade the cluster"
        )
    click.echo(f"+ {cluster.label} answers: Kubernetes {server}", err=True)
    return server


def _kube_version(chart: Path) -> str:
    """Return the versions of Kubernetes that a chart's folder takes; an archive is helm's to judge."""
    return str(_read(chart / "Chart.yaml").get("kubeVersion", ""))


def _defaults(chart: Path) -> dict[str, Any]:
    """Return the values that hold where nobody says otherwise; of an archive they aren't known."""
    return _read(chart / "values.yaml")


def _read(file: Path) -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load(file.read_text()) or {}) if file.is_file() else {}


def _before(helm: Helm, wish: Wish) -> Release | None:
    before = helm.current()
    if before is None or not before.is_stuck:
        return before
    if not wish.recover:
        raise ClusterError(
            f"release {wish.place.release} is {before.status}: another helm is at work on it, or was killed. "
            "If none is at work: dynamo install --recover"
        )
    helm.recover()
    return helm.current()


def _needed(cluster: Cluster, manifests: Sequence[Live], namespace: str) -> list[permissions.Access]:
    """Return what an installation takes; raises for a kind that the server doesn't know."""
    discovery = Discovery(cluster)

    def address(manifest: Mapping[str, Any]) -> tuple[Resource, bool]:
        known = discovery.find(manifest["apiVersion"], manifest["kind"])
        if known is None:
            raise ClusterError(
                f"{cluster.label} doesn't know {manifest['kind']} of {manifest['apiVersion']}, which the chart makes: "
                "install what brings it, or switch it off in the values"
            )
        return known.resource, known.namespaced

    return [*permissions.for_objects(manifests, address, namespace), *permissions.for_roles(manifests, namespace)]


def _require(cluster: Cluster, needed: Sequence[permissions.Access]) -> None:
    """Ask about each, and name all that are refused."""
    missing = [access for access in dict.fromkeys(needed) if not _allowed(cluster, access)]
    if missing:
        raise ClusterError(permissions.missing_sentence(missing, cluster.label))


def _allowed(cluster: Cluster, access: permissions.Access) -> bool:
    return bool((cluster.create(_REVIEWS, access.review()).get("status") or {}).get("allowed"))


def _adopt_crd(ready: Ready, place: ReleaseName) -> None:
    """Make a CRD ours that no living release owns; helm would refuse it otherwise."""
    if not any(m.get("kind") == CRDS.kind for m in ready.manifests):
        return
    path = CRDS.path(name=CRD)
    live = ready.cluster.find(path)
    if live is None or owner(live) == place:
        return
    other = owner(live)
    if other is not None and _is_there(ready, other):
        raise ClusterError(
            f"the platform is already installed as release {other.release} in namespace {other.namespace}: upgrade it "
            f"with --release {other.release} -n {other.namespace}, or leave its CRD alone with --set crds.install=false"
        )
    ready.cluster.merge(path, adoption(place))
    click.echo(f"+ takes over {CRD}, which {'a release that is gone' if other else 'another tool'} left", err=True)


def _is_there(ready: Ready, place: ReleaseName) -> bool:
    """Tell whether the release is there: Helm keeps a Secret for each revision."""
    labels = f"owner=helm,name={place.release}"
    secrets = Resource("v1", "Secret", "secrets")
    return bool(ready.cluster.items(secrets, place.namespace, labelSelector=labels))


def _follow(ready: Ready, wish: Wish) -> PipelineProgress:
    """Wait until every Deployment and StatefulSet of the release runs, or the time is up."""
    workloads = [m for m in ready.manifests if m["kind"] in WORKLOADS]
    namespace = wish.place.namespace

    def look() -> list[PipelineProgress]:
        parts = []
        for wanted in workloads:
            live = ready.cluster.find(resource_of(wanted["kind"]).path(namespace, wanted["metadata"]["name"]))
            pods = ready.cluster.visible(PODS, namespace, labelSelector=selector(wanted))
            parts.append(workload_part(wanted, live, pods))
        return [platform_progress(wish.place, parts)]

    display = make_display(sys.stdout)
    try:
        return follow(look, display, wish.seconds)[0]
    finally:
        display.close()


def _explain(ready: Ready, progress: PipelineProgress, wish: Wish) -> None:
    click.echo(f"Error: the platform doesn't run after {wish.seconds:.0f} s: {progress.message}", err=True)
    namespace = wish.place.namespace
    names = {pod["metadata"]["name"] for pod in ready.cluster.visible(PODS, namespace)}
    for line in event_lines(ready.cluster.visible(EVENTS, namespace), names, _LAST_EVENTS):
        click.echo(f"  {line}", err=True)
