"""What our server costs over `vllm serve` on a GPU: first tokens, gaps and tokens a second, at several loads.

Run: .venv-gpu/bin/python -m bench.engines.gpu [--streams 1,8,64,256] [--rounds 3] [--sides run,up,openai]

All sides compute the same model on the same GPU, and every load is asked of each in turn, in changing order:

  bare    `vllm serve`, by its own module
  run     `dynamo-run in=http out=vllm`: frontend and worker in one process
  up      `dynamo up`: frontend, worker, etcd and NATS as processes of their own
  openai  `dynamo-run in=http out=openai:BARE`: our frontend in front of the very server that is bare

The model has the shape of a Mistral 7B (`--layers` makes it smaller) and weights that vLLM draws, so nothing is
downloaded; its tokenizer is the one of `bench/model.py`. Each engine takes its share of the GPU's memory, and rests
while another is asked. Shares are medians over rounds side by side; answers of another length end it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.client import Connection, Task, send, summary
from bench.engines.servers import answers
from bench.figures import median, ratio
from bench.model import model_folder, words
from bench.processes import BenchError, Servers, cpu_seconds, ended, free_port, wait_for

from dynamo.runtime.process import event_loop

NAME: Final = "gpu"
READY_SECONDS: Final = 400.0
SEQUENCES: Final = 256
CONTEXT: Final = 2048
CACHE_BYTES: Final = 8 << 30
"""Of each engine: 256 answers of a few hundred tokens fit in."""
SIDES: Final = ("run", "up", "openai")
FIGURES: Final = ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "tokens_per_second")
HEAD: Final = ("streams", "side", "TTFT p50 ms", "p99", "ITL p50 ms", "p99", "tokens/s", "of bare", "CPU us/token")
Rounds = dict[str, list[dict[str, Any]]]
"""Figures of each round, by side."""


def shape(layers: int, given: dict[str, Any]) -> dict[str, Any]:
    """The model's config.json: Mistral 7B's figures over those of the tokenizer's own model."""
    return {
        **given, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768,
    }  # fmt: skip


def write_model(folder: Path, layers: int) -> Path:
    """A checkout without weights; it is returned."""
    shutil.copytree(model_folder(), folder)
    config = folder / "config.json"
    config.write_text(json.dumps(shape(layers, json.loads(config.read_text()))))
    return folder


def engine_arguments(share: float) -> dict[str, Any]:
    """What each vLLM is told, by the names of `vllm serve`."""
    return {
        "load-format": "dummy", "dtype": "bfloat16", "max-model-len": CONTEXT, "max-num-seqs": SEQUENCES,
        "gpu-memory-utilization": share, "kv-cache-memory-bytes": CACHE_BYTES,
    }  # fmt: skip


def pipeline(model: Path, arguments: dict[str, Any]) -> str:
    """The pipeline of side `up` (JSON is YAML)."""
    spec = {
        "model": {"source": str(model), "name": NAME},
        "components": [{"name": "worker", "engine": "vllm", "engineArgs": arguments}],
    }
    head = {"apiVersion": "dynamo.dev/v1alpha1", "kind": "DynamoPipeline", "metadata": {"name": NAME}}
    return json.dumps({**head, "spec": spec})


def run_words(output: str, model: Path, port: int, *more: str) -> list[str]:
    """The words of `dynamo-run` for a side."""
    return ["in=http", f"out={output}", str(model), "--model-name", NAME, "--http-port", str(port), *more]


def command(side: str, model: Path, folder: Path, port: int, bare: str, share: float) -> list[str]:
    """How a side is started at a port."""
    arguments = engine_arguments(share)
    python = [sys.executable, "-m"]
    if side == "bare":
        options = [f"--{name}={value}" for name, value in arguments.items()]
        server = [*python, "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", NAME]
        return [*server, "--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log", *options]
    if side == "openai":
        return [*python, "dynamo.cli.run", *run_words(f"openai:{bare}/v1", model, port)]
    if side == "run":
        file = folder / "engine.json"
        file.write_text(json.dumps(arguments))
        return [*python, "dynamo.cli.run", *run_words("vllm", model, port, "--extra-engine-args", str(file))]
    file = folder / "gpu.yaml"
    file.write_text(pipeline(model, arguments))
    return [*python, "dynamo.cli", "up", str(file), "--http-port", str(port)]


