"""Runs a server as a group of processes that ends with a worker: `python -I -S child_guard.py PARENT COMMAND …`.

A script of its own, since a worker that is killed can end nobody, and servers have children that outlive them. The
kernel tells this process of the worker's death (Linux; elsewhere a look each second does), and it ends the whole group.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

_SET_PARENT_DEATH_SIGNAL = 1
_LEAVE_SECONDS = 10.0
_POLL_SECONDS = 0.05


def main() -> int:
    """Start the command, wait for its end or ours; its exit code."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: asked.append(number))
    _tie(signal.SIGTERM)
    child = _start(command)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _end(child)  # what it left behind
            return os.waitstatus_to_exitcode(status) & 255
        if asked or os.getppid() != parent:
            return _leave(child)
        time.sleep(_POLL_SECONDS)


def _start(command: list[str]) -> int:
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        return child
    os.setpgid(0, 0)
    _tie(signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"can't start {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _tie(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, number, 0, 0, 0)


def _leave(child: int) -> int:
    """Ask the group to end, and kill what doesn't."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGTERM)
    due = time.monotonic() + _LEAVE_SECONDS
    while time.monotonic() < due and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(_POLL_SECONDS)
    _end(child)
    return 0


def _end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
