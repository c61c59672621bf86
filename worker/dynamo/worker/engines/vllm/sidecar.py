"""A group of nodes: the command that runs beside a worker, and the node that is nothing but such a command."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from dynamo.runtime.errors import EngineError
from dynamo.worker.engines.vllm.arguments import check, merged, prepare
from dynamo.worker.engines.vllm.node_plan import group_of, plan_node

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.engine import Nodes
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

_LEAVE_SECONDS: Final = 15.0
_OPEN_SECONDS: Final = 60.0
_OPEN_POLL: Final = 0.2


class SidecarProcess:
    """One command, from `start` to `stop`, which may be called twice."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[int] | None = None

    async def start(self, opens: tuple[str, int] | None = None) -> None:
        """Start it; returns when it answers at `opens`. `EngineError` where it doesn't."""
        words = ["-m", "dynamo.worker.engines.vllm.sidecar_main", str(os.getpid()), *self._command]
        environment = dict(os.environ)
        prepare(environment, log.isEnabledFor(logging.DEBUG))
        # Standard output is for the worker's `ready` line.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr.fileno(), env=environment
        )
        self._watch = asyncio.ensure_future(self._process.wait())
        if opens is not None:
            await self._answers(*opens)

    async def _answers(self, host: str, port: int) -> None:
        assert self._watch is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPEN_SECONDS):
                while not self._watch.done():
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection(host, port)
                        writer.close()
                        return
                    await asyncio.sleep(_OPEN_POLL)
        raise EngineError(f"{self} does not answer at {host}:{port}; what it wrote before says why")

    async def failed(self) -> BaseException:
        """Wait until it ends by itself; why the engine can't go on."""
        assert self._watch is not None
        code = await asyncio.shield(self._watch)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return EngineError(f"{self} ended ({how}); what it wrote before says why")

    async def stop(self) -> None:
        if self._process is None or self._watch is None or self._watch.done():
            return
        for end in (self._process.terminate, self._process.kill):
            with contextlib.suppress(ProcessLookupError):
                end()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._watch), _LEAVE_SECONDS)
                return

    def __str__(self) -> str:
        return " ".join(self._command[:2])


class VllmNode:
    """A follower: vLLM's workers on this node, which take their work from the leader's."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        check(settings, model)
        self._sidecar = SidecarProcess(plan_node(group_of(settings), merged(settings, model, None)).sidecar)

    async def start(self, nodes: Nodes) -> None:
        """Return when its command runs: the leader's engine has started once that has joined."""
        await self._sidecar.start()

    async def failed(self) -> BaseException:
        return await self._sidecar.failed()

    async def stop(self) -> None:
        await self._sidecar.stop()
