"""What vLLM starts ends with the worker, however that ends.

vLLM's core doesn't notice that the process which it works for was killed: it would keep its model, and its GPU, for
good. So whatever vLLM starts by `multiprocessing` ties itself to its parent before it does anything else, and has its
own children do so too. The kernel sees to the rest (Linux; elsewhere nothing is tied).
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.context import ForkProcess, SpawnProcess
from typing import Any, Final

_SET_PARENT_DEATH_SIGNAL: Final = 1


def tether(parent: int) -> None:
    """Have the kernel kill this process when the thread of process `parent` that started it ends; now, if it has."""
    if sys.platform != "linux":
        return
    os.setpgrp()  # Ctrl-C is for the worker, which lets streams end before it ends this
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died while this process came to life
        os.kill(os.getpid(), signal.SIGKILL)


class _Tethered:
    """A process of `multiprocessing` that is tied to its parent, and its children to it."""

    def run(self) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid is not None:
            tether(parent.pid)
        with tethering():
            super().run()  # type: ignore[misc] # of the process that this is mixed into


class TetheredSpawn(_Tethered, SpawnProcess):
    """A spawned one. It is tied before what it was started with is read, which has it import all of vLLM."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _tied, (type(self), os.getpid()), self.__dict__


class TetheredFork(_Tethered, ForkProcess):
    """A forked one."""


def _tied(kind: type[TetheredSpawn], parent: int) -> TetheredSpawn:
    """Read what comes first in a spawned process; its attributes follow."""
    tether(parent)
    return kind.__new__(kind)


@contextlib.contextmanager
def tethering() -> Iterator[None]:
    """Tie whatever is started meanwhile, in any thread, through a context of `multiprocessing`, as vLLM does it."""
    kinds: dict[Any, Any] = {
        multiprocessing.get_context("spawn"): TetheredSpawn, multiprocessing.get_context("fork"): TetheredFork,
    }  # fmt: skip
    before = {context: context.Process for context in kinds}
    for context, kind in kinds.items():
        context.Process = kind
    try:
        yield
    finally:
        for context, kind in before.items():
            context.Process = kind


def kill_tethered() -> None:
    """Kill the children of this process that are tied to it."""
    for child in multiprocessing.active_children():
        if isinstance(child, _Tethered):
            child.kill()
