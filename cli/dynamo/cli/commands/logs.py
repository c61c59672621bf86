"""`dynamo logs NAME`: what the parts of a pipeline wrote, on this machine (now or in its last run) or in a cluster."""

from __future__ import annotations

import difflib
import heapq
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from dynamo.cli.commands.cluster_options import complete_context
from dynamo.cli.local.log_files import Follower, LogLine, read_lines
from dynamo.cli.local.state import is_running, state_home
from dynamo.runtime.process.printable import visible

if TYPE_CHECKING:
    from dynamo.cli.cluster.pipelines.pod_logs import PodLine

_POLL_EVERY = 0.2

EPILOG = """\b
Examples:
  dynamo logs                      everything
  dynamo logs worker-0 -f          one part, and its new lines
  dynamo logs worker --tail 20     all replicas of a component
  dynamo logs llama/frontend --since 5m

\b
In a cluster (with -n, --context or --kubeconfig):
  dynamo logs llama -n serving -f              all pods of a pipeline, and those that come
  dynamo logs llama/worker -n serving --since 5m
  dynamo logs llama-worker-1a2b3c-0 -n serving --previous
"""


_IN_A_CLUSTER = " (for a pipeline of a cluster add -n NAMESPACE)"


class Source(NamedTuple):
    """One log file."""

    pipeline: str
    part: str
    path: Path


def since_time(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Read `30s`, `5m`, `2h`, `1d` ago, or a time like 2026-11-21T10:00:00."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,5})([smhd])", value)
    if match:
        unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[match[2]]
        return datetime.now(UTC) - timedelta(**{unit: int(match[1])})
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except ValueError:
        text = f"{value!r} is neither a duration like 30s, 5m, 2h nor a time like 2026-11-21T10:00:00"
        raise click.BadParameter(text) from None


@click.command("logs", epilog=EPILOG)
@click.argument("name", required=False, shell_complete=lambda ctx, param, incomplete: complete_name(incomplete))
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they are written.")
@click.option("--since", callback=since_time, help="Print lines from the last 30s, 5m, 2h, or since a time.")
@click.option("--tail", type=click.IntRange(min=0), help="Print this many of the last lines.")
@click.option("--timestamps/--no-timestamps", "-t", default=False, help="Print the time before each line.")
@click.option("-n", "--namespace", help="In a cluster: the pipeline's namespace. Default: the context's.")
@click.option("--previous", "-p", is_flag=True, help="In a cluster: print the log from before a pod's last restart.")
@click.option("--context", shell_complete=complete_context, help="In a cluster: the context of the kubeconfig.")
@click.option("--kubeconfig", type=click.Path(dir_okay=False), help="In a cluster: the kubeconfig.")
def logs(
    name: str | None,
    follow: bool,
    since: datetime | None,
    tail: int | None,
    timestamps: bool,
    namespace: str | None,
    previous: bool,
    context: str | None,
    kubeconfig: str | None,
) -> None:
    """Print the log of NAME: a part (worker-0), a component (worker), a pipeline, or pipeline/part.

    NAME runs on this machine (`dynamo up`), or in a cluster with --namespace, --context or --kubeconfig.
    """
    if namespace or context or kubeconfig or previous:
        _cluster_logs(name, (kubeconfig, context, namespace), (since, tail, previous), follow, timestamps)
    else:
        _local_logs(name, follow, since, tail, timestamps)


def _cluster_logs(
    name: str | None,
    target: tuple[str | None, str | None, str | None],
    limits: tuple[datetime | None, int | None, bool],
    follow: bool,
    timestamps: bool,
) -> None:
    from dynamo.cli.cluster.client import connect
    from dynamo.cli.cluster.kubeconfig import Target
    from dynamo.cli.cluster.pipelines.pod_logs import Wanted, print_logs

    if name is None:
        raise click.UsageError("say which pipeline of the cluster: NAME, NAME/COMPONENT or a pod")

    def show(line: PodLine, prefixed: bool) -> None:
        stamp = f"{visible(line.at)} " if timestamps else ""
        click.echo(f"{stamp}{f'{visible(line.pod)} | ' if prefixed else ''}{visible(line.text, tabs=True)}")

    print_logs(connect(Target(*target)), Wanted(name, *limits), show, follow=follow)


