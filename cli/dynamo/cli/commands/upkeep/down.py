"""`dynamo down`: ends what `dynamo up` runs on this machine, and waits until it is gone."""

from __future__ import annotations

import contextlib
import difflib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from dynamo.cli.commands.cluster_options import SPAN
from dynamo.cli.local.state import RunState, is_running, running, state_home

EPILOG = """\b
Examples:
  dynamo down             everything that is up here
  dynamo down llama       one pipeline, and those of the same file
  dynamo down --now       without waiting for answers under way

\b
Exit codes: 0 ended (or nothing was up), 1 it doesn't end, 2 usage.
"""
_LOOK_EVERY = 0.05


@click.command("down", epilog=EPILOG)
@click.argument("name", required=False, shell_complete=lambda ctx, param, incomplete: complete_up(incomplete))
@click.option("--now", is_flag=True, help="End at once: answers under way are cut off.")
@click.option("--timeout", type=SPAN, default="60s", show_default=True, help="How long to wait for the end.")
def down(name: str | None, now: bool, timeout: float) -> None:
    """End what `dynamo up` runs: all of it, or the pipeline NAME."""
    home = state_home(os.environ)
    runs = [state for state, alive in running(home) if alive]
    chosen = [state for state in runs if name in (None, state.pipeline)]
    if name and not chosen:
        raise click.ClickException(not_up(name, [state.pipeline for state in runs]))
    if not chosen:
        click.echo("nothing is up on this machine (of a cluster: dynamo delete NAME)")
        return
    pids = {state.pid for state in chosen}
    ending = [state for state in runs if state.pid in pids]
    _ask(ending, home, times=2 if now else 1)
    if not _gone(ending, home, timeout):
        raise click.ClickException(f"not gone after {timeout:.0f} s: dynamo down --now ends it at once")
    click.echo(f"ended: {', '.join(state.pipeline for state in ending)}")


def complete_up(begun: str) -> list[str]:
    """Offer pipelines that are up."""
    return [s.pipeline for s, alive in running(state_home(os.environ)) if alive and s.pipeline.startswith(begun)]


def not_up(name: str, known: Sequence[str]) -> str:
    """Say that a pipeline isn't up, and which are."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"up are {', '.join(known)}" if known else "nothing is"
    return f"{name} isn't up on this machine: {hint} (of a cluster: dynamo delete {name})"


def _ask(states: Sequence[RunState], home: Path, times: int) -> None:
    """Send SIGTERM to each `dynamo up`; only to one that still holds its lock, whose number is its own."""
    for turn in range(times):
        for state in {state.pid: state for state in states}.values():
            if is_running(home / state.pipeline):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(state.pid, signal.SIGTERM)
        if turn + 1 < times:
            time.sleep(_LOOK_EVERY)  # two signals at one moment are one


def _gone(states: Sequence[RunState], home: Path, seconds: float) -> bool:
    return wait_until(lambda: not any(is_running(home / state.pipeline) for state in states), seconds)


def wait_until(reached: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; False when the time is over."""
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_EVERY)
    return True
