"""The one URL of `dynamo get-url`, or the sentence that says why there is none from here."""

from __future__ import annotations

from dynamo.cli.cluster.client import Cluster
from dynamo.cli.cluster.errors import ClusterError
from dynamo.cli.cluster.kubeconfig import Target
from dynamo.cli.cluster.pipelines.locate import Location, locate
from dynamo.cli.cluster.pipelines.next_steps import forward_command
from dynamo.cli.cluster.pipelines.progress import progress
from dynamo.cli.cluster.pipelines.status import pipeline_called


def located(cluster: Cluster, name: str) -> Location:
    """Find a pipeline; raises where it isn't there, or has nothing that could answer yet."""
    live = pipeline_called(cluster, cluster.namespace, name)
    said = progress(live)
    location = locate(cluster, name, cluster.namespace, said.url)
    if location is None:
        why = f"{said.reason}: {said.message}" if said.reason else "no operator has looked at it"
        raise ClusterError(f"{cluster.namespace}/{name} has no Service yet ({why}): see dynamo status {name}")
    return location


def find_url(cluster: Cluster, name: str, target: Target, *, in_cluster: bool) -> str:
    """Return the base URL, without `/v1`."""
    location = located(cluster, name)
    if in_cluster:
        return location.in_cluster.url
    if location.reachable is None:
        raise ClusterError(nothing_answers(location, forward_command(name, cluster.namespace, target)))
    return location.reachable.url


def nothing_answers(location: Location, command: str) -> str:
    """Say why nothing answers, and what to do."""
    if location.pending:
        why = location.pending
    elif location.tried:
        listed = ", ".join(f"{a.url} ({a.via})" for a in location.tried)
        why = f"nobody answers from here at {listed}"
    else:
        why = f"it answers inside the cluster only, at {location.in_cluster.url}"
    return f"{why}. From here: {command}"
