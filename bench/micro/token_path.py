"""What a token costs between a worker's frame and the socket: `PYTHONPATH=. python -m bench.micro.token_path`.

Decoding a step's frame, the inbox, detokenising, the SSE chunk and its framing, without system calls. Warm is the most
that compiled modules could save. Cold, the processor's caches are emptied between two steps, as a kernel that sends
hundreds of chunks does: there each object that a token touches is a wait for memory. CPU time, the median of five runs.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from tests.frontend.responses.event_readers import WHO, Spoken

from dynamo.frontend.http.chunked_answer import ChunkWriter
from dynamo.frontend.responses.response import ResponseOptions, SseResponse
from dynamo.frontend.responses.stream import BatchWriter, PlainWire, ResponseStream
from dynamo.llm.processing.detokenize import Detokenizer
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.request_plane.call import OpenStream
from dynamo.runtime.request_plane.inbox import Inbox
from dynamo.runtime.request_plane.wire import VERSION, StepFrame, decode_frame, encoder

TOKENS: Final = 100_000
RUNS: Final = 5
COLD_STEPS: Final = 100
CACHES: Final = bytearray(48 << 20)
"""Bytes that leave no room for others in the caches when they are copied."""
WORKER: Final = 7
STREAMS: Final = (4, 128)
"""As many as a worker has in workload `q`, and in `P`."""
WORDS: Final = [f" word{number}" for number in range(100)]


class Words:
    """A tokenizer with a text for each of a hundred ids."""

    def text_stream(self, prompt_ids: Any, skip_special: bool) -> Any:
        return SimpleNamespace(step=WORDS.__getitem__)


class Nowhere(PlainWire):
    """A connection whose bytes are framed, and dropped."""

    def __init__(self) -> None:
        super().__init__(None)

    def opener(self, send: Any) -> Any:
        return lambda status, headers, data, last: True

    def writer(self, send: Any) -> Callable[..., bool]:
        cycle: Any = SimpleNamespace(chunked_encoding=True, response_complete=False, disconnected=False)
        flow: Any = SimpleNamespace(write_paused=False)
        return ChunkWriter(cycle, flow, _drop).write


def _drop(data: bytes) -> None:
    """Send nothing."""


async def _unsent(message: dict[str, Any]) -> None:
    """Send nothing, where a writer didn't."""


def reader(batch: BatchWriter) -> Callable[[Any, bool], None]:
    """Return what takes the tokens of one stream."""
    meter: Any = SimpleNamespace(gap=lambda seconds, count: None)
    output = ResponseStream(_unsent, Nowhere(), stall_seconds=1.0, meter=meter)
    options = ResponseOptions(chat=True, choices=1)
    response = SseResponse(WHO, options, output, batch, headers=[], meter=meter, first_token=lambda: None)
    tokenizer: Any = Words()
    choice: Any = Spoken("stop")
    detokenizer = Detokenizer(tokenizer, max_tokens=sys.maxsize)

    def on_item(token: Any, last: bool) -> None:
        response.text(choice, detokenizer.push_one(token))

    return on_item


def cost(streams: int, cold: bool = False) -> float:
    """Return the nanoseconds a token with so many streams of one worker."""
    after: list[Callable[[], None]] = []
    batch = BatchWriter(after.append, time.monotonic)
    inbox = Inbox(InstanceKey(EndpointPath("bench", "backend", "generate"), WORKER), 0.0)
    inbox.link(0)
    for number in range(1, streams + 1):
        inbox.streams[number] = OpenStream(number, reader(batch), lambda error: None)
    items: Any = [[(number, (step + number) % len(WORDS)) for number in range(1, streams + 1)] for step in range(100)]
    steps = COLD_STEPS if cold else TOKENS // streams
    frames = [encoder.encode(StepFrame(VERSION, WORKER, n + 1, [], items[n % 100])) for n in range(steps)]
    taken = 0.0
    for frame in frames:
        if cold:
            bytes(CACHES)
        began = time.process_time()
        inbox.receive(decode_frame(frame), 0.0)
        while after:
            after.pop()()
        taken += time.process_time() - began
    return taken / (steps * streams) * 1e9


def main() -> None:
    """Measure, and print a line for each number of streams."""
    gc.disable()
    for streams in STREAMS:
        warm, cold = (statistics.median(cost(streams, empties) for _ in range(RUNS)) for empties in (False, True))
        print(f"{streams:>4} streams: {warm:,.0f} ns a token, with cold caches {cold:,.0f} ns")


if __name__ == "__main__":
    main()
