"""`dynamo console`: the page for browsers, of what is up here, of a frontend by its URL, or of a whole cluster."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dynamo.cli.commands.cluster_options import cluster_options
from dynamo.cli.ctrl_c import interrupt_on_ctrl_c

if TYPE_CHECKING:
    from dynamo.cli.cluster.kubeconfig import Target

_OPENS_WITHIN: Final = 30.0
"""Seconds after which the file with the key goes, whether a browser has read it or not."""
EPILOG = """\b
Examples:
  dynamo console                              addresses of what is up here
  dynamo console --open                       and in the browser
  dynamo console http://gpu-1:8000            of a frontend elsewhere
  dynamo console --cluster --open             all pipelines of a cluster
  dynamo console --cluster -n team-a          those of one namespace
  dynamo get-url NAME -n NAMESPACE --port-forward     one of a cluster: open
                                              what it prints, without /v1

\b
--cluster shows what your kubeconfig lets you read, to this machine and to
whoever has the key in the address. It changes nothing.
Exit codes: 0 there is one, 1 nothing serves, or its console is off,
130 interrupted. The asyncio tasks of a process: dynamo tasks.
"""


@click.command("console", epilog=EPILOG)
@click.argument("url", required=False)
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@click.option("--cluster", "whole", is_flag=True, help="Serve a page of a cluster's pipelines until Ctrl-C.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help="Port of --cluster's page."
)
@cluster_options("With --cluster: one namespace. Default: all.")
def console(url: str | None, opens: bool, whole: bool, port: int, target: Target) -> None:
    """Print where the console is: a page to chat with models and watch workers, or a cluster's pipelines."""
    if whole:
        if url is not None:
            raise click.UsageError("either a URL or --cluster")
        _serve_cluster(target, port, opens)
        return
    if target != type(target)() or port:
        raise click.UsageError("--namespace, --context, --kubeconfig and --port go with --cluster")
    from dynamo.cli.local.next_steps import has_console

    pages = [page for page in _frontends(url) if has_console(page)]
    if not pages:
        raise click.ClickException(
            "no frontend answered with a console: is it up (dynamo ps), and was it started without --no-console "
            "and --no-public-system-routes?"
        )
    for page in pages:
        click.echo(f"{page}/")
        if opens and click.launch(f"{page}/"):
            raise click.ClickException("no browser could be opened from here")


def _serve_cluster(target: Target, port: int, opens: bool) -> None:
    """Serve the page, with a key of this run in its address."""
    import secrets

    from dynamo.cli.cluster.client import connect
    from dynamo.cli.monitor.cluster_console.sampler import ClusterSampler
    from dynamo.cli.monitor.cluster_console.server import LOOPBACK, ClusterConsole, listen, serve

    cluster, key = connect(target), secrets.token_urlsafe(24)
    with contextlib.closing(listen(port)) as listener, contextlib.ExitStack() as leaving:
        port = listener.getsockname()[1]
        address = f"http://{LOOPBACK}:{port}/#key={key}"
        app = ClusterConsole(ClusterSampler(cluster, target.namespace).sample, key, port)
        click.echo(address)
        click.echo(f"Shows pipelines of {cluster.label}, as you may read them. Press Ctrl-C to stop.", err=True)
        if opens:
            app.on_viewer = leaving.callback(_open(address))
            click.echo("If no page opens in a browser, open the address above.", err=True)
        interrupt_on_ctrl_c()
        serve(app, listener)
    raise SystemExit(130)  # reached where whoever started us ignores Ctrl-C, as a shell does for what is behind `&`


def _open(address: str) -> Callable[[], None]:
    """Open an address that has a key in the browser; return what to call once it is open.

    By a private file, since other users see the words of a command. It lies in the home: some browsers see no other.
    """
    folder = tempfile.mkdtemp(prefix="dynamo-console-", dir=Path.home())
    page = Path(folder) / "open.html"
    page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">', encoding="ascii")

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)

    timer = threading.Timer(_OPENS_WITHIN, remove)
    timer.daemon = True
    timer.start()
    click.launch(page.as_uri())
    return remove


def _frontends(url: str | None) -> list[str]:
    """Return the addresses to look at, without a slash at their end."""
    if url is not None:
        from dynamo.cli.load_test.client import api_url

        return [api_url(url).removesuffix("/v1")]
    from dynamo.cli.monitor.targets import runs_that_serve

    return [run.url.rstrip("/") for run in runs_that_serve()]
