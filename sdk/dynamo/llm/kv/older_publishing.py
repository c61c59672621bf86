"""The class of its own that 0.x had for relaying an engine's ZMQ stream."""

from __future__ import annotations

import msgspec

from dynamo.llm.kv.publishing import KvEventPublisher
from dynamo.runtime.component import Component, Endpoint


class ZmqKvEventPublisherConfig(msgspec.Struct):
    """Which engine's stream is relayed, in 0.x."""

    worker_id: int | None = None
    kv_block_size: int = 0
    zmq_endpoint: str = "tcp://127.0.0.1:5557"
    zmq_topic: str = ""
    enable_local_indexer: bool = False
    dp_rank: int = 0


class ZmqKvEventPublisher(KvEventPublisher):
    """0.x: relays an engine's ZMQ stream; today `KvEventPublisher(endpoint, zmq_endpoint=…)`. Raises as that."""

    def __init__(self, component: Component | Endpoint, config: ZmqKvEventPublisherConfig) -> None:
        super().__init__(
            component, config.worker_id, config.kv_block_size, config.dp_rank,
            zmq_endpoint=config.zmq_endpoint, zmq_topic=config.zmq_topic,
        )  # fmt: skip
