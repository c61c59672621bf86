"""`dynamo up -d`: the same run as a process of its own session, followed until it serves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from dynamo.cli.commands.upkeep.down import wait_until
from dynamo.cli.local.next_steps import has_console
from dynamo.cli.local.state import is_running, read_state, refused

SERVED_WITHIN: Final = 600.0
_LAST_LINES: Final = 12


def run_detached(words: Sequence[str], names: Sequence[str], home: Path, seconds: float = SERVED_WITHIN) -> int:
    """Start `dynamo up` so that it outlives this shell, and wait until all its pipelines serve; the exit code."""
    log = home / f"{names[0]}.up.log"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise click.ClickException(f"can't write the log of {names[0]} to {refused(error, log)}") from None
    with open(opened, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "dynamo.cli", "up", "--own-lines-only", *words],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    click.echo(f"starting {', '.join(names)} (pid {process.pid}); log: {log}", err=True)
    try:
        in_time = wait_until(
            lambda: process.poll() is not None or all(_serves(home / n, process.pid) for n in names), seconds
        )
    except KeyboardInterrupt:
        click.echo("it goes on without this shell: dynamo ps shows it, dynamo down ends it", err=True)
        return 130
    if process.returncode is not None:
        click.echo(_end_of(log), err=True)
        return process.returncode or 1
    if not in_time:
        click.echo(f"not served after {seconds:.0f} s: dynamo ps, dynamo logs, or dynamo down", err=True)
        return 1
    for name in names:
        state = read_state(home / name)
        click.echo(f"{name}: {state.model} at {state.url}" if state else name)
        if state is not None and has_console(state.url):
            click.echo(f"  console {state.url}/")
    click.echo("dynamo ps shows it, dynamo logs -f follows it, dynamo down ends it")
    return 0


def _serves(folder: Path, pid: int) -> bool:
    """Tell whether this run serves: another one of the same pipeline may be up already."""
    state = read_state(folder)
    return state is not None and state.pid == pid and bool(state.url) and is_running(folder)


def _end_of(log: Path) -> str:
    with log.open(encoding="utf-8", errors="replace") as lines:
        return "".join(deque(lines, maxlen=_LAST_LINES)).rstrip()
