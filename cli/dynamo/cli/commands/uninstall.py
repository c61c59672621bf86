"""`dynamo uninstall`: the platform goes; what stays is said, and goes too where it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dynamo.cli.commands.cluster_options import SPAN, cluster_options
from dynamo.cli.commands.install import NAMESPACE, RELEASE

if TYPE_CHECKING:
    from dynamo.cli.cluster.kubeconfig import Target

EPILOG = """\b
Examples:
  dynamo uninstall                 the operator, etcd and NATS; says what stays
  dynamo uninstall --crds          also the CRD and with it every pipeline, after a question
  dynamo uninstall --crds --yes    without the question

\b
Exit codes: 0 gone, 1 failed or not confirmed, 2 usage, 130 interrupted.
"""


@click.command("uninstall", epilog=EPILOG)
@cluster_options(f"Namespace of the platform. Default: {NAMESPACE}.")
@click.option("--release", default=RELEASE, show_default=True, help="Helm's name of the installation.")
@click.option("--crds", is_flag=True, help="Also remove the CRD, and with it every pipeline of the cluster.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@click.option("--timeout", type=SPAN, default="5m", show_default=True, help="How long to wait until all is gone.")
def uninstall(target: Target, release: str, crds: bool, yes: bool, timeout: float) -> None:
    """Uninstall operator, etcd and NATS. The CRD and all pipelines stay, unless --crds."""
    from dynamo.cli.cluster.platform.state import ReleaseName
    from dynamo.cli.cluster.platform.uninstall import remove

    remove(target, ReleaseName(release, target.namespace or NAMESPACE), timeout, crds=crds, yes=yes)
