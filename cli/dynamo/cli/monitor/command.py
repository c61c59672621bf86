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

from dynamo.cli.monitor.load import FrontendLoad, WorkerList, merged
from dynamo.cli.monitor.targets import FrontendGroup, frontend_groups, pipeline_options

if TYPE_CHECKING:
    from dynamo.cli.cluster.kubeconfig import Target
    from dynamo.cli.monitor.rates import Scrape

EPILOG = """\b
Examples:
  dynamo top                              all that is up on this machine
  dynamo top http://localhost:8000        one frontend
  dynamo top --pipeline NAME              all frontends of one of a cluster
  dynamo top --once -o json | jq .models

\b
The frontends of a pipeline are summed. Times are of the interval's
requests, estimated from the buckets of /metrics. Exit codes: 0 well,
1 nothing could be read, 130 interrupted.
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
@pipeline_options
def top(
    url: str | None, interval: float, once: bool, output: str, key_env: str, pipeline: str | None, target: Target
) -> None:
    """Show models and workers with their load: all of this machine, one URL's, or a pipeline's of a cluster."""
    key = os.environ.get(key_env, "").strip()
    with frontend_groups(url, key, pipeline, target) as groups:
        _show([_Scraper(group) for group in groups], interval, once, output)


def _show(scrapers: Sequence[_Scraper], interval: float, once: bool, output: str) -> None:
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


class _Scraper:
    """The frontends of one pipeline, and each one's scrape before."""

    def __init__(self, group: FrontendGroup) -> None:
        self._group = group
        self._before: dict[str, Scrape] = {}

    def begin(self) -> None:
        """Scrape for the first time; what can't be read yet is said by the next."""
        self._look()

    def next(self) -> FrontendLoad:
        """Scrape again; return the load since the scrape before, of all that answer."""
        from dynamo.cli.monitor.rates import load_between

        before = self._before
        scrapes, lists, problems = self._look()
        pipeline, frontends = self._group.pipeline, self._group.frontends
        url = frontends[0].url
        if not scrapes:
            return FrontendLoad(pipeline, url, error="\n".join(dict.fromkeys(problems)), frontends=len(frontends))
        listed = merged(lists)
        models = load_between([(before.get(name, scrape), scrape) for name, scrape in scrapes.items()])
        return FrontendLoad(
            pipeline, url, models, listed.workers, listed.total, frontends=len(frontends), unanswered=problems
        )

    def _look(self) -> tuple[dict[str, Scrape], list[WorkerList], list[str]]:
        """Ask each for its metrics and its workers; return also why some don't answer."""
        from dynamo.cli.monitor.frontend import FrontendError

        scrapes: dict[str, Scrape] = {}
        lists: list[WorkerList] = []
        problems: list[str] = []
        for frontend in self._group.frontends:
            try:
                scrapes[frontend.url] = frontend.scrape()
                lists.append(frontend.workers())
            except FrontendError as error:
                scrapes.pop(frontend.url, None)
                problems.append(str(error))
        self._before = scrapes
        return scrapes, lists, problems


def _print(loads: Sequence[FrontendLoad], *, clear: bool) -> None:
    from dynamo.cli.monitor.view import lines
    from dynamo.runtime.process.printable import visible

    text: list[str] = []
    for load in loads:
        text += [""] if text else []
        several = f" and {load.frontends - 1} more" if load.frontends > 1 else ""
        text += [f"{load.pipeline}  {load.url}{several}"] if load.pipeline else []
        text += lines(load.models, load.workers, load.workers_total) if load.error is None else [visible(load.error)]
        text += [f"without this frontend: {visible(why)}" for why in load.unanswered]
    if clear:
        size = shutil.get_terminal_size()
        room = max(3, size.lines - 1)
        text = [line[: size.columns] for line in text]
        text = text if len(text) <= room else [*text[: room - 1], f"... {len(text) - room + 1} lines more: -o json"]
        click.clear()
    click.echo("\n".join(text))
