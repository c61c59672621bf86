"""Kills what a dead `dynamo up` left behind: `python -I -S _watchdog.py`, fed through its stdin.

The parent writes `+PGID` for each process group that it starts and `-PGID` when one is
gone. End of input means that the parent is dead (or done): whatever is still listed is
killed, grandchildren included, which the kernel's parent-death signal doesn't reach.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def groups_left(lines: Iterable[str]) -> set[int]:
    """Return the process groups that were started and not reported gone."""
    groups: set[int] = set()
    for line in lines:
        change, number = line[:1], line[1:].strip()
        if not number.isdecimal():
            continue
        (groups.add if change == "+" else groups.discard)(int(number))
    return groups


def main() -> None:
    """Outlive signals meant for the terminal's group; read to the end; kill."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    for group in groups_left(sys.stdin):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
