"""`dynamo ps`: what `dynamo up` runs on this machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec

from dynamo.cli.local.state import PartState, RunState, running, state_home, unreadable
from dynamo.cli.tables import Row, age, table
from dynamo.runtime.process.printable import visible

EPILOG = """\b
Examples:
  dynamo ps
  dynamo ps --watch        again each second
  dynamo ps -o wide        all columns, whole reasons; a narrow terminal has fewer
  dynamo ps -o json | jq -r '.[].url'
"""
_REASON_CHARACTERS = 120
_SHORTEST_REASON = 30
_LOOK_EVERY = 1.0


@click.command("ps", epilog=EPILOG)
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json", "yaml"]), default="table", show_default=True,
    help="Format.",
)  # fmt: skip
@click.option("-w", "--watch", is_flag=True, help="Look again each second, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
def ps(output: str, watch: bool, as_json: bool) -> None:
    """List the parts of every pipeline that is up."""
    while True:
        if watch and sys.stdout.isatty():
            click.clear()
        _once("json" if as_json else output)
        if not watch:
            return
        sys.stdout.flush()
        time.sleep(_LOOK_EVERY)


def _once(output: str) -> None:
    from dynamo.cli.local.facts.worker_health import seen

    runs = list(running(state_home(os.environ)))
    for state, alive in runs:
        if alive:
            state.parts = seen(state.parts)
    for name in unreadable(state_home(os.environ)):
        click.echo(f"{name} is up, and its state can't be read: dynamo doctor {name}", err=True)
    if output in ("json", "yaml"):
        click.echo(_structured(runs, output))
    elif not runs:
        click.echo(
            "nothing is up on this machine: start a pipeline with `dynamo up FILE` (of a cluster: dynamo status)"
        )
    else:
        now, width = time.time(), shutil.get_terminal_size().columns
        cells = rows(runs, now, wide=output == "wide")
        lines = table(cells) if output == "wide" or not sys.stdout.isatty() else narrow_lines(runs, cells, now, width)
        click.echo("\n".join(lines))


def _structured(runs: Iterable[tuple[RunState, bool]], output: str) -> str:
    plain: list[dict[str, Any]] = [{**msgspec.to_builtins(state), "alive": alive} for state, alive in runs]
    if output == "json":
        return json.dumps(plain, ensure_ascii=False, indent=2)
    import yaml

    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)).rstrip()


def rows(runs: Iterable[tuple[RunState, bool]], now: float, *, wide: bool) -> list[Row]:
    """Return the table's cells, its head first."""
    runs = list(runs)
    more = ("COMPONENT", "REVISION", "PORTS", "LOG") if wide else ()
    tells = wide or any(_reason(part) for state, _ in runs for part in state.parts)
    more = (*more, "REASON") if tells else more
    result: list[Row] = [("PIPELINE", "PART", "STATE", "SINCE", "RESTARTS", "PID", "MODEL", "URL", *more)]
    for state, alive in runs:
        for part in state.parts:
            first = part is state.parts[0]
            ports = ",".join(f"{name}:{number}" for name, number in part.ports.items())
            extra: Row = (part.component, part.revision or "-", ports or "-", part.log) if wide else ()
            if tells:
                extra = (*extra, _reason(part) if wide else _short(_reason(part)))
            result.append((
                state.pipeline, part.name, part.state if alive else "dead (dynamo up was killed)",
                age(now - part.since), str(part.restarts), str(part.pid or "-"),
                state.model if first else "", state.url if first else "", *extra,
            ))  # fmt: skip
    return result


def narrow_lines(runs: Sequence[tuple[RunState, bool]], cells: list[Row], now: float, width: int) -> list[str]:
    """Return the table with what fits of it, or where not even that does, a paragraph for each pipeline."""
    short = fitting(cells, width)
    return table(short) if not _too_wide(short, width) else stacked(runs, now, width)


def stacked(runs: Sequence[tuple[RunState, bool]], now: float, width: int) -> list[str]:
    """Return a few lines for each pipeline, folded between words; an address stays whole, to be copied."""
    lines: list[str] = []
    for state, alive in runs:
        lines += [state.pipeline, *([f"  {state.url}"] if state.url else [])]
        for part in state.parts:
            what = part.state if alive else "dead (dynamo up was killed)"
            why = f": {visible(reason)}" if (reason := _short(_reason(part))) else ""
            text = f"{part.name} {what} {age(now - part.since)}{why}"
            lines += textwrap.wrap(
                text, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False,
                break_on_hyphens=False,
            )  # fmt: skip
    return lines


def fitting(cells: list[Row], width: int) -> list[Row]:
    """Leave columns out, the least asked for first, and shorten reasons, until a line has `width` characters."""
    for name in ("PID", "RESTARTS", "MODEL"):
        if _too_wide(cells, width) and name in cells[0]:
            at = list(cells[0]).index(name)
            cells = [(*row[:at], *row[at + 1 :]) for row in cells]
    over = _too_wide(cells, width)
    if not over or cells[0][-1] != "REASON":
        return cells
    most = max(_SHORTEST_REASON, max(len(row[-1]) for row in cells) - over)
    return [(*row[:-1], _short(row[-1], most)) for row in cells]


def _too_wide(cells: list[Row], width: int) -> int:
    return max(0, max(map(len, table(cells))) - width)


def _reason(part: PartState) -> str:
    """Return why it doesn't serve, what is amiss, or why it had to start again."""
    return part.reason or (f"started again: {part.ended}" if part.ended else "")


def _short(text: str, most: int = _REASON_CHARACTERS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
