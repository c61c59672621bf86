"""`dynamo console [PID]`: which tasks of a running process wait for what, since when.

In the place of the original's tokio-console; the process must have been started with `DYN_CONSOLE=1`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import click

from dynamo.runtime.console import VARIABLE, check_private, running, socket_path
from dynamo.runtime.errors import InvalidArgument

EPILOG = f"""\b
Examples:
  {VARIABLE}=1 dynamo-worker --engine mocker      a process that can be watched ...
  dynamo console                                ... once
  dynamo console 4711 --follow                  every second, until Ctrl-C
  dynamo console --json | jq .tasks[0]

\b
Off by default. It listens on a socket that only this user can open, under XDG_RUNTIME_DIR or the temporary
folder; never on a network.
"""
_SECONDS = 5.0


@click.command("console", epilog=EPILOG)
@click.argument("pid", type=int, required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on, once a second.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per look.")
@click.option("--stack", is_flag=True, help="With the functions that led there.")
def console(pid: int | None, follow: bool, as_json: bool, stack: bool) -> None:
    """Show which tasks of a process wait for what, and since when."""
    for number, found in enumerate(snapshots(pid if pid is not None else only_one(list(running(os.environ))))):
        if as_json:
            click.echo(json.dumps(found))
        else:
            if number and sys.stdout.isatty():
                click.clear()
            click.echo(table(found, stack))
        if not follow and number:  # the second look knows more of since when
            break


def only_one(pids: list[int]) -> int:
    """The process to ask where none was named."""
    alive = [pid for pid in pids if _alive(pid)]
    if not alive:
        raise click.ClickException(f"no process of yours has a console: start one with {VARIABLE}=1")
    if len(alive) > 1:
        raise click.UsageError(f"several processes have a console, name one: {', '.join(map(str, alive))}")
    return alive[0]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def snapshots(pid: int) -> Iterator[dict[str, Any]]:
    """What the process says, a line each; ends with it. One that says nothing is an error."""
    path = socket_path(os.environ, pid)
    try:
        check_private(path.parent)  # else anybody's words would be shown here
    except InvalidArgument as error:
        raise click.ClickException(error.message) from error
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_SECONDS)
        try:
            sock.connect(str(path))
        except OSError as error:
            raise click.ClickException(
                f"process {pid} has no console ({error.strerror}): start it with {VARIABLE}=1"
            ) from error
        line = b""
        for line in _lines(sock, pid):
            yield json.loads(line)
        if not line:
            raise click.ClickException(f"process {pid} says nothing: it has ended, or others look at it already")


def _lines(sock: socket.socket, pid: int) -> Iterator[bytes]:
    """Whole lines; a process that is killed may leave half of one."""
    with sock.makefile("rb") as lines:
        try:
            yield from (line for line in lines if line.endswith(b"\n"))
        except TimeoutError:
            raise click.ClickException(f"process {pid} said nothing for {_SECONDS:g} s: its loop is busy") from None
        except ConnectionError:  # it has ended
            return


def table(found: dict[str, Any], stack: bool) -> str:
    """One line per task."""
    rows = [(task["name"], f"{task['since']:.1f} s", task["waits_for"], task["where"]) for task in found["tasks"]]
    head = ("TASK", "SINCE", "WAITS FOR", "WHERE")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(3)]
    lines = [f"process {found['pid']} ({found['program']}): {len(rows)} tasks"]
    for row, task in zip((head, *rows), (None, *found["tasks"]), strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)]
        lines.append("  ".join([*cells, row[3]]).rstrip())
        if stack and task is not None:
            lines += [f"    {name}" for name in task["stack"]]
    return "\n".join(lines)
