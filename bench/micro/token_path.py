"""What a token costs between a worker's frame and the socket: `PYTHONPATH=. python -m bench.micro.token_path`.

Decoding a step's frame, the inbox, detokenising, the SSE chunk and its framing, all warm and without system calls: the
most that compiled modules could save. CPU time, the median of five runs.
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

from dynamo.frontend.http.chunked_answer import writer
from dynamo.frontend.responses.response import ResponseOptions, SseResponse
from dynamo.frontend.responses.stream import BatchWriter, PlainWire, ResponseStream
from dynamo.llm.processing.detokenize import Detokenizer
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.request_plane.call import OpenStream
from dynamo.runtime.request_plane.inbox import Inbox
from dynamo.runtime.request_plane.wire import VERSION, StepFrame, decode_frame, encoder

TOKENS: Final = 100_000
RUNS: Final = 5
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
        return writer(cycle, flow, _drop)


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


def cost(streams: int) -> float:
    """Return the nanoseconds a token with so many streams of one worker."""
    after: list[Callable[[], None]] = []
    batch = BatchWriter(after.append, time.monotonic)
    inbox = Inbox(InstanceKey(EndpointPath("bench", "backend", "generate"), WORKER), 0.0)
    inbox.link(0)
    for number in range(1, streams + 1):
        inbox.streams[number] = OpenStream(number, reader(batch), lambda error: None)
    items: Any = [[(number, (step + number) % len(WORDS)) for number in range(1, streams + 1)] for step in range(100)]
    steps = TOKENS // streams
    frames = [encoder.encode(StepFrame(VERSION, WORKER, n + 1, [], items[n % 100])) for n in range(steps)]
    began = time.process_time()
    for frame in frames:
        inbox.receive(decode_frame(frame), 0.0)
        while after:
            after.pop()()
    return (time.process_time() - began) / (steps * streams) * 1e9


def main() -> None:
    """Measure, and print a line for each number of streams."""
    gc.disable()
    for streams in STREAMS:
        taken = [cost(streams) for _ in range(RUNS)]
        print(f"{streams:>4} streams: {statistics.median(taken):,.0f} ns a token")


if __name__ == "__main__":
    main()
