"""Giving memory back to the system after large requests: the C library keeps what it was told to free."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_MMAP_THRESHOLD: Final = -3
"""As glibc's `malloc.h` numbers it."""
LARGE_BLOCK: Final = 512 << 10
"""Bytes; nothing that is done per token needs such a block."""


def keep_large_blocks_apart() -> None:
    """Have large blocks mapped by themselves, and so returned when they are freed, whatever lies around them.

    Left alone, glibc takes the size of the first large block that is freed as its new idea of large.
    """
    if sys.platform == "linux" and (option := getattr(ctypes.CDLL(None), "mallopt", None)):
        option(_MMAP_THRESHOLD, LARGE_BLOCK)


def return_memory() -> None:
    """Give back what is free. Takes milliseconds, without the interpreter: call it in a thread."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
