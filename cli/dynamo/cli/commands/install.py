"""`dynamo install`: the platform's chart, checked first, installed or upgraded, and followed until it runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo.cli.commands.cluster_options import SPAN, cluster_options

if TYPE_CHECKING:
    from dynamo.cli.cluster.kubeconfig import Target

NAMESPACE = "dynamo"
RELEASE = "dynamo"

EPILOG = """\b
Examples:
  dynamo install                                   operator, CRD, etcd and NATS in namespace dynamo
  dynamo install --set operator.replicaCount=2     again: an upgrade; values of the last time are kept
  dynamo install -f values.yaml --timeout 10m
  dynamo install --set global.imageRegistry=registry.example.com
  dynamo install --bundle dynamo.tar --set global.imageRegistry=registry.example.com/dynamo
  dynamo install --dry-run > platform.yaml         checks everything, prints the manifests, changes nothing

\b
Needs helm (3.8 or later) on PATH. Every value: charts/dynamo-platform/README.md.
Exit codes: 0 installed (and running), 1 failed or not running in time, 2 usage, 130 interrupted.
"""


@click.command("install", epilog=EPILOG)
@cluster_options(f"Namespace of the platform, made if it isn't there. Default: {NAMESPACE}.")
@click.option("--release", default=RELEASE, show_default=True, help="Helm's name of the installation.")
@click.option(
    "-f",
    "--values",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="File with values; may be given again.",
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One value, as helm's --set.")
@click.option("--set-string", "texts", multiple=True, metavar="KEY=VALUE", help="One value that stays text.")
@click.option("--reset-values", is_flag=True, help="Forget the values of the last time.")
@click.option(
    "--chart",
    type=click.Path(exists=True),
    help="Another chart, as a folder or an archive. Default: the one that came with dynamo.",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Bundle that the chart comes from, checked first; its images are in a registry (dynamo bundle push).",
)
@click.option(
    "--bundle-key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Public key: check who made the bundle, by cosign.",
)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until everything runs.")
@click.option("--timeout", type=SPAN, default="5m", show_default=True, help="How long to wait.")
@click.option("--recover", is_flag=True, help="First undo what a killed helm left in the middle.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the manifests, change nothing.")
def install(
    target: Target,
    release: str,
    files: tuple[Path, ...],
    assignments: tuple[str, ...],
    texts: tuple[str, ...],
    reset_values: bool,
    chart: str | None,
    bundle: Path | None,
    bundle_key: Path | None,
    wait: bool,
    timeout: float,
    recover: bool,
    dry_run: bool,
) -> None:
    """Install operator, CRD, etcd and NATS with helm; where they are installed, upgrade them.

    Looks first whether the cluster answers, is new enough, and allows you what it takes.
    """
    from dynamo.cli.cluster.platform.install import Wish, dry_run_of, install_or_upgrade
    from dynamo.cli.cluster.platform.state import ReleaseName

    place = ReleaseName(release, target.namespace or NAMESPACE)
    settings = (*((text, False) for text in assignments), *((text, True) for text in texts))
    if bundle_key and not bundle:
        raise click.UsageError("--bundle-key belongs to a --bundle")
    if bundle and chart:
        raise click.UsageError("--bundle brings its own chart: leave out --chart")
    with _chart_of(bundle, bundle_key) as bundled:
        wish = Wish(
            target, place, files, settings, reset_values, bundled or chart, wait, timeout, recover, bool(bundle)
        )
        if dry_run:
            dry_run_of(wish)
        else:
            raise SystemExit(install_or_upgrade(wish))


@contextmanager
def _chart_of(bundle: Path | None, key: Path | None) -> Iterator[str | None]:
    """Check a bundle, and lay its chart down for as long as it is needed; None where there is no bundle."""
    if bundle is None:
        yield None
        return
    from dynamo.cli.bundle.archive import Bundle
    from dynamo.cli.bundle.command import verified
    from dynamo.cli.bundle.contents import chart_name
    from dynamo.cli.bundle.platform_chart import unpack

    with Bundle(bundle) as opened, tempfile.TemporaryDirectory(prefix="dynamo-install-") as folder:
        verified(opened, key)
        yield str(unpack(opened.read(chart_name(opened)), Path(folder)))
