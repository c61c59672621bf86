"""`dynamo simulate`: what a router mode would do with a trace, on simulated engines in simulated time."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from dynamo.cli.simulation.cluster import Cluster, Setup
from dynamo.cli.simulation.figures import figures, table
from dynamo.cli.simulation.plot import save_plot
from dynamo.cli.simulation.prompts import Prompts
from dynamo.cli.simulation.trace import MOONCAKE_BLOCK, Call, TraceError, TraceLine, calls, read_trace, write_trace
from dynamo.cli.simulation.workloads import SHAPES, generate
from dynamo.engine_catalog import traits_of
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.load_balancing import ROUTER_MODES
from dynamo.worker.engines.mocker.arguments import read_arguments
from dynamo.worker.settings import WorkerSettings

_MODES: Final = ("random", "round-robin", "least-loaded", "kv")
_SAY_EVERY: Final = 2.0
_ENGINE_BLOCK: Final = traits_of("mocker").kv_block_size
_REQUESTS: Final = 1000
_KV: Final = KvOptions()

EPILOG: Final = """\b
Examples:
  dynamo simulate trace.jsonl --workers 64 --engine-args '{"num_gpu_blocks": 8192}'
  dynamo simulate --workload agent --requests 5000 --rate 2 --router-mode kv --router-mode random
  dynamo simulate --workload shared-prefix --write-trace trace.jsonl

\b
A line of a trace: {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}, an id for
each block of the prompt; with "session_id" and "delay" (ms) it is sent that long after the answer before.
Time is the engines' alone: frontends, tokenizers and networks take none of it.
"""


@click.command("simulate", epilog=EPILOG)
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option("--workload", type=click.Choice(list(SHAPES)), help="A made-up trace instead of a file.")
@click.option("--requests", type=click.IntRange(1), help=f"How many of the trace; of a made-up one {_REQUESTS}.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="New conversations a second of a made-up trace.",
)
@click.option("--write-trace", type=click.Path(path_type=Path), help="Write the made-up trace here, and do no more.")
@click.option("--trace-block-size", type=click.IntRange(1), help=f"Tokens of a hash id; default {MOONCAKE_BLOCK}.")
@click.option("--workers", type=click.IntRange(1, 4096), default=4, show_default=True, help="Engines.")
@click.option(
    "--router-mode",
    "modes",
    multiple=True,
    type=click.Choice(ROUTER_MODES),
    help=f"How a worker is chosen; repeatable. Default: {', '.join(_MODES)}.",
)
@click.option("--engine-args", default="", help="The mocker's arguments: a JSON object, or @FILE.")
@click.option(
    "--router-prefill-load-scale",
    type=click.FloatRange(0),
    default=_KV.overlap_score_weight,
    show_default=True,
    help="As the frontend's.",
)
@click.option(
    "--router-temperature",
    type=click.FloatRange(0),
    default=_KV.temperature,
    show_default=True,
    help="As the frontend's.",
)
@click.option("--use-kv-events/--no-use-kv-events", default=True, show_default=True, help="As the frontend's.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the times to the first token here, as an SVG.")
def simulate(**given: Any) -> None:
    """Send a TRACE through the router to simulated engines, and say what clients would see.

    The router and the engines' scheduler are those of the real system, under a clock that jumps.
    """
    asked = _Asked(**given)
    if (asked.trace is None) == (asked.workload is None):
        raise click.UsageError("name a trace file, or --workload for a made-up one")
    if asked.write_trace is not None and asked.workload is None:
        raise click.UsageError("--write-trace goes with --workload")
    try:
        _write(asked, asked.write_trace) if asked.write_trace is not None else _simulate(asked)
    except (TraceError, InvalidArgument) as error:
        raise click.ClickException(str(error)) from None


@dataclass(frozen=True)
class _Asked:
    """The command line."""

    trace: Path | None
    workload: str | None
    requests: int | None
    rate: float
    write_trace: Path | None
    trace_block_size: int | None
    workers: int
    modes: tuple[str, ...]
    engine_args: str
    router_prefill_load_scale: float
    router_temperature: float
    use_kv_events: bool
    seed: int
    as_json: bool
    plot: Path | None

    @property
    def id_tokens(self) -> int:
        default = MOONCAKE_BLOCK if self.workload is None else SHAPES[self.workload].block
        return self.trace_block_size or default

    def setup(self) -> Setup:
        settings = WorkerSettings(engine="mocker", engine_args=self.engine_args)
        engine = read_arguments(settings.arguments(), _ENGINE_BLOCK)
        if engine.role not in (None, "aggregated"):
            raise InvalidArgument(
                f"{engine.role} engines by themselves can't be simulated; leave disaggregation_mode out"
            )
        kv = KvOptions(overlap_score_weight=self.router_prefill_load_scale, temperature=self.router_temperature)
        return Setup(self.workers, engine, kv, self.use_kv_events, self.seed)

    def made_up(self, workload: str) -> Iterator[TraceLine]:
        if self.id_tokens != SHAPES[workload].block:
            raise TraceError(f"--trace-block-size of workload {workload} is {SHAPES[workload].block}")
        return generate(workload, self.requests or _REQUESTS, self.rate, self.seed)

    def calls(self) -> list[Call]:
        if self.workload is not None:
            return calls(self.made_up(self.workload))
        assert self.trace is not None
        return read_trace(self.trace, self.id_tokens, self.requests)


def _write(asked: _Asked, file: Path) -> None:
    assert asked.workload is not None
    count = write_trace(file, asked.made_up(asked.workload))
    click.echo(f"{count} requests; hash ids stand for {asked.id_tokens} tokens each")


def _simulate(asked: _Asked) -> None:
    setup = asked.setup()
    trace = asked.calls()
    prompts = Prompts(setup.engine.limits.block_size, asked.id_tokens)
    began = min(call.at for call in trace if call.at is not None)
    results, first = [], {}
    for mode in asked.modes or _MODES:
        cluster = _one(setup, mode, prompts, trace)
        results.append(figures(mode, cluster, began))
        if asked.plot is not None:
            first[mode] = sorted(cluster.seen.first)
    if asked.plot is not None:
        save_plot(asked.plot, first)
    click.echo(json.dumps([result.to_dict() for result in results], indent=1) if asked.as_json else table(results))


def _one(setup: Setup, mode: str, prompts: Prompts, calls: list[Call]) -> Cluster:
    cluster = Cluster(setup, mode, prompts)
    gc.disable()  # a simulation makes no cycles, and looking for them takes a quarter of its time
    try:
        cluster.run(calls, _speaker(mode, len(calls)))
    finally:
        gc.enable()
    return cluster


def _speaker(mode: str, total: int) -> Callable[[int, int], None]:
    """Return what says on standard error how far it is, every two seconds of computing."""
    said = time.process_time()

    def speak(done: int, now: int) -> None:
        nonlocal said
        if time.process_time() - said >= _SAY_EVERY:
            said = time.process_time()
            hours = now / 3.6e12
            print(f"{mode}: {done:,} of {total:,} requests, {hours:.2f} h simulated", file=sys.stderr, flush=True)

    return speak
