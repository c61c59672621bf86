"""`dynamo simulate`: what a router mode would do with a trace, on simulated engines in simulated time."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from dynamo.cli.simulation.cluster import Cluster, Setup
from dynamo.cli.simulation.figures import Figures, figures, table
from dynamo.cli.simulation.placing import MODES
from dynamo.cli.simulation.prompts import Prompts
from dynamo.cli.simulation.trace import MOONCAKE_BLOCK, Call, TraceError, calls, read_trace, write_trace
from dynamo.cli.simulation.workloads import SHAPES, generate
from dynamo.frontend.kv import KvOptions
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.mock.arguments import MockArguments, read_arguments
from dynamo.worker.settings import WorkerSettings

_MODES: Final = ("random", "round-robin", "least-loaded", "kv")
_SAY_EVERY: Final = 2.0
_ENGINE_BLOCK: Final = 64

EPILOG: Final = """\b
Examples:
  dynamo simulate trace.jsonl --workers 64 --engine-args '{"num_gpu_blocks": 8192}'
  dynamo simulate --workload agent --requests 5000 --rate 2 --router-mode kv --router-mode random
  dynamo simulate --workload e --write-trace e.jsonl

\b
A line of a trace: {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}, an id for
each block of the prompt; with "session_id" and "delay" (ms) it is sent that long after the answer before.
Time is the engines' alone: frontends, tokenizers and networks take none of it.
"""


@click.command("simulate", epilog=EPILOG)
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option("--workload", type=click.Choice(list(SHAPES)), help="A made-up trace instead of a file.")
@click.option("--requests", type=click.IntRange(1), help="How many of the trace; of a made-up one 1000.")
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
    type=click.Choice(MODES),
    help=f"How a worker is chosen; repeatable. Default: {', '.join(_MODES)}.",
)
@click.option("--engine-args", default="", help="The mocker's arguments: a JSON object, or @FILE.")
@click.option("--overlap-score-weight", type=float, default=1.0, show_default=True, help="As the frontend's.")
@click.option("--router-temperature", type=float, default=0.0, show_default=True, help="As the frontend's.")
@click.option("--use-kv-events/--no-use-kv-events", default=True, show_default=True, help="As the frontend's.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of all that is drawn.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def simulate(trace: Path | None, workload: str | None, as_json: bool, **given: Any) -> None:
    """Send a TRACE through the router to simulated engines, and say what clients would see.

    The router and the engines' scheduler are those of the real system, under a clock that jumps.
    """
    if (trace is None) == (workload is None):
        raise click.UsageError("name a trace file, or --workload for a made-up one")
    try:
        _simulate(trace, workload, as_json, given)
    except (TraceError, InvalidArgument) as error:
        raise click.ClickException(str(error)) from None


def _simulate(trace: Path | None, workload: str | None, as_json: bool, given: dict[str, Any]) -> None:
    if given["write_trace"] is not None:
        if workload is None:
            raise click.UsageError("--write-trace goes with --workload")
        count = write_trace(given["write_trace"], _made_up(workload, given))
        click.echo(f"{count} requests; hash ids stand for {SHAPES[workload].block} tokens each")
        return
    setup = _setup(given)
    found = _calls(trace, workload, given)
    prompts = Prompts(setup.engine.limits.block_size, _id_tokens(workload, given))
    results = [_one(setup, mode, prompts, found) for mode in given["modes"] or _MODES]
    click.echo(json.dumps([one.to_dict() for one in results], indent=1) if as_json else table(results))


def _setup(given: dict[str, Any]) -> Setup:
    engine = _engine(given["engine_args"])
    kv = KvOptions(overlap_score_weight=given["overlap_score_weight"], temperature=given["router_temperature"])
    return Setup(given["workers"], engine, kv, given["use_kv_events"], given["seed"])


def _engine(text: str) -> MockArguments:
    return read_arguments(WorkerSettings(engine="mocker", engine_args=text).arguments(), _ENGINE_BLOCK)


def _id_tokens(workload: str | None, given: dict[str, Any]) -> int:
    default = MOONCAKE_BLOCK if workload is None else SHAPES[workload].block
    return int(given["trace_block_size"] or default)


def _calls(trace: Path | None, workload: str | None, given: dict[str, Any]) -> list[Call]:
    if trace is not None:
        return read_trace(trace, _id_tokens(workload, given), given["requests"])
    assert workload is not None
    return calls(_made_up(workload, given))


def _made_up(workload: str, given: dict[str, Any]) -> Iterator[Any]:
    if given["trace_block_size"] not in (None, SHAPES[workload].block):
        raise TraceError(f"--trace-block-size of workload {workload} is {SHAPES[workload].block}")
    return generate(workload, given["requests"] or 1000, given["rate"], given["seed"])


def _one(setup: Setup, mode: str, prompts: Prompts, found: list[Call]) -> Figures:
    cluster = Cluster(setup, mode, prompts)
    gc.disable()  # a simulation makes no cycles, and looking for them takes a quarter of its time
    try:
        cluster.run(found, _speaker(mode, len(found)))
    finally:
        gc.enable()
    return figures(mode, cluster, min(call.at for call in found if call.at is not None))


def _speaker(mode: str, total: int) -> Callable[[int, int], None]:
    """Says on standard error how far it is, every two seconds."""
    said = time.monotonic()

    def speak(done: int, now: int) -> None:
        nonlocal said
        if time.monotonic() - said >= _SAY_EVERY:
            said = time.monotonic()
            hours = now / 3.6e12
            print(f"{mode}: {done:,} of {total:,} requests, {hours:.2f} h simulated", file=sys.stderr, flush=True)

    return speak
