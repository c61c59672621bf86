"""What `dynamo status` prints, once or as things change."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, NoReturn

import click
import yaml
from rich.console import Console
from rich.live import Live as Screen
from rich.text import Text

from dynamo.cli.cluster.by_namespace import read_by_namespace
from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.errors import ClusterError, RefusedError, TooDeepError, no_namespace, no_pipeline
from dynamo.cli.cluster.pipelines.follow import interruptible
from dynamo.cli.cluster.pipelines.progress import PipelinePhase, phase_of, progress
from dynamo.cli.cluster.pipelines.tables import Row, bare, detail, rows
from dynamo.cli.cluster.pipelines.wait import last_events
from dynamo.cli.tables import table
from dynamo.operator.kube.resources import PIPELINES, PODS
from dynamo.operator.manifests import naming

_LOOK_EVERY: Final = 1.0
_LAST_EVENTS: Final = 8


class Look(NamedTuple):
    """Command line of `dynamo status`: what to look at, and how to show it."""

    name: str | None
    namespace: str | None
    everywhere: bool
    output: str

    @property
    def wide(self) -> bool:
        """Tell whether more columns are wanted."""
        return self.output == "wide"

    @property
    def structured(self) -> bool:
        """Tell whether it is for programs."""
        return self.output in ("json", "yaml")


def look(cluster: Cluster, wanted: Look) -> int:
    """Print once; returns the exit code."""
    pipelines = fetch(cluster, wanted)
    if wanted.structured:
        click.echo(_structured(pipelines, wanted))
    elif wanted.name:
        click.echo(_one(cluster, pipelines[0], wanted))
    elif pipelines:
        click.echo(_many(pipelines, wanted))
    else:
        where = "in any namespace" if wanted.everywhere else f"in namespace {cluster.namespace}"
        click.echo(f"no pipelines {where}: dynamo apply FILE makes one", err=True)
    return 1 if wanted.name and phase_of(pipelines[0]) is not PipelinePhase.READY else 0


def fetch(cluster: Cluster, wanted: Look) -> list[Live]:
    """Return the pipelines; raises for a name that isn't there."""
    if not wanted.name:
        pipelines = _everywhere(cluster) if wanted.everywhere else cluster.items(PIPELINES, cluster.namespace)
        if not pipelines and not wanted.everywhere:
            _must_exist(cluster, cluster.namespace)
        return sorted(pipelines, key=lambda p: (p["metadata"].get("namespace", ""), p["metadata"]["name"]))
    return [pipeline_called(cluster, cluster.namespace, wanted.name)]


def _everywhere(cluster: Cluster) -> list[Live]:
    """Return all pipelines; what can't be read is said, and hides nothing of other namespaces."""
    try:
        return cluster.items(PIPELINES, None)
    except TooDeepError as problem:
        pipelines, hidden = read_by_namespace(cluster, problem, lambda name: cluster.items(PIPELINES, name))
    for text in hidden:
        click.echo(f"warning: {text}", err=True)
    return pipelines


def _must_exist(cluster: Cluster, namespace: str) -> None:
    """Raise where the namespace isn't there: an empty list may mean a slip of the pen.

    Who may not see namespaces isn't told.
    """
    try:
        live = cluster.find(f"/api/v1/namespaces/{namespace}")
    except RefusedError:
        return
    if live is None:
        raise ClusterError(no_namespace(namespace))


def pipeline_called(cluster: Cluster, namespace: str, name: str) -> Live:
    """Return the pipeline of a name in a namespace; raises with what else there is."""
    live = cluster.find(PIPELINES.path(namespace, name))
    if live is None:
        near = {p["metadata"]["name"] for p in cluster.visible(PIPELINES, namespace)}
        far = {p["metadata"]["namespace"] for p in cluster.visible(PIPELINES, None) if p["metadata"]["name"] == name}
        raise ClusterError(no_pipeline(name, namespace, near, far))
    return live


def _structured(pipelines: Sequence[Live], wanted: Look) -> str:
    plain: Any = bare(pipelines[0]) if wanted.name else _list([bare(live) for live in pipelines])
    if wanted.output == "json":
        return json.dumps(plain, ensure_ascii=False, indent=2)
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)).rstrip()


def _list(items: Sequence[Live]) -> Live:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def _many(pipelines: Sequence[Live], wanted: Look) -> str:
    return "\n".join(table(rows(pipelines, datetime.now(UTC), wide=wanted.wide, namespaces=wanted.everywhere)))


def _one(cluster: Cluster, live: Live, wanted: Look) -> str:
    name, namespace = live["metadata"]["name"], live["metadata"]["namespace"]
    pods = cluster.visible(PODS, namespace, labelSelector=f"{naming.PIPELINE}={name}")
    lines: list[str] = []
    for block in detail(live, progress(live, pods), datetime.now(UTC), wide=wanted.wide):
        lines += [block] if isinstance(block, str) else table(block)
    events = last_events(cluster, namespace, name, _LAST_EVENTS)
    return "\n".join([*lines, "", "Last events:", *(f"  {line}" for line in events)] if events else lines)


def watch_on(cluster: Cluster, wanted: Look) -> NoReturn:
    """Show pipelines until Ctrl-C: a picture that moves on a terminal, changed rows or objects elsewhere."""
    with interruptible():
        if sys.stdout.isatty() and not wanted.structured:
            _picture(cluster, wanted)
        _stream(cluster, wanted)


def _picture(cluster: Cluster, wanted: Look) -> NoReturn:
    with Screen(console=Console(highlight=False), auto_refresh=False) as screen:
        while True:
            try:
                pipelines = fetch(cluster, wanted)
                text = _one(cluster, pipelines[0], wanted) if wanted.name else _many(pipelines, wanted)
            except ClusterError as error:
                text = error.message
            screen.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            time.sleep(_LOOK_EVERY)


def _stream(cluster: Cluster, wanted: Look) -> NoReturn:
    last_rows: dict[str, Any] = {}
    head = False
    while True:
        for live in fetch(cluster, wanted):
            key, row = str(live["metadata"]["uid"]), _cells(live, wanted)
            if last_rows.get(key) == row[:-1]:
                continue
            last_rows[key] = row[:-1]
            if wanted.structured:
                click.echo(_document(live, wanted))
            else:
                lines = table([_cells(None, wanted), row])
                click.echo("\n".join(lines[1:] if head else lines))
                head = True
        sys.stdout.flush()
        time.sleep(_LOOK_EVERY)


def _cells(live: Live | None, wanted: Look) -> Row:
    """Return a row, its age last so that it doesn't count as a change; of None, the head."""
    lines = rows([live] if live else [], datetime.now(UTC), wide=wanted.wide, namespaces=wanted.everywhere)
    row, where = lines[-1], lines[0].index("AGE")
    version = (str(live["metadata"].get("resourceVersion")),) if live and wanted.structured else ()
    return (*version, *row[:where], *row[where + 1 :], row[where])


def _document(live: Live, wanted: Look) -> str:
    if wanted.output == "json":
        return json.dumps(bare(live), ensure_ascii=False)
    return "---\n" + str(yaml.safe_dump(bare(live), sort_keys=False, allow_unicode=True)).rstrip()
