"""A group of nodes whose engine can't go on without one of them: all of them end, so that they start anew together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dynamo.llm import open_model
from dynamo.runtime.backends import MemoryWorld
from dynamo.runtime.errors import EngineError
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engine import Nodes, OverNodes
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.node_group import NodeGroup
from dynamo.worker.settings import WorkerSettings

ADDRESS = "127.0.0.1:29500"
SOON = 20.0


class Member:
    """One node of a group of two, over a deployment in memory. Its engine knows nothing of nodes, as SGLang's and
    vLLM's, whose processes hang for good when one of them is gone."""

    def __init__(self, runtime: DistributedRuntime, rank: int) -> None:
        settings = WorkerSettings(engine="echo_core", num_nodes=2, node_rank=rank, leader_addr=ADDRESS)
        self.runtime = runtime
        self.engine: Any = create_engine(WorkerSettings(engine="echo_core"), open_model(None, name="m"))
        assert not isinstance(self.engine, OverNodes)
        self.group = NodeGroup(runtime, settings)
        self.told: Nodes | None = None

    async def start(self) -> None:
        await self.group.start()
        await self.group.start_engine(self.engine, self._start)

    async def _start(self, nodes: Nodes) -> None:
        self.told = nodes
        await self.engine.start()

    async def go(self) -> None:
        """Leave without a word to the others."""
        await self.group.stop()
        await self.runtime.shutdown(0)


async def pair(world: MemoryWorld) -> list[Member]:
    return [Member(await DistributedRuntime.in_memory(world), rank) for rank in (0, 1)]


@pytest.mark.parametrize("lost", [0, 1])
async def test_the_loss_of_one_node_is_the_end_of_the_others(lost: int) -> None:
    """Whichever it is, and the sentence says what becomes of them."""
    members = await pair(MemoryWorld())
    async with asyncio.timeout(SOON):
        await asyncio.gather(*(member.start() for member in members))
        assert [member.told is not None and member.told.leader for member in members] == [("127.0.0.1", 29500)] * 2
        await members[lost].go()
        error = await members[1 - lost].group.failed()
    assert "this node starts anew with them" in str(error)
    await members[1 - lost].go()


async def test_a_loss_while_an_engine_starts_ends_the_start() -> None:
    """An engine that waits for a node that is gone would wait for good."""
    leader, follower = await pair(MemoryWorld())
    begun = asyncio.Event()

    async def never(nodes: Nodes) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(SOON):
        joining = asyncio.ensure_future(follower.start())
        await leader.group.start()
        starting = asyncio.ensure_future(leader.group.start_engine(leader.engine, never))
        await asyncio.gather(begun.wait(), joining)
        await follower.go()
        with pytest.raises(EngineError, match="starts anew"):
            await starting
    await leader.go()
