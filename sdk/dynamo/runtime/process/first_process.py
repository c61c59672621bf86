"""What the first process of a container does before anything else. Every `__main__` of ours calls it."""

from __future__ import annotations

import os
import signal


def end_on_sigterm() -> None:
    """End on SIGTERM.

    The first process of a container doesn't get one that it has no handler for, so a pod that is deleted while it
    starts would stay for all of its grace. Until its program handles it, it ends us as it ends any other process.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