def started(servers: Servers, given: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Start all sides, the bare one first, since another is in front of it; addresses by side."""
    model = write_model(folder / "model", given.layers)
    env = {**os.environ, "XDG_STATE_HOME": str(folder), "PYTHONUNBUFFERED": "1"}
    urls: dict[str, str] = {}
    # One after the other: each then finds what the first has compiled, and measures the GPU's memory in peace.
    for side in ("bare", *given.sides):
        port = free_port()
        urls[side] = f"http://127.0.0.1:{port}"
        servers.start(side, command(side, model, folder, port, urls["bare"], given.share), env)
        wait_for(f"side {side}", lambda url=urls[side]: answers(url), servers, READY_SECONDS)  # type: ignore[misc]
        print(f"{side} is ready", flush=True)
    return urls


async def measured(url: str, at_once: int, prompts: Sequence[str], tokens: int) -> dict[str, Any]:
    """The figures of one measurement; answers that are not what was asked for end it."""
    task = Task(url, NAME, tokens, at_once, True, False, [], list(prompts), completions=True)
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(lambda: Connection(task), *task.address))[1] for _ in range(at_once)]
    try:
        times, seconds = await send(connections, [task.request(prompt) for prompt in prompts])
    finally:
        for connection in connections:
            connection.close()
    if times.faults:
        raise BenchError(f"{url} answered wrongly, nothing was measured: {times.faults[0]}")
    return summary(times, seconds, task)


def prompts_of(vocabulary: Sequence[str], number: int, count: int, length: int) -> list[str]:
    """So many prompts of a round; each begins with a number of its own, so that none is in a cache."""

    def words_of(row: int) -> Iterator[str]:
        start = number * 100_003 + row * 331
        return (vocabulary[(start + at) * 7919 % len(vocabulary)] for at in range(length))

    return [f"{row} of {number}: {' '.join(words_of(row))}" for row in range(count)]


async def side_by_side(
    servers: Servers, urls: dict[str, str], given: argparse.Namespace, at_once: int, vocabulary: Sequence[str]
) -> Rounds:
    """All sides, round by round, after one that isn't counted."""
    rounds: Rounds = {side: [] for side in urls}
    count = max(8, 2 * at_once)
    for number in range(given.rounds + 1):
        order = list(urls.items())
        for turn, (side, url) in enumerate(order if number % 2 else reversed(order)):
            prompts = prompts_of(vocabulary, at_once * 1000 + number * 10 + turn, count, given.words)
            before = cpu_seconds(servers.pids(side))
            figures = await measured(url, at_once, prompts, given.tokens)
            figures["cpu"] = (cpu_seconds(servers.pids(side)) - before) * 1e6 / figures["tokens"]
            if number:
                rounds[side].append(figures)
    return rounds


def table_lines(at_once: int, rounds: Rounds) -> Iterator[str]:
    """One row of the table for each side."""
    for side, figures in rounds.items():
        share = ratio(figures, rounds["bare"], "tokens_per_second")
        cells = [median(figures, name) or 0.0 for name in FIGURES]
        cpu = median(figures, "cpu") or 0.0
        texts = [f"{cell:.2f}" for cell in cells[:-1]] + [f"{cells[-1]:.0f}", f"{share or 0.0:.3f}", f"{cpu:.0f}"]
        yield "| " + " | ".join([str(at_once), side, *texts]) + " |"


def machine(lines: Iterable[str]) -> str:
    """What it was measured on; `lines` are nvidia-smi's."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("vllm", "torch"))
    return f"{'; '.join(lines)}; {versions}; {os.cpu_count()} cores"


def gpus() -> list[str]:
    """Name, driver and memory of each GPU, as nvidia-smi says them."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchError(f"nvidia-smi doesn't answer: {error}") from error


async def compare(servers: Servers, urls: dict[str, str], given: argparse.Namespace) -> None:
    """Print the table as it is made."""
    vocabulary = words(model_folder())
    print("| " + " | ".join(HEAD) + " |\n" + "|" + "---|" * len(HEAD), flush=True)
    for at_once in given.streams:
        rounds = await side_by_side(servers, urls, given, at_once, vocabulary)
        print("\n".join(table_lines(at_once, rounds)), flush=True)


def work(given: argparse.Namespace) -> int:
    """Measure all sides."""
    found = gpus()
    with tempfile.TemporaryDirectory(prefix="dynamo-bench-") as made:
        logs = Path(given.logs or f"{made}/logs")
        with Servers(logs.absolute()) as servers:
            urls = started(servers, given, Path(made))
            print(f"{machine(found)}; {given.layers} layers, {given.tokens} tokens an answer:", flush=True)
            event_loop.run(compare(servers, urls, given))
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")
    return 0


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench.engines.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sides", type=lambda text: text.split(","), default=list(SIDES))
    parser.add_argument("--streams", type=lambda text: [int(word) for word in text.split(",")], default=[1, 8, 64, 256])
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--words", type=int, default=100, help="of a prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=32, help="of the model")
    parser.add_argument("--share", type=float, default=0.3, help="of the GPU's memory, for each of three engines")
    parser.add_argument("--logs", help="folder that keeps what the servers say")
    return parser


def main() -> int:
    """Read the command line."""
    given = options().parse_args()
    if unknown := set(given.sides) - set(SIDES):
        raise SystemExit(f"bench.engines.gpu: no side {', '.join(sorted(unknown))}: there are {', '.join(SIDES)}")
    return ended(lambda: work(given))


if __name__ == "__main__":
    sys.exit(main())
