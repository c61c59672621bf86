"""The wait of `dynamo apply --wait`: progress, then where each pipeline answers, or why it doesn't."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from dynamo.cli.cluster.client import Cluster, Target
from dynamo.cli.cluster.events import event_lines
from dynamo.cli.cluster.follow import Wanted, follow, interruptible, look_at
from dynamo.cli.cluster.greeting import lines
from dynamo.cli.cluster.locate import SERVICES, locate
from dynamo.cli.cluster.progress import Phase, Progress, failure
from dynamo.cli.cluster.trouble import ClusterError
from dynamo.cli.local.greeting import Served, as_served
from dynamo.cli.local.show import make_display
from dynamo.operator.kinds import PODS, Resource
from dynamo.operator.resources import naming

EVENTS: Final = Resource("v1", "Event", "events")
DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
_MODELS_SECONDS: Final = 3.0
_LAST_EVENTS: Final = 5


def wait_and_greet(cluster: Cluster, wanted: Sequence[Wanted], seconds: float, target: Target) -> int:
    """The exit code: 0 if all are ready."""
    display = make_display(sys.stdout)
    with interruptible():
        try:
            found = follow(lambda: [look_at(cluster, each) for each in wanted], display, seconds)
        finally:
            display.close()
    for each in found:
        if each.phase is Phase.READY:
            _greet(cluster, each, target)
        else:
            _explain(cluster, each, seconds)
    return 0 if all(each.phase is Phase.READY for each in found) else 1


def _greet(cluster: Cluster, found: Progress, target: Target) -> None:
    location = locate(cluster, found.name, found.namespace, found.url)
    if location is None:  # a pipeline of another operator: its status alone speaks
        click.echo(f"{found.namespace}/{found.name} is ready")
        return
    for line in lines(found, location, served(cluster, found), target):
        click.echo(line)


def served(cluster: Cluster, found: Progress) -> Served:
    """The model as the frontend itself lists it, through the API server; else what the status says."""
    service = naming.part_name(found.name, naming.FRONTEND)
    path = f"{SERVICES.path(found.namespace, f'http:{service}:http', 'proxy')}/v1/models"
    try:
        answer = cluster.request("GET", path, {}, read_seconds=_MODELS_SECONDS)
    except ClusterError:
        return Served(found.model)
    models: list[Mapping[str, Any]] = [m for m in answer.get("data") or [] if isinstance(m, dict)]
    listed = next((m for m in models if m.get("id") == found.model), models[0] if models else None)
    return Served(found.model) if listed is None else as_served(listed)


def _explain(cluster: Cluster, found: Progress, seconds: float) -> None:
    """The sentence, then what the cluster last said of it."""
    click.echo(f"Error: {failure(found, seconds)}", err=True)
    for line in last_events(cluster, found.namespace, found.name, _LAST_EVENTS):
        click.echo(f"  {line}", err=True)
    if found.phase is Phase.UNSEEN:
        for line in _operators(cluster):
            click.echo(f"  {line}", err=True)


def last_events(cluster: Cluster, namespace: str, name: str, count: int) -> list[str]:
    """Of a pipeline and its pods, oldest first."""
    pods = cluster.visible(PODS, namespace, labelSelector=f"{naming.PIPELINE}={name}")
    names = {name, *(pod["metadata"]["name"] for pod in pods)}
    return event_lines(cluster.visible(EVENTS, namespace), names, count)


def _operators(cluster: Cluster) -> list[str]:
    found = cluster.visible(
        DEPLOYMENTS, None, labelSelector="app.kubernetes.io/part-of=dynamo,app.kubernetes.io/component=operator"
    )
    return [
        f"operator {d['metadata']['namespace']}/{d['metadata']['name']}: "
        f"{d.get('status', {}).get('readyReplicas', 0)} of {d.get('spec', {}).get('replicas', 1)} ready"
        for d in found
    ]
