"""`dynamo apply FILE`: server-side apply, and a wait that shows what happens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo.cli.commands.cluster_options import SPAN, cluster_options

if TYPE_CHECKING:
    from dynamo.cli.cluster.kubeconfig import Target

EPILOG = """\b
Examples:
  dynamo apply pipeline.yaml --wait               until it serves; prints the URL and a curl line
  dynamo apply pipeline.yaml -n team-a --dry-run  what the cluster would say, nothing changed
  helm template … | dynamo apply - --wait --timeout 20m
  dynamo apply pipeline.yaml --force-conflicts    take over fields that others own

\b
Exit codes: 0 applied (with --wait: ready), 1 refused, stalled or not ready in time, 2 usage, 130 interrupted.
"""


@click.command("apply", epilog=EPILOG)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@cluster_options("Namespace for objects that name none. Default: the context's.")
@click.option("-w", "--wait", is_flag=True, help="Wait until every pipeline of FILE is ready.")
@click.option("--timeout", type=SPAN, default="10m", show_default=True, help="How long to wait: 90s, 10m, 1h.")
@click.option("--force-conflicts", is_flag=True, help="Take over fields that another manager (kubectl, Argo CD) owns.")
@click.option("--dry-run", is_flag=True, help="Let the cluster check everything, and change nothing.")
def apply(file: Path, target: Target, wait: bool, timeout: float, force_conflicts: bool, dry_run: bool) -> None:
    """Apply the pipelines of FILE, and what else is in it (a Secret, say). `-` reads standard input.

    The file is checked first with the rules of `dynamo validate`. Only fields that the file
    names are set; what others set besides stays as it is.
    """
    from dynamo.cli.cluster.client import connect
    from dynamo.cli.cluster.diagnosis_facts import preflight
    from dynamo.cli.cluster.pipelines.apply import send
    from dynamo.cli.cluster.pipelines.documents import manifests, pipelines_of, placed, read_text, report
    from dynamo.operator.api.load import PipelineFileError

    try:
        documents = manifests(*read_text(file))
    except PipelineFileError as error:
        raise report(error, file, "nothing was applied") from None
    cluster = connect(target)
    objects = placed(documents, target.namespace, cluster.namespace)
    # The answer to the first object says these.
    preflight(cluster, ("no-crd", "no-namespace", "no-rights"), pipelines_of(objects))
    wanted = send(cluster, objects, force=force_conflicts, dry_run=dry_run)
    if wait and not dry_run:
        from dynamo.cli.cluster.pipelines.wait import wait_and_greet

        raise SystemExit(wait_and_greet(cluster, wanted, timeout, target))
