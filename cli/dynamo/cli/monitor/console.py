"""`dynamo console`: the address of the page for browsers, of what is up here or of a frontend by its URL."""

from __future__ import annotations

import click

EPILOG = """\b
Examples:
  dynamo console                              addresses of what is up here
  dynamo console --open                       and in the browser
  dynamo console http://gpu-1:8000            of a frontend elsewhere
  dynamo get-url NAME -n NAMESPACE --port-forward     of a cluster: open what it
                                              prints, without /v1

\b
Exit codes: 0 there is one, 1 nothing serves, or its console is off.
The asyncio tasks of a process are another command's: dynamo tasks.
"""


@click.command("console", epilog=EPILOG)
@click.argument("url", required=False)
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
def console(url: str | None, opens: bool) -> None:
    """Print where the console is: a page to chat with models and watch workers."""
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


def _frontends(url: str | None) -> list[str]:
    """Return the addresses to look at, without a slash at their end."""
    if url is not None:
        from dynamo.cli.load_test.client import api_url

        return [api_url(url).removesuffix("/v1")]
    from dynamo.cli.monitor.targets import runs_that_serve

    return [run.url.rstrip("/") for run in runs_that_serve()]
