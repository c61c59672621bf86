"""What a worker caches, on the bus: steps as they come, beats while nothing does, snapshots for those who ask.

The decisions are in `kv/messages.py`; `KvPublisher` is the shell around its `Sender`. `KvEventPublisher` is NVIDIA
Dynamo's name for programs that tell of their engine's blocks themselves, or have its ZMQ stream relayed;
`ZmqKvEventPublisher` is the class of its own that 0.x had for the latter."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, overload

import msgspec

from dynamo.llm.kv.block_hash import media_hashes
from dynamo.llm.kv.messages import OPERATION, KvStep, Part, Sender
from dynamo.llm.kv_events.engine_blocks import EngineBlocks, EngineHash, Event, Removed, Stored, steps_of
from dynamo.llm.kv_events.zmq_source import ZmqSource
from dynamo.runtime.endpoint import Component, Endpoint
from dynamo.runtime.errors import CannotConnect, InvalidArgument
from dynamo.runtime.names import EndpointPath, kv_subject
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.runtime.transport.bus import Bus

USUAL: Final = "generate"


def endpoint_of(place: Endpoint | Component) -> Endpoint:
    """Return the endpoint of a component that this process registered a model at, or serves; else `generate`."""
    if isinstance(place, Endpoint):
        return place
    runtime = place.runtime
    known = [*runtime.offers.paths(), *(served.path for served in runtime.served)]
    path = next((path for path in known if path[:2] == (place.namespace, place.name)), None)
    return place.endpoint(USUAL if path is None else path.endpoint)


log = logging.getLogger(__name__)

FIRST_BEAT: Final = 0.25
"""Seconds after a step until its number is repeated."""
LAST_BEAT: Final = 10.0
"""Each beat comes twice as late as the one before, but not later than this: who hears nothing for longer is cut off."""


class KvPublisher:
    """Publisher of what one instance caches. `instance` gives its id as it is now."""

    def __init__(self, bus: Bus, path: EndpointPath, instance: Callable[[], int]) -> None:
        self._bus, self._path, self._instance = bus, path, instance
        self._sender = Sender()
        self._pause = FIRST_BEAT
        self._quiet = True
        """Nothing was sent since the timer was set."""
        self._timer: asyncio.TimerHandle | None = None
        self.lost = 0
        """Messages that could not be sent; who listens will notice."""

    @classmethod
    def serve(cls, runtime: DistributedRuntime, path: EndpointPath) -> KvPublisher:
        """Make one for an endpoint of this process, and answer for it; to be called before the first request."""
        made = cls(runtime.bus, path, lambda: runtime.id)
        runtime.server.on_control(path, OPERATION, made.snapshot)
        return made

    def step(self, step: KvStep) -> None:
        """Publish what an engine step did; called on the loop."""
        worker = self._instance()
        for data in self._sender.step(step, worker, self._bus.max_payload):
            self._publish(data)
            self._quiet = False
        if not self._quiet and self._pause > FIRST_BEAT:
            self._beat_in(FIRST_BEAT)

    def snapshot(self, body: Any) -> Part:
        """Answer the control operation; from the first time on steps are sent."""
        part = self._sender.snapshot(body, self._bus.max_payload)
        if self._timer is None:
            self._beat_in(FIRST_BEAT)
        return part

    def stop(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat_in(self, seconds: float) -> None:
        self.stop()
        self._pause = seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._beat)

    def _beat(self) -> None:
        if self._quiet:
            self._publish(self._sender.beat(self._instance()))
        pause = min(2 * self._pause, LAST_BEAT) if self._quiet else FIRST_BEAT
        self._quiet = True
        self._beat_in(pause)

    def _publish(self, data: bytes) -> None:
        try:
            self._bus.publish(kv_subject(self._path.namespace, self._path.component, self._instance()), data)
        except (CannotConnect, InvalidArgument) as error:
            self.lost += 1
            log.debug("a KV event could not be sent: %s", error)


def kv_publisher(runtime: DistributedRuntime, path: EndpointPath) -> KvPublisher:
    """Return what this process's `KvEventPublisher`s of an endpoint share.

    All ranks of an instance are numbered together.
    """
    made: KvPublisher | None = runtime.kept.get((KvPublisher, path))
    if made is None:
        made = runtime.kept[KvPublisher, path] = KvPublisher.serve(runtime, path)
        runtime.on_close(made.stop)
    return made


class KvEventPublisher:
    """NVIDIA Dynamo's publisher of one data-parallel rank's blocks: made once the endpoint is known, before requests.

    `publish_stored` and `publish_removed` may be called from any thread. With `zmq_endpoint` the engine's own stream
    (vLLM's or SGLang's) is read instead, and nothing is published by hand; `zmq_replay_endpoint`, ours, closes gaps.
    Raises `ValueError` for arguments that can't be. Taken, and without effect here: `enable_local_indexer` (every
    publisher answers for itself), `batching_timeout_ms`, `image_token_id`, `video_token_id`, `kv_state_endpoint`.
    """

    def __init__(
        self,
        endpoint: Endpoint | Component,
        worker_id: int | None = None,
        kv_block_size: int = 0,
        dp_rank: int = 0,
        enable_local_indexer: bool = False,
        zmq_endpoint: str | None = None,
        zmq_topic: str | None = None,
        batching_timeout_ms: int | None = None,
        image_token_id: int | None = None,
        kv_state_endpoint: Any = None,
        video_token_id: int | None = None,
        *,
        zmq_replay_endpoint: str | None = None,
    ) -> None:
        endpoint = endpoint_of(endpoint)
        runtime = endpoint.runtime
        if kv_block_size < 1:
            raise ValueError(f"kv_block_size must be at least 1, not {kv_block_size}")
        if dp_rank < 0:
            raise ValueError(f"there is no data-parallel rank {dp_rank}")
        if worker_id not in (None, runtime.id):
            raise ValueError(f"worker_id {worker_id} is not this process, which is {runtime.id}")
        self._loop = asyncio.get_running_loop()
        self._blocks = EngineBlocks(kv_block_size)
        self._rank = dp_rank
        self._publisher = kv_publisher(runtime, endpoint.path)
        self._open = True
        self._source: ZmqSource | None = None
        if zmq_endpoint is not None:
            self._source = ZmqSource(
                zmq_endpoint, self._publisher.step, kv_block_size, dp_rank=dp_rank, topic=zmq_topic or "",
                replay_endpoint=zmq_replay_endpoint,
            )  # fmt: skip
            self._source.start()
            runtime.on_close(self.shutdown)
        runtime.announce(endpoint.path, {"kv_events": True, "kv_cache_block_size": kv_block_size})

    @overload
    def publish_stored(
        self, token_ids: Sequence[int], num_block_tokens: Sequence[int], block_hashes: Sequence[EngineHash],
        parent_hash: EngineHash | None = None, block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
        lora_name: str | None = None, is_eagle: bool | None = None, cache_salt: str | None = None,
    ) -> None: ...  # fmt: skip

    @overload
    def publish_stored(
        self, event_id: int, token_ids: Sequence[int], num_block_tokens: Sequence[int],
        block_hashes: Sequence[EngineHash], lora_id: int = 0, parent_hash: EngineHash | None = None,
    ) -> None: ...  # fmt: skip

    def publish_stored(self, *args: Any, **kwargs: Any) -> None:
        """Publish blocks that the engine has now. From the first on that isn't `kv_block_size` long they are left out.

        0.x's form begins with an event's number, which has no effect, and knows an adapter by a number, which
        then is its name. Raises `ValueError` for token ids or media that are none. Blocks whose parent was
        never published are ignored.
        """
        if "event_id" in kwargs or (args and type(args[0]) is int):
            self._submit([self._stored_of_0_x(*args, **kwargs)])
        else:
            self._submit([self._stored(*args, **kwargs)])

    @overload
    def publish_removed(self, block_hashes: Sequence[EngineHash]) -> None: ...

    @overload
    def publish_removed(self, event_id: int, block_hashes: Sequence[EngineHash]) -> None: ...

    def publish_removed(self, *args: Any, **kwargs: Any) -> None:
        """Publish blocks that the engine no longer has; unknown ones are ignored. 0.x's form begins with a number."""
        blocks = kwargs.get("block_hashes", args[-1] if args else None)
        if not isinstance(blocks, Sequence) or len(args) + len(kwargs) > 2:
            raise TypeError("publish_removed takes block_hashes, a list")
        self._submit([Removed(list(blocks))])

    def publish_batch(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Publish several of both as one message: `{"type": "stored" | "removed", ...}`, arguments as above."""
        batch: list[Event] = []
        for event in events:
            arguments = {name: value for name, value in event.items() if name != "type"}
            match event.get("type"):
                case "stored":
                    batch.append(self._stored(**arguments))
                case "removed":
                    batch.append(Removed(list(arguments["block_hashes"])))
                case other:
                    raise ValueError(f"an event is 'stored' or 'removed', not {other!r}")
        self._submit(batch)

    def shutdown(self) -> None:
        """Publish nothing more; what was published stays true until the process leaves."""
        self._open = False
        if self._source is not None:
            self._source.stop()

    def _stored(
        self, token_ids: Sequence[int], num_block_tokens: Sequence[int], block_hashes: Sequence[EngineHash],
        parent_hash: EngineHash | None = None, block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
        lora_name: str | None = None, is_eagle: bool | None = None, cache_salt: str | None = None,
    ) -> Stored:  # fmt: skip
        size = self._blocks.block_size
        whole = next((at for at, count in enumerate(num_block_tokens) if count != size), len(num_block_tokens))
        whole = min(whole, len(block_hashes))
        tokens = list(token_ids)[: whole * size + bool(is_eagle)]
        if not all(type(token) is int and 0 <= token < 1 << 32 for token in tokens):
            raise ValueError("a token id is a whole number from 0 to 2**32 - 1")
        return Stored(
            list(block_hashes)[:whole], parent_hash, tokens, size, lora_name, cache_salt,
            media_hashes(block_mm_infos or ()), bool(is_eagle),
        )  # fmt: skip

    def _stored_of_0_x(
        self, event_id: int, token_ids: Sequence[int], num_block_tokens: Sequence[int],
        block_hashes: Sequence[EngineHash], lora_id: int = 0, parent_hash: EngineHash | None = None,
    ) -> Stored:  # fmt: skip
        lora = str(lora_id) if lora_id else None
        return self._stored(token_ids, num_block_tokens, block_hashes, parent_hash, lora_name=lora)

    def _submit(self, events: list[Event]) -> None:
        if self._source is not None:
            raise ValueError("this publisher relays its engine's ZMQ stream; nothing is published by hand beside it")
        if self._open:
            self._loop.call_soon_threadsafe(self._publish, events)

    def _publish(self, events: list[Event]) -> None:
        for step in steps_of(events, self._blocks, self._rank):
            self._publisher.step(step)


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
