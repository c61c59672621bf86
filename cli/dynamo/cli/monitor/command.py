"""`dynamo top [URL]`: models and workers with their load, again and again."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from dynamo.cli.local.state import running, state_home
from dynamo.cli.monitor.load import FrontendLoad

if TYPE_CHECKING:
    from dynamo.cli.monitor.frontend import Frontend
    from dynamo.cli.monitor.rates import Scrape

EPILOG = """\b
Examples:
  dynamo top                              all that is up on this machine
  dynamo top http://localhost:8000        one frontend
  dynamo top "$(dynamo get-url NAME)"     one of a cluster
  dynamo top --once -o json | jq .models

\b
Times are of the interval's requests, estimated from the buckets of
/metrics. Exit codes: 0 well, 1 nothing could be read, 130 interrupted.
"""


@click.command("top", epilog=EPILOG)
@click.argument("url", required=False)
@click.option(
    "-n", "--interval", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True,
    help="Seconds between two scrapes.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Print once and end, as it does where the output is no terminal.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Format."
)
@click.option("--key-env", default="OPENAI_API_KEY", show_default=True, help="Variable that holds the API key.")
def top(url: str | None, interval: float, once: bool, output: str, key_env: str) -> None:
    """Show models and workers with their load: all of this machine, or those of the frontend at URL."""
    scrapers = [_Scraper(*known) for known in frontends(url, os.environ.get(key_env, "").strip())]
    live = sys.stdout.isatty()
    for scraper in scrapers:
        scraper.begin()
    while True:
        time.sleep(interval)
        loads = [scraper.next() for scraper in scrapers]
        if output == "json":
            for load in loads:
                click.echo(msgspec.json.encode(load))
        else:
            _print(loads, clear=live and not once)
        if once or not (live or output == "json"):
            raise SystemExit(0 if any(load.error is None for load in loads) else 1)
        sys.stdout.flush()


def frontends(url: str | None, key: str) -> list[tuple[str, Frontend]]:
    """Return the frontend at a URL, or those of this machine with their pipelines; raises where there are none."""
    from dynamo.cli.load_test.client import api_url
    from dynamo.cli.monitor.frontend import Frontend

    if url is not None:
        return [("", Frontend(api_url(url).removesuffix("/v1"), key))]
    up = [run for run, alive in running(state_home(os.environ)) if alive]
    serving = [run for run in up if run.url]
    if up and not serving:
        raise click.ClickException(f"{up[0].pipeline} is still starting: `dynamo ps` shows how far it is")
    if not serving:
        raise click.ClickException(
            "nothing serves on this machine: start a pipeline with `dynamo up FILE`, or name a frontend by its URL"
        )
    return [(run.pipeline, Frontend(api_url(run.url).removesuffix("/v1"), key)) for run in serving]


class _Scraper:
    """One frontend, and the scrape before."""

    def __init__(self, pipeline: str, frontend: Frontend) -> None:
        self._pipeline, self._frontend = pipeline, frontend
        self._before: Scrape | None = None

    def begin(self) -> None:
        """Scrape for the first time; what can't be read yet is said by the next."""
        from dynamo.cli.monitor.frontend import FrontendError

        try:
            self._before = self._frontend.scrape()
        except FrontendError:
            self._before = None

    def next(self) -> FrontendLoad:
        """Scrape again; return the load since the scrape before."""
        from dynamo.cli.monitor.frontend import FrontendError
        from dynamo.cli.monitor.rates import load_between

        url = self._frontend.url
        try:
            now, listed = self._frontend.scrape(), self._frontend.workers()
        except FrontendError as error:
            self._before = None
            return FrontendLoad(self._pipeline, url, error=str(error))
        models = load_between(self._before or now, now)
        self._before = now
        return FrontendLoad(self._pipeline, url, models, listed.workers, listed.total)


def _print(loads: Sequence[FrontendLoad], *, clear: bool) -> None:
    from dynamo.cli.monitor.view import lines
    from dynamo.runtime.process.printable import visible

    text: list[str] = []
    for load in loads:
        text += [""] if text else []
        text += [f"{load.pipeline}  {load.url}"] if load.pipeline else []
        text += lines(load.models, load.workers, load.workers_total) if load.error is None else [visible(load.error)]
    if clear:
        size = shutil.get_terminal_size()
        room = max(3, size.lines - 1)
        text = [line[: size.columns] for line in text]
        text = text if len(text) <= room else [*text[: room - 1], f"... {len(text) - room + 1} lines more: -o json"]
        click.clear()
    click.echo("\n".join(text))
