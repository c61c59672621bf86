"""`dynamo status [NAME]`: pipelines of a cluster, and one of them closely."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dynamo.cli.commands.cluster_options import cluster_options, complete_pipeline

if TYPE_CHECKING:
    from dynamo.cli.cluster.kubeconfig import Target

EPILOG = """\b
Examples:
  dynamo status                          pipelines of the namespace
  dynamo status -A -o wide               of all namespaces, with more columns
  dynamo status llama                    one: its parts, why they wait, the last events
  dynamo status llama && ./use-it        exit code 0 only if it is ready
  dynamo status -A -o json | jq -r '.items[].status.url'
  dynamo status --watch                  goes on as things change

\b
Exit codes: 0 well, 1 failed, or NAME isn't ready, 2 usage, 130 interrupted.
What `dynamo up` runs on this machine: dynamo ps.
"""


@click.command("status", epilog=EPILOG)
@click.argument("name", required=False, shell_complete=complete_pipeline)
@cluster_options()
@click.option("-A", "--all-namespaces", is_flag=True, help="Of all namespaces.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json", "yaml"]), default="table", show_default=True,
    help="Format.",
)  # fmt: skip
@click.option("-w", "--watch", is_flag=True, help="Go on as things change, until Ctrl-C.")
def status(name: str | None, target: Target, all_namespaces: bool, output: str, watch: bool) -> None:
    """List the pipelines of a cluster, or show NAME: its parts, what waits and why, its last events."""
    if name and all_namespaces:
        raise click.UsageError("NAME is in one namespace: say which with -n, without -A")
    from dynamo.cli.cluster.client import connect
    from dynamo.cli.cluster.pipelines.status import Look, look, watch_on

    wanted = Look(name, None if all_namespaces else target.namespace, all_namespaces, output)
    cluster = connect(target)
    if watch:
        watch_on(cluster, wanted)
    raise SystemExit(look(cluster, wanted))
