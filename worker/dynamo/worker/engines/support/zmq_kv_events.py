"""The KV events of engines that publish them over ZMQ (vLLM, SGLang): what their adapters hold to be `KvCaching`.

An adapter makes one `NativeKvEvents` when it knows where its engine publishes, hands `on_kv` on to it, starts it before
the engine takes its first request and stops it after the engine. The translation is
`dynamo.llm.kv_events.engine_stream`'s.
"""

from __future__ import annotations

from dynamo.llm.kv.messages import KvStep
from dynamo.llm.kv_events.zmq_source import ZmqSource
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engine import KvListener


class NativeKvEvents:
    """Read an engine's KV events over ZMQ. One source for each data-parallel rank that runs here.

    `endpoint`, `replay_endpoint` and `topic` are as in the engine's own configuration of events, those of rank 0;
    `total_kv_blocks` is what one rank has. Raises `InvalidArgument` for addresses that are none.
    """

    def __init__(
        self, endpoint: str, block_size: int, *, replay_endpoint: str | None = None, topic: str = "",
        total_kv_blocks: int | None = None, ranks: range = range(1),
    ) -> None:  # fmt: skip
        if block_size < 1 or not ranks:
            raise InvalidArgument(f"no KV events without ranks and a block size: {ranks}, {block_size}")
        self._listener: KvListener | None = None
        self.sources = [
            ZmqSource(
                endpoint, self._tell, block_size, dp_rank=rank, topic=topic, replay_endpoint=replay_endpoint,
                capacity=total_kv_blocks,
            )
            for rank in ranks
        ]  # fmt: skip

    @property
    def silent(self) -> bool:
        """Tell whether no rank has published anything yet."""
        return all(source.stream.silent for source in self.sources)

    def on_kv(self, listener: KvListener) -> None:
        """Listen as `KvCaching` has it."""
        self._listener = listener

    def start(self) -> None:
        """Listen; raises `InvalidArgument` where pyzmq is missing."""
        for source in self.sources:
            source.start()

    async def stop(self) -> None:
        """Listen no more."""
        for source in self.sources:
            source.stop()
        for source in self.sources:
            await source.ended()

    def _tell(self, step: KvStep) -> None:
        if self._listener is not None:
            self._listener(step)
