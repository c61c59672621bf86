"""A worker, asked at the bus: a request's bytes in, its frames out.

What a caller does to write the one and to use the other is a frontend's part, which `make bench` measures.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
from bench.engines.bare import Answers
from bench.processes import BenchError

from dynamo.llm.protocols import PreprocessedRequest, SamplingOptions, StopConditions
from dynamo.runtime.names import InstanceKey, frame_subject, reply_subject, request_subject
from dynamo.runtime.request_plane.wire import FAILED, MORE, VERSION, Item, Request, decode_frame, encoder
from dynamo.runtime.transport.bus import Bus, Message
from dynamo.runtime.transport.memory import MemoryNetwork, MemorySubscription


class NoBus(MemoryNetwork):
    """Once `quick`, a message is there when it is sent: what a bus takes is the bus's (`make bench`)."""

    quick = False

    def _hand(self, listeners: list[MemorySubscription], message: Message) -> None:  # type: ignore[override]
        if not self.quick:
            super()._hand(listeners, message)
            return
        for subscription in listeners:
            subscription.on_message(message)


class Wire:
    """One client of one instance. `prepare` writes requests, `at_once` and `in_turn` send them."""

    def __init__(self, bus: Bus, client: int, instance: InstanceKey, ids: list[int]) -> None:
        self._bus, self._client, self._instance, self._ids = bus, client, instance, ids
        self._last = 0
        self._open: dict[int, tuple[list[int], asyncio.Future[int]]] = {}
        self._seconds = 0.0

    async def listen(self) -> None:
        """Before the first request."""
        namespace = self._instance.path.namespace
        await self._bus.subscribe(frame_subject(namespace, self._client), self._on_frame, lambda: None)

    def prepare(self, count: int, tokens: int) -> list[tuple[int, bytes]]:
        """So many requests for so many tokens each, with the numbers of their streams."""
        request = PreprocessedRequest(
            model="m", token_ids=self._ids, sampling_options=SamplingOptions(temperature=0.0),
            stop_conditions=StopConditions(max_tokens=tokens, ignore_eos=True),
        )  # fmt: skip
        payload = msgspec.Raw(encoder.encode(request))
        first, self._last = self._last + 1, self._last + count
        return [(stream, self._encoded(stream, payload)) for stream in range(first, first + count)]

    def _encoded(self, stream: int, payload: msgspec.Raw) -> bytes:
        name = f"00000000-0000-4000-8000-{stream:012x}"
        return encoder.encode(Request(VERSION, self._client, stream, name, 0, {}, payload))

    async def at_once(self, requests: list[tuple[int, bytes]]) -> Answers:
        """To all of them."""
        began = time.perf_counter()
        came = await asyncio.gather(*(self._answer(*request) for request in requests))
        return Answers(sum(came), time.perf_counter() - began)

    async def in_turn(self, requests: list[tuple[int, bytes]]) -> Answers:
        """The same, each sent when the one before is answered: seconds from there to its last frame's arrival."""
        self._seconds = 0.0
        came = sum([await self._answer(*request) for request in requests])
        return Answers(came, self._seconds)

    def _answer(self, stream: int, request: bytes) -> asyncio.Future[int]:
        """How many tokens came, once the last has."""
        over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._open[stream] = [], over
        path = self._instance.path
        subject, reply = request_subject(self._instance), reply_subject(path.namespace, self._client, stream)
        self._began = time.perf_counter()
        self._bus.publish(subject, request, reply)
        return over

    def _on_frame(self, message: Message) -> None:
        now = time.perf_counter()
        for item in decode_frame(message.data).items:
            self._take(item, now)

    def _take(self, item: Item, now: float) -> None:
        """An item is a token's id, or `[ids, reason, extras]`."""
        counts, over = self._open[item.stream]
        if item.end == FAILED:
            over.set_exception(BenchError(f"the worker refused a request: {item.data}"))
            return
        counts.append(1 if item.data.__class__ is int else len(item.data[0]))
        if item.end != MORE:
            del self._open[item.stream]
            self._seconds += now - self._began
            over.set_result(sum(counts))