def _local_logs(name: str | None, follow: bool, since: datetime | None, tail: int | None, timestamps: bool) -> None:
    home = state_home(os.environ)
    sources = select(list(available(home)), name, lambda pipeline: is_running(home / pipeline))
    prefixed = len(sources) > 1
    followers = [Follower(s.path, _label(s, sources)) for s in sources] if follow else []
    past = merge(sources, since)
    for line in past if tail is None else deque(past, maxlen=tail):
        _print(line, prefixed, timestamps)
    _follow(followers, lambda: any(is_running(home / s.pipeline) for s in sources), prefixed, timestamps)


def available(home: Path) -> Iterator[Source]:
    """Yield every log there is, of running pipelines and of the last run of others."""
    for path in sorted(home.glob("*/logs/*.log")):
        yield Source(path.parent.parent.name, path.stem, path)


def complete_name(begun: str) -> list[str]:
    """Offer names to Tab."""
    sources = list(available(state_home(os.environ)))
    names = {s.pipeline for s in sources} | {s.part for s in sources} | {_component(s) for s in sources}
    return sorted(name for name in names if name.startswith(begun))


def select(
    sources: list[Source], name: str | None, is_up: Callable[[str], bool] = lambda pipeline: False
) -> list[Source]:
    """Return those that `name` means, of pipelines that are up if it means any of these.

    Ends the command where it means none, or parts of several pipelines.
    """
    if not sources:
        raise click.ClickException(f"there are no logs: start a pipeline with `dynamo up FILE`{_IN_A_CLUSTER}")
    if name is None:
        return _up_first(sources, is_up)
    selected = [s for s in sources if name in (s.pipeline, s.part, _component(s), f"{s.pipeline}/{s.part}")]
    selected = _up_first(selected, is_up)
    pipelines = sorted({s.pipeline for s in selected})
    if len(pipelines) > 1:
        choices = ", ".join(f"{p}/{name}" for p in pipelines)
        raise click.ClickException(f"{name} is part of several pipelines: say which ({choices})")
    return selected or _unknown(sources, name)


def _up_first(sources: list[Source], is_up: Callable[[str], bool]) -> list[Source]:
    """Return those of pipelines that are up, or where none is, all: the last runs."""
    up = {pipeline for pipeline in {s.pipeline for s in sources} if is_up(pipeline)}
    return [s for s in sources if s.pipeline in up] or sources


def _component(source: Source) -> str:
    return re.sub(r"(-\d+)+$", "", source.part)


def _unknown(sources: list[Source], name: str) -> list[Source]:
    known = sorted({s.part for s in sources} | {s.pipeline for s in sources})
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    raise click.ClickException(f"nothing on this machine is called {name!r}: {hint}{_IN_A_CLUSTER}")


def _label(source: Source, sources: list[Source]) -> str:
    several = len({s.pipeline for s in sources}) > 1
    return f"{source.pipeline}/{source.part}" if several else source.part


def merge(sources: list[Source], since: datetime | None) -> Iterator[LogLine]:
    """Merge the lines of all sources by time."""
    lines: Iterable[LogLine] = heapq.merge(*(read_lines(s.path, _label(s, sources)) for s in sources))
    return (line for line in lines if since is None or line.at >= since)


def _print(line: LogLine, prefixed: bool, timestamps: bool) -> None:
    stamp = f"{line.at.isoformat(timespec='milliseconds')} " if timestamps else ""
    click.echo(f"{stamp}{f'{line.part} | ' if prefixed else ''}{visible(line.text, tabs=True)}")


def _follow(followers: list[Follower], alive: Callable[[], bool], prefixed: bool, timestamps: bool) -> None:
    """Print what comes until the pipeline ends, or Ctrl-C."""
    going = bool(followers)
    while going:
        going = alive()
        for line in sorted(line for follower in followers for line in follower.poll()):
            _print(line, prefixed, timestamps)
        if going:
            time.sleep(_POLL_EVERY)
    for follower in followers:
        follower.close()
