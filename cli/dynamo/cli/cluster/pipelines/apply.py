"""Applies the objects of a file one by one, and says of each what became of it."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.discovery import Discovery
from dynamo.cli.cluster.errors import ClusterError, RefusedError
from dynamo.cli.cluster.pipelines.documents import Named
from dynamo.cli.cluster.pipelines.follow import Wanted
from dynamo.operator.kube.resources import PIPELINES

_HOPELESS = (401,)
"""The next object would be answered the same."""


def send(cluster: Cluster, objects: Sequence[Named], *, force: bool, dry_run: bool) -> list[Wanted]:
    """Apply all that can be applied; returns the pipelines that are there now. Raises if something could not be."""
    discovery, failed, wanted = Discovery(cluster), 0, []
    paths = [_path(discovery, document) for document in objects]
    for document, path in zip(objects, paths, strict=True):
        try:
            before = cluster.find(path)
            live = cluster.apply(path, document.manifest, force=force, dry_run=dry_run)
        except RefusedError as refused:
            if refused.crd_missing or refused.status in _HOPELESS or len(objects) == 1:
                raise
            failed += 1
            click.echo(f"{_called(document)}: {refused.message}", err=True)
            continue
        click.echo(f"{_called(document)} {outcome(before, live)}{' (dry run)' if dry_run else ''}")
        if document.is_pipeline:
            wanted.append(Wanted(document.namespace, document.name, live["metadata"].get("uid", "")))
    if failed:
        raise ClusterError(f"{failed} of {len(objects)} objects {'was' if failed == 1 else 'were'} refused")
    return wanted


def _path(discovery: Discovery, document: Named) -> str:
    if document.is_pipeline:
        return PIPELINES.path(document.namespace, document.name)
    return discovery.path(document.manifest, document.namespace)


def outcome(before: Live | None, after: Live) -> str:
    """Say in kubectl's words what became of an object."""
    if before is None:
        return "created"
    same = before["metadata"].get("resourceVersion") == after["metadata"].get("resourceVersion")
    return "unchanged" if same else "configured"


def _called(document: Named) -> str:
    return f"{str(document.manifest['kind']).lower()} {document.name}"
