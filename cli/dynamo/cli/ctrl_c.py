"""What Ctrl-C does while a program starts: it ends without a word. Imports next to nothing, since it comes first."""

from __future__ import annotations

import os

# The built-in half of `signal`, whose other half takes longer to import than all the rest of these first lines.
from _signal import SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found]


def leave_on_ctrl_c() -> None:
    """Let Ctrl-C end us here and now, until a command handles it.

    A KeyboardInterrupt could be swallowed where an import runs callbacks, and would be lost.
    """
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, _leave)


def interrupt_on_ctrl_c() -> None:
    """Let Ctrl-C raise a KeyboardInterrupt again: all is imported, and there is something to end in order."""
    if getsignal(SIGINT) is _leave:
        signal(SIGINT, default_int_handler)


def _leave(*_: object) -> None:
    os._exit(130)
