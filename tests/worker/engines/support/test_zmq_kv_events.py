"""An engine that publishes as vLLM does, through the worker's publisher to a router's index: names, ranks, restarts.

The engine here is a real PUB and ROUTER socket for each rank; bytes are those that vLLM's structs encode.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
import pytest
import zmq.asyncio
from tests.frontend.routing.kv_reader import BLOCK, Site, run
from tests.waiting import until

from dynamo.llm.kv.block_hash import compute_block_hash_for_seq, sequence_hashes
from dynamo.llm.kv_events.engine_wire import END_OF_REPLAY, read_number, write_number
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engine import KvCaching
from dynamo.worker.engines.support.zmq_kv_events import NativeKvEvents


class Stored(msgspec.Struct, omit_defaults=True, tag="BlockStored"):
    """As vLLM 0.32 has it."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = "GPU"


class Rank:
    """One rank's sockets."""

    def __init__(self, context: zmq.asyncio.Context, port: int, replay: int, rank: int) -> None:
        self.pub, self.router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        self.pub.bind(f"tcp://127.0.0.1:{port + rank}")
        self.router.bind(f"tcp://127.0.0.1:{replay + rank}")
        self.rank, self.said = rank, list[bytes]()
        self.task = asyncio.get_running_loop().create_task(self._answer())

    async def store(self, tokens: list[int]) -> None:
        """A whole prompt, as one batch."""
        hashes = [bytes([self.rank]) * 24 + number.to_bytes(8, "big") for number in range(len(tokens) // BLOCK)]
        data = msgspec.msgpack.encode([1.0, [Stored(hashes, None, tokens, BLOCK)], self.rank])
        self.said.append(data)
        await self.pub.send_multipart([b"", write_number(len(self.said) - 1), data])

    async def _answer(self) -> None:
        while True:
            client, _, first = await self.router.recv_multipart()
            for number in range(read_number(first), len(self.said)):
                await self.router.send_multipart([client, b"", b"", write_number(number), self.said[number]])
            await self.router.send_multipart([client, b"", b"", write_number(END_OF_REPLAY), b""])


def neighbours(context: zmq.asyncio.Context) -> tuple[int, list[Rank]]:
    """Two ranks on neighbouring ports, as engines have them, and the first port; their replays are behind."""
    for first in range(20_000 + os.getpid() % 10_000, 32_000, 4):
        try:
            return first, [Rank(context, first, first + 2, rank) for rank in range(2)]
        except zmq.ZMQError:
            continue  # somebody has one of them; the sockets go with the context
    raise AssertionError("no free ports")


def test_two_ranks_arrive_in_a_routers_index() -> None:
    """What was cached before anybody asked, and what comes later; each rank's blocks under its own number."""

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader()
        context = zmq.asyncio.Context()
        first, ranks = neighbours(context)
        native = NativeKvEvents(
            f"tcp://*:{first}", BLOCK, replay_endpoint=f"tcp://*:{first + 2}", ranks=range(2), total_kv_blocks=1000
        )
        assert isinstance(native, KvCaching)
        native.on_kv(worker.publisher.step)
        prompts = [[rank * 7 + n for n in range(3 * BLOCK)] for rank in range(2)]
        try:
            await ranks[0].store(prompts[0])
            native.start()
            reader.join(worker.key)
            await until("rank 0 is known", lambda: reader.holds(worker.key) == named(prompts[0]))
            while not reader.holds(worker.key, 1):
                await ranks[1].store(prompts[1])  # whichever of these the subscription came in time for
                await asyncio.sleep(0.02)
            assert reader.holds(worker.key, 1) == named(prompts[1])
            assert [source.stream.unreadable + source.stream.orphans for source in native.sources] == [0, 0]
        finally:
            await native.stop()
            for rank in ranks:
                rank.task.cancel()
            context.destroy(linger=0)

    def named(tokens: list[int]) -> set[int]:
        return set(sequence_hashes(compute_block_hash_for_seq(tokens, BLOCK)))

    run(case, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"endpoint": "x", "block_size": 4}, "no ZMQ address"),
        ({"endpoint": "tcp://*:1", "block_size": 0}, "block size"),
        ({"endpoint": "tcp://*:1", "block_size": 4, "ranks": range(0)}, "without ranks"),
        ({"endpoint": "tcp://*:1", "block_size": 4, "replay_endpoint": "tcp://*:99999"}, "host and a port"),
    ],
)
def test_what_cant_be_listened_to_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        NativeKvEvents(**arguments)
