"""The wait of `dynamo apply --wait`: progress, then where each pipeline answers, or why it doesn't."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from dynamo.cli.cluster.client import Cluster
from dynamo.cli.cluster.errors import ClusterError
from dynamo.cli.cluster.kubeconfig import Target
from dynamo.cli.cluster.pipelines.events import event_lines
from dynamo.cli.cluster.pipelines.follow import Wanted, follow, interruptible, look_at
from dynamo.cli.cluster.pipelines.locate import SERVICES, locate
from dynamo.cli.cluster.pipelines.next_steps import lines
from dynamo.cli.cluster.pipelines.progress import PipelinePhase, PipelineProgress, failure
from dynamo.cli.local.display import make_display
from dynamo.cli.local.next_steps import Served, as_served
from dynamo.operator.kube.resources import PODS, Resource
from dynamo.operator.manifests import naming

EVENTS: Final = Resource("v1", "Event", "events")
DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
_MODELS_SECONDS: Final = 3.0
_LAST_EVENTS: Final = 5


def wait_and_greet(cluster: Cluster, wanted: Sequence[Wanted], seconds: float, target: Target) -> int:
    """Wait until all are ready, and greet; returns the exit code, 0 if all are."""
    display = make_display(sys.stdout)
    with interruptible():
        try:
            progresses = follow(lambda: [look_at(cluster, pipeline) for pipeline in wanted], display, seconds)
        finally:
            display.close()
    for progress in progresses:
        if progress.phase is PipelinePhase.READY:
            _greet(cluster, progress, target)
        else:
            _explain(cluster, progress, seconds)
    return 0 if all(progress.phase is PipelinePhase.READY for progress in progresses) else 1


def _greet(cluster: Cluster, progress: PipelineProgress, target: Target) -> None:
    location = locate(cluster, progress.name, progress.namespace, progress.url)
    if location is None:  # a pipeline of another operator: its status alone speaks
        click.echo(f"{progress.namespace}/{progress.name} is ready")
        return
    for line in lines(progress, location, served(cluster, progress), target):
        click.echo(line)


def served(cluster: Cluster, progress: PipelineProgress) -> Served:
    """Return the model as the frontend itself lists it, through the API server; else what the status says."""
    service = naming.part_name(progress.name, naming.FRONTEND)
    path = f"{SERVICES.path(progress.namespace, f'http:{service}:http', 'proxy')}/v1/models"
    try:
        answer = cluster.request("GET", path, {}, read_seconds=_MODELS_SECONDS)
    except ClusterError:
        return Served(progress.model)
    models: list[Mapping[str, Any]] = [m for m in answer.get("data") or [] if isinstance(m, dict)]
    listed = next((m for m in models if m.get("id") == progress.model), models[0] if models else None)
    return Served(progress.model) if listed is None else as_served(listed)


def _explain(cluster: Cluster, progress: PipelineProgress, seconds: float) -> None:
    """Print the sentence, then what the cluster last said of it."""
    click.echo(f"Error: {failure(progress, seconds)}", err=True)
    for line in last_events(cluster, progress.namespace, progress.name, _LAST_EVENTS):
        click.echo(f"  {line}", err=True)
    if progress.phase is PipelinePhase.UNSEEN:
        for line in _operators(cluster):
            click.echo(f"  {line}", err=True)


def last_events(cluster: Cluster, namespace: str, name: str, count: int) -> list[str]:
    """Return the last events of a pipeline and its pods, oldest first."""
    pods = cluster.visible(PODS, namespace, labelSelector=f"{naming.PIPELINE}={name}")
    names = {name, *(pod["metadata"]["name"] for pod in pods)}
    return event_lines(cluster.visible(EVENTS, namespace), names, count)


def _operators(cluster: Cluster) -> list[str]:
    deployments = cluster.visible(
        DEPLOYMENTS, None, labelSelector="app.kubernetes.io/part-of=dynamo,app.kubernetes.io/component=operator"
    )
    return [
        f"operator {d['metadata']['namespace']}/{d['metadata']['name']}: "
        f"{d.get('status', {}).get('readyReplicas', 0)} of {d.get('spec', {}).get('replicas', 1)} ready"
        for d in deployments
    ]
