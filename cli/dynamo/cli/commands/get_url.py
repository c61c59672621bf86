"""`dynamo get-url NAME`: the URL that works from here, or what makes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dynamo.cli.commands.cluster_options import cluster_options, complete_pipeline

if TYPE_CHECKING:
    from dynamo.cli.cluster.kubeconfig import Target

EPILOG = """\b
Examples:
  curl $(dynamo get-url llama)/v1/models        through its Ingress, LoadBalancer or node port
  dynamo get-url llama --port-forward           on a port of this machine, until Ctrl-C
  dynamo get-url llama --port-forward --port 0  on a free one, which is printed
  dynamo get-url llama --in-cluster             for clients that run in the cluster

\b
Exit codes: 0 the URL was printed, 1 nothing answers from here, 2 usage, 130 interrupted.
"""


@click.command("get-url", epilog=EPILOG)
@click.argument("name", shell_complete=complete_pipeline)
@cluster_options()
@click.option("--in-cluster", is_flag=True, help="The URL for pods of the cluster.")
@click.option("--port-forward", is_flag=True, help="Forward a local port to the pipeline, until Ctrl-C.")
@click.option(
    "--port", type=click.IntRange(0, 65535),
    help="Port for --port-forward; 0 picks a free one. Default: the pipeline's.",
)  # fmt: skip
def get_url(name: str, target: Target, in_cluster: bool, port_forward: bool, port: int | None) -> None:
    """Print where NAME answers: the base URL, without /v1."""
    if port is not None and not port_forward:
        raise click.UsageError("--port goes with --port-forward")
    if in_cluster and port_forward:
        raise click.UsageError("either --in-cluster or --port-forward")
    from dynamo.cli.cluster.client import connect
    from dynamo.cli.cluster.pipelines.find_url import find_url

    cluster = connect(target)
    if port_forward:
        from dynamo.cli.cluster.pipelines.port_forward import forward_until_interrupted

        forward_until_interrupted(cluster, name, port)
    click.echo(find_url(cluster, name, target, in_cluster=in_cluster))
