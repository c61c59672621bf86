"""`python forks.py MODULE...`: imports these, then becomes, by forking, each program that a line of its stdin names.

`tests/warm.py` sends the lines, and says which programs may be started so.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import sys
from typing import Any


def say(**words: Any) -> None:
    """Write a line to `tests/warm.py`."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def reap() -> None:
    """Tell of children that have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        say(pid=pid, code=os.waitstatus_to_exitcode(status))


def orders() -> Any:
    """Fork a child for each line, and return its line in it; None here, once stdin has ended."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    held = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                if key.fd == woken:
                    reap()
                    continue
                if not data:
                    return None
                *lines, held = (held + data).split(b"\n")
                for line in lines:
                    if (pid := os.fork()) == 0:
                        return json.loads(line)
                    say(pid=pid)


def become(order: Any) -> None:
    """Be a process as `subprocess` would have made it, and run the program."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(order["folder"])
    for number, (path, flags) in enumerate(order["files"]):
        file = os.open(path, flags, 0o666)
        os.dup2(file, number)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[:0] = [path for path in order["env"].get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    sys.argv = order["argv"]
    if order["program"].endswith(".py"):
        runpy.run_path(order["program"], run_name="__main__")
    else:
        runpy.run_module(order["program"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    order = orders()
    if order is not None:
        become(order)
