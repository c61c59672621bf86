"""A server that the worker starts itself: its log goes where the worker's goes, and it ends with the worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import Final

from dynamo.runtime.errors import EngineError

log = logging.getLogger(__name__)
_GUARD: Final = Path(__file__).with_name("child_guard.py")
_LEAVE_SECONDS: Final = 15.0


class ChildServer:
    """One command, from `start` to `stop`, which may be called twice."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[int] | None = None

    async def start(self) -> None:
        """Start it; whether it answers is another question."""
        log.info("starting %s", " ".join(self._command)[:500])
        words = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), *self._command]
        # Standard output is for the worker's `ready` line. A session of its own: Ctrl-C is for the worker, which lets
        # streams end first (uvloop knows no process groups).
        self._process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr.fileno(), start_new_session=True
        )
        self._watch = asyncio.ensure_future(self._process.wait())

    async def failed(self) -> BaseException:
        """Wait until it ends by itself; why the engine can't go on."""
        assert self._watch is not None, "it has started"
        code = await asyncio.shield(self._watch)
        return EngineError(f"the server {self._command[0]} ended (exit code {code}); what it wrote before says why")

    async def stop(self) -> None:
        """End it, with all that it started."""
        if self._process is None or self._watch is None:
            return
        for end in (self._process.terminate, self._process.kill):
            if self._watch.done():
                return
            with contextlib.suppress(ProcessLookupError):
                end()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await asyncio.shield(self._watch)
