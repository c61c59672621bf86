"""`dynamo delete NAME…`: pipelines, and everything that the operator made for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo.cli.commands.cluster_options import SPAN, cluster_options, complete_pipeline

if TYPE_CHECKING:
    from dynamo.cli.cluster.kubeconfig import Target

EPILOG = """\b
Examples:
  dynamo delete llama
  dynamo delete -f pipeline.yaml          the pipelines of a file, and nothing else that is in it
  dynamo delete llama --no-wait

\b
Exit codes: 0 gone, 1 failed or still there at --timeout, 2 usage, 130 interrupted.
"""


@click.command("delete", epilog=EPILOG)
@click.argument("names", nargs=-1, shell_complete=complete_pipeline)
@cluster_options()
@click.option(
    "-f", "--file", type=click.Path(path_type=Path, allow_dash=True), help="Delete the pipelines of this file."
)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until their pods are gone.")
@click.option(
    "--timeout", type=SPAN, default="15m", show_default=True, help="How long to wait; running streams may take minutes."
)
@click.option("--ignore-not-found", is_flag=True, help="Succeed if a pipeline doesn't exist.")
def delete(
    names: tuple[str, ...], target: Target, file: Path | None, wait: bool, timeout: float, ignore_not_found: bool
) -> None:
    """Delete the pipelines NAMES. Their workers end their streams first; claims with models go too."""
    if bool(names) == bool(file):
        raise click.UsageError("say NAMES, or -f FILE")
    from dynamo.cli.cluster.client import connect
    from dynamo.cli.cluster.pipelines.delete import delete_pipelines, named_in

    cluster = connect(target)
    wanted = named_in(file, target, cluster) if file else [(cluster.namespace, name) for name in names]
    delete_pipelines(cluster, wanted, timeout if wait else None, missing_is_fine=ignore_not_found)
