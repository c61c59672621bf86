"""`dynamo tasks [PID]`: show what the asyncio tasks of a running process wait for, and since when.

It stands in for the tokio-console of NVIDIA Dynamo. The process must have been started with `DYN_CONSOLE=1`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import click

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.task_console import VARIABLE, check_private, running, socket_path

EPILOG = f"""\b
Examples:
  {VARIABLE}=1 dynamo-worker --engine mocker      a process that can be observed ...
  dynamo tasks                                  ... once
  dynamo tasks 4711 --follow                    every second, until Ctrl-C
  dynamo tasks --json | jq .tasks[0]

\b
Off by default. It listens on a socket that only this user can open, under XDG_RUNTIME_DIR or the temporary
folder; never on a network.
"""
_SECONDS = 5.0


@click.command("tasks", epilog=EPILOG)
@click.argument("pid", type=int, required=False)
@click.option("-f", "--follow", is_flag=True, help="Print a new sample every second, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per sample.")
@click.option("--stack", is_flag=True, help="Include each task's call stack.")
def tasks(pid: int | None, follow: bool, as_json: bool, stack: bool) -> None:
    """Show the asyncio tasks of a process: what each one waits for, and since when."""
    for number, sample in enumerate(snapshots(pid if pid is not None else only_one(list(running(os.environ))))):
        if as_json:
            click.echo(json.dumps(sample))
        else:
            if number and sys.stdout.isatty():
                click.clear()
            click.echo(table(sample, stack))
        if not follow and number:  # the second sample knows better since when tasks wait
            break


def only_one(pids: list[int]) -> int:
    """Return the only process that can be observed; ends the command where there is none, or are several."""
    alive = [pid for pid in pids if _alive(pid)]
    if not alive:
        raise click.ClickException(f"no process of yours can be observed: start one with {VARIABLE}=1")
    if len(alive) > 1:
        raise click.UsageError(f"several processes can be observed, name one: {', '.join(map(str, alive))}")
    return alive[0]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def snapshots(pid: int) -> Iterator[dict[str, Any]]:
    """Yield the samples of a process until it ends; a process that sends none is an error."""
    path = socket_path(os.environ, pid)
    try:
        check_private(path.parent)  # else the output of another user's process would be shown
    except InvalidArgument as error:
        raise click.ClickException(error.message) from error
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_SECONDS)
        try:
            sock.connect(str(path))
        except OSError as error:
            raise click.ClickException(
                f"process {pid} can't be observed ({error.strerror}): start it with {VARIABLE}=1"
            ) from error
        line = b""
        for line in _lines(sock, pid):
            yield json.loads(line)
        if not line:
            raise click.ClickException(f"process {pid} sent nothing: it has ended, or is observed by others already")


def _lines(sock: socket.socket, pid: int) -> Iterator[bytes]:
    """Yield whole lines; a process that is killed may leave half a line."""
    with sock.makefile("rb") as lines:
        try:
            yield from (line for line in lines if line.endswith(b"\n"))
        except TimeoutError:
            raise click.ClickException(f"process {pid} sent nothing for {_SECONDS:g} s: its loop is busy") from None
        except ConnectionError:  # it has ended
            return


def table(sample: dict[str, Any], stack: bool) -> str:
    """Format a sample, one line per task."""
    rows = [(task["name"], f"{task['since']:.1f} s", task["waits_for"], task["where"]) for task in sample["tasks"]]
    head = ("TASK", "SINCE", "WAITS FOR", "WHERE")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(3)]
    lines = [f"process {sample['pid']} ({sample['program']}): {len(rows)} tasks"]
    for row, task in zip((head, *rows), (None, *sample["tasks"]), strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)]
        lines.append("  ".join([*cells, row[3]]).rstrip())
        if stack and task is not None:
            lines += [f"    {name}" for name in task["stack"]]
    return "\n".join(lines)
