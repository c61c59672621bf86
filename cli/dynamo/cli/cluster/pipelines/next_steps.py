"""What is said of a pipeline that serves: model, URL, and lines to paste that work from here. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dynamo.cli.cluster.kubeconfig import Target
from dynamo.cli.cluster.pipelines.locate import Location
from dynamo.cli.cluster.pipelines.progress import PipelineProgress
from dynamo.cli.local.next_steps import Served, curl


def lines(progress: PipelineProgress, location: Location, served: Served, target: Target) -> Iterator[str]:
    """Yield the lines of the whole greeting."""
    routable, wanted = progress.workers
    missing = "" if wanted else "   (no workers: replicas is 0)"
    missing = missing if routable >= wanted else f"   ({routable} of {wanted} workers so far)"
    address = location.reachable or location.in_cluster
    note = "" if location.reachable else "   (inside the cluster)"
    yield ""
    yield f"  model  {served.name}{missing}"
    yield f"  url    {address.url}/v1{note}"
    yield ""
    if location.reachable is None:
        yield from _from_here(location, progress, target)
        yield curl(served, f"http://127.0.0.1:{forward_port(location)}")
    else:
        yield curl(served, address.url)
    yield ""


def _from_here(location: Location, progress: PipelineProgress, target: Target) -> Iterator[str]:
    if location.pending:
        yield f"From here: {location.pending}; until then"
    else:
        yield "From here, keep this running:"
    yield f"  {forward_command(progress.name, progress.namespace, target)}"
    yield "and in another shell:"


def forward_command(name: str, namespace: str, target: Target) -> str:
    """Return the line that makes a pipeline answer on this machine."""
    return f"dynamo get-url {name} -n {namespace} --port-forward{target_flags(target)}"


def target_flags(target: Target) -> str:
    """Return the flags that lead another command to the same cluster, each after a space."""
    named = {"--context": target.context, "--kubeconfig": target.kubeconfig}
    return "".join(f" {flag} {shlex.quote(value)}" for flag, value in named.items() if value)


def forward_port(location: Location) -> int:
    """Return the same port on this machine as in the cluster, where an ordinary user may have it."""
    port = location.in_cluster.host_and_port[1]
    return port if port >= 1024 else 8000
