"""What a server behind engine `openai` loses of its speed: it is asked by itself, and through our frontend and worker.

Run: python -m bench.engines.servers [llamacpp] [--text] [--tokens N] [--rounds N] [--streams 8]
     VLLM_CPU_KVCACHE_SPACE=1 .venv-vllm/bin/python -m bench.engines.servers vllm       (after `make test-vllm` made it)

The way through us is the whole of it: `dynamo-run in=http out=openai:URL MODEL`, which tokenizes, routes and asks by
token ids (`--text`: without MODEL, so in text). Both ways get the same requests from the same client, in turn, in
changing order; differences and shares are of rounds side by side, and figures are medians over the rounds. Answers of
another length than asked for end it. Client, worker and server share the machine's cores, so that what the worker
computes slows the server down here; beside a GPU it doesn't.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.client import Connection, Task, Times, summary
from bench.engines.suite import PROMPT, real_model
from bench.figures import verdict
from bench.processes import BenchError, Servers, ended, free_port, wait_for
from tests.worker.engine_rigs import stock_server
from tests.worker.engines.openai import llama_server

from dynamo.llm import open_model
from dynamo.runtime.process import event_loop

MOST_MILLISECONDS: Final = 1.0
"""Bar: what the first token comes later, in the median."""
LEAST_SHARE: Final = 0.97
"""Bar: tokens a second of several streams, of the bare server's."""
READY_SECONDS: Final = 300.0
SLOTS: Final = 8


class Sides(NamedTuple):
    """Where both are asked."""

    bare: str
    served: str
    model: str


def server_command(name: str, model: str, port: int) -> list[str]:
    """The stock server over a model, at a port."""
    if name == "llamacpp":
        return [sys.executable, str(llama_server.__file__), model, "--port", str(port), "--slots", str(SLOTS)]
    options = {"dtype": "bfloat16", "max-num-seqs": SLOTS, "max-model-len": 512}
    return stock_server(name, model, str(port), **options)


def answers(url: str) -> bool:
    """Whether a server lists a model."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
            return bool(json.loads(answer.read())["data"])
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return False


def model_of(url: str) -> str:
    """The name of the first model that a server lists."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
        name: str = json.loads(answer.read())["data"][0]["id"]
    return name


def started(servers: Servers, given: argparse.Namespace, folder: Path) -> Sides:
    """Start the server, and `dynamo-run` in front of it; both are ready."""
    source = real_model(given.server, folder)
    path = str(open_model(source).path) if given.server == "llamacpp" else source
    port, env = free_port(), {**os.environ, "PYTHONPATH": os.getcwd(), "XDG_STATE_HOME": str(folder)}
    bare = f"http://127.0.0.1:{port}"
    servers.start("server", server_command(given.server, path, port), env)
    wait_for("the server", lambda: answers(bare), servers, READY_SECONDS)
    model = model_of(bare)
    words = ["in=http", f"out=openai:{bare}/v1", *([] if given.text else [source]), "--model-name", model]
    log = servers.start("dynamo-run", [sys.executable, "-m", "dynamo.cli.run", *words, "--http-port", "0"], env)
    said: list[str] = []

    def ready() -> bool:
        said[:] = re.findall(r'^ready .*"url": "([^"]+)"', log.read_text(), re.MULTILINE)
        return bool(said) and answers(said[0])

    wait_for("dynamo-run", ready, servers, READY_SECONDS)
    return Sides(bare, said[0], model)


async def at_once_fresh(task: Task, prompts: list[str]) -> tuple[Times, float]:
    """All requests, `at_once` of them together, each over a connection of its own: llama-server keeps none open."""
    loop, times, waiting = asyncio.get_running_loop(), Times(), iter(prompts)

    async def drain() -> None:
        for prompt in waiting:
            _, connection = await loop.create_connection(lambda: Connection(task), *task.address)
            try:
                await connection.ask(task.request(prompt), times)
            finally:
                connection.close()

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(task.at_once):
            group.create_task(drain())
    return times, time.perf_counter() - start


async def measured(url: str, model: str, at_once: int, prompts: list[str], tokens: int) -> dict[str, Any]:
    """The figures of one measurement; answers that are not what was asked for end it."""
    task = Task(url, model, tokens, at_once, True, False, [], prompts, completions=True)
    await at_once_fresh(task, [f"{PROMPT} warm"] * at_once)
    times, seconds = await at_once_fresh(task, prompts)
    if times.faults:
        raise BenchError(f"{url} answered wrongly, nothing was measured: {times.faults[0]}")
    return summary(times, seconds, task)


async def side_by_side(
    sides: Sides, rounds: int, at_once: int, prompts: Callable[[int], list[str]], tokens: int
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Bare and served, round by round, after one that isn't counted."""
    found = []
    for number in range(rounds + 1):
        order = (sides.bare, sides.served) if number % 2 else (sides.served, sides.bare)
        figures = {url: await measured(url, sides.model, at_once, prompts(number), tokens) for url in order}
        if number:
            found.append((figures[sides.bare], figures[sides.served]))
    return found


def of_first(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """A line."""
    bare = statistics.median(bare["ttft_p50_ms"] for bare, _ in pairs)
    more = statistics.median(served["ttft_p50_ms"] - bare["ttft_p50_ms"] for bare, served in pairs)
    return (
        f"  first token, one stream: bare {bare:.2f} ms, served {more:+.2f} ms (bar < {MOST_MILLISECONDS:g})"
        f" {verdict(more, MOST_MILLISECONDS)}"
    )


def of_streams(count: int, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """A line."""
    share = statistics.median(served["tokens_per_second"] / bare["tokens_per_second"] for bare, served in pairs)
    bare, served = (statistics.median(pair[side]["tokens_per_second"] for pair in pairs) for side in (0, 1))
    return (
        f"  {count} streams: bare {bare:.1f} tokens/s, served {served:.1f}; served/bare {share:.3f}"
        f" (bar >= {LEAST_SHARE}) {verdict(-share, -LEAST_SHARE)}"
    )


async def compare(sides: Sides, given: argparse.Namespace) -> None:
    """Print the lines. Prompts of a round are its own: none is in a cache, on either side."""
    short = await side_by_side(
        sides, given.rounds, 1, lambda turn: [f"{turn}, {n}: {PROMPT}" for n in range(given.requests)], 2
    )
    print(of_first(short), flush=True)
    count = given.streams
    long = await side_by_side(
        sides, given.rounds, count, lambda turn: [f"{turn}; {n}: {PROMPT}" for n in range(2 * count)], given.tokens
    )
    print(of_streams(count, long), flush=True)


def work(given: argparse.Namespace) -> int:
    """Measure one server."""
    with tempfile.TemporaryDirectory(prefix="dynamo-bench-") as made, Servers(Path(made) / "logs") as servers:
        sides = started(servers, given, Path(made))
        print(f"{given.server}'s server, Gemma 3 270M, {'in text' if given.text else 'by token ids'}:", flush=True)
        event_loop.run(compare(sides, given))
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.engines.servers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("server", nargs="?", default="llamacpp", choices=("llamacpp", "vllm"))
    parser.add_argument("--text", action="store_true", help="ask in text, not by token ids")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--requests", type=int, default=20, help="of a round that measures first tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=SLOTS)
    return ended(lambda: work(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
