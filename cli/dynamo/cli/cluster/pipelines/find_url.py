"""The one URL of `dynamo get-url`, or the sentence that says why there is none from here."""

from __future__ import annotations

from dynamo.cli.cluster.client import Cluster, Target
from dynamo.cli.cluster.greeting import forward_command
from dynamo.cli.cluster.locate import Location, locate
from dynamo.cli.cluster.looking import one
from dynamo.cli.cluster.progress import progress
from dynamo.cli.cluster.trouble import ClusterError


def located(cluster: Cluster, name: str) -> Location:
    """Where a pipeline is; raises where it isn't there, or has nothing that could answer yet."""
    live = one(cluster, cluster.namespace, name)
    said = progress(live)
    found = locate(cluster, name, cluster.namespace, said.url)
    if found is None:
        why = f"{said.reason}: {said.message}" if said.reason else "no operator has looked at it"
        raise ClusterError(f"{cluster.namespace}/{name} has no Service yet ({why}): see dynamo status {name}")
    return found


def find_url(cluster: Cluster, name: str, target: Target, *, in_cluster: bool) -> str:
    """A base URL without `/v1`."""
    found = located(cluster, name)
    if in_cluster:
        return found.in_cluster.url
    if found.reachable is None:
        raise ClusterError(nothing_answers(found, forward_command(name, cluster.namespace, target)))
    return found.reachable.url


def nothing_answers(found: Location, command: str) -> str:
    """Why not, and what to do."""
    if found.pending:
        why = found.pending
    elif found.tried:
        listed = ", ".join(f"{a.url} ({a.via})" for a in found.tried)
        why = f"nobody answers from here at {listed}"
    else:
        why = f"it answers inside the cluster only, at {found.in_cluster.url}"
    return f"{why}. From here: {command}"
