"""Ties a command to its parent's life, then becomes it: `python -I -S _tether.py PARENT COMMAND…`.

Run by `processes.py` as a script, so that no fork hook in the parent is needed. On Linux
the kernel kills the command when its parent dies, however it dies; elsewhere
`_watchdog.py` alone sees to it.
"""

import os
import signal
import sys


def tether(parent: int) -> None:
    """Ask the kernel for SIGKILL at the parent's death; leave at once if it is dead already."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def main() -> None:
    """Tether this process, restore signals that Python changes, and exec."""
    tether(int(sys.argv[1]))
    command = sys.argv[2:]
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        sys.stderr.write(f"can't start {command[0]}: {error.strerror}\n")
        raise SystemExit(127) from None


if __name__ == "__main__":
    main()
