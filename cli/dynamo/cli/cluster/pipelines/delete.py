"""Deletes pipelines and waits until their pods are gone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from dynamo.cli.cluster.client import Cluster
from dynamo.cli.cluster.errors import ClusterError
from dynamo.cli.cluster.kubeconfig import Target
from dynamo.cli.cluster.pipelines.documents import manifests, placed, read_text, report
from dynamo.cli.cluster.pipelines.follow import interruptible
from dynamo.cli.cluster.pipelines.status import pipeline_called
from dynamo.operator.api.load import PipelineFileError
from dynamo.operator.kube.resources import PIPELINES, PODS
from dynamo.operator.manifests import naming

_LOOK_EVERY: Final = 0.5
_REMIND_EVERY: Final = 10.0
Place = tuple[str, str]


def named_in(file: Path, target: Target, cluster: Cluster) -> list[Place]:
    """Return namespace and name of every pipeline of a file."""
    try:
        objects = manifests(*read_text(file))
    except PipelineFileError as error:
        raise report(error, file, "nothing was deleted") from None
    return [
        (document.namespace, document.name)
        for document in placed(objects, target.namespace, cluster.namespace)
        if document.is_pipeline
    ]


def delete_pipelines(
    cluster: Cluster, wanted: Sequence[Place], seconds: float | None, *, missing_is_fine: bool
) -> None:
    """Delete pipelines, and say of each what became of it; with `seconds`, wait that long for their pods to end."""
    deleted = []
    for namespace, name in wanted:
        if missing_is_fine and cluster.find(PIPELINES.path(namespace, name)) is None:
            click.echo(f"{namespace}/{name} isn't there")
            continue
        pipeline_called(cluster, namespace, name)
        cluster.delete(PIPELINES.path(namespace, name))
        click.echo(f"{namespace}/{name} deleted")
        deleted.append((namespace, name))
    if seconds is not None:
        with interruptible():
            _wait(cluster, deleted, seconds)


def _wait(cluster: Cluster, deleted: Sequence[Place], seconds: float) -> None:
    began = reminded = time.monotonic()
    while left := [text for place in deleted for text in _left(cluster, *place)]:
        now = time.monotonic()
        if now - began >= seconds:
            raise ClusterError(f"after {seconds:.0f} s these are still there: {', '.join(left)}")
        if now - reminded >= _REMIND_EVERY:
            reminded = now
            click.echo(f"waits for {', '.join(left)} ({now - began:.0f} s)")
        time.sleep(_LOOK_EVERY)


def _left(cluster: Cluster, namespace: str, name: str) -> list[str]:
    remaining = [f"pipeline {name}"] if cluster.find(PIPELINES.path(namespace, name)) else []
    pods = cluster.visible(PODS, namespace, labelSelector=f"{naming.PIPELINE}={name}")
    return remaining + [f"pod {pod['metadata']['name']}" for pod in pods]
