"""`dynamo bench URL`: measure any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dynamo.cli.load_test.client import Load
    from dynamo.cli.load_test.report import Sample

_SAY_EVERY = 0.5

EPILOG = """\b
Examples:
  dynamo bench http://localhost:8000
  dynamo bench http://localhost:8000 --concurrency 32 --requests 500
  dynamo bench URL --rate 4 --ttft-ms 500 --itl-ms 40 --target-rate 100
  OPENAI_API_KEY=... dynamo bench https://api.example.com --model m -o json

\b
Prompts are made-up words, no two alike, so no cache has them. Exit codes:
0 measured, 1 no request was answered, 2 usage, 130 interrupted (what was
measured until then is printed).
"""


@click.command("bench", epilog=EPILOG)
@click.argument("url")
@click.option("--model", help="Model to ask; default: the only one that the server has.")
@click.option("--endpoint", type=click.Choice(["chat", "completions"]), default="chat", show_default=True, help="API.")
@click.option("--requests", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Requests in all.")
@click.option("--concurrency", type=click.IntRange(1, 1024), default=8, show_default=True, help="Requests at once.")
@click.option("--rate", type=click.FloatRange(0, 10_000, min_open=True), help="Requests a second, at random times.")
@click.option(
    "--max-seconds", type=click.FloatRange(1, 86_400), default=60.0, show_default=True, help="Longest measurement."
)
@click.option(
    "--input-words", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Words of a prompt."
)
@click.option(
    "--output-tokens", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Tokens of an answer."
)
@click.option("--ignore-eos", is_flag=True, help="Ask for answers of that length exactly; not every server can.")
@click.option("--ttft-ms", type=click.FloatRange(0, min_open=True), help="An answer is good up to this TTFT.")
@click.option("--itl-ms", type=click.FloatRange(0, min_open=True), help="An answer is good up to this ITL.")
@click.option("--target-rate", type=click.FloatRange(0, min_open=True), help="Say how many such servers this needs.")
@click.option("--key-env", default="OPENAI_API_KEY", show_default=True, help="Variable that holds the API key.")
@click.option("--seed", type=int, default=0, help="Another one makes other prompts.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format.")
def bench(url: str, **given: Any) -> None:
    """Measure TTFT, ITL, throughput and goodput of the server at URL."""
    from dynamo.cli.load_test import report
    from dynamo.cli.load_test.client import Load, api_url

    key = os.environ.get(given["key_env"], "").strip()
    load = Load(
        url=api_url(url), model=given["model"] or "", chat=given["endpoint"] == "chat", requests=given["requests"],
        concurrency=given["concurrency"], rate=given["rate"], max_seconds=given["max_seconds"],
        input_words=given["input_words"], output_tokens=given["output_tokens"], ignore_eos=given["ignore_eos"],
        seed=given["seed"], headers={"Authorization": f"Bearer {key}"} if key else {},
    )  # fmt: skip
    samples: list[Sample] = []
    interrupted, seconds = asyncio.run(_measure(load, samples))
    targets = report.Targets(*(None if given[name] is None else given[name] / 1000 for name in ("ttft_ms", "itl_ms")))
    measured = report.figures(samples, seconds, targets)
    wanted = given["target_rate"]
    if wanted is not None:
        measured["servers_for_target"] = report.workers_for(wanted, measured)
    if given["output"] == "json":
        click.echo(json.dumps(measured))
    else:
        click.echo("\n".join(report.lines(measured, samples, targets)))
        if wanted is not None:
            click.echo(_needed(wanted, measured["servers_for_target"]))
    if interrupted:
        raise SystemExit(130)
    raise SystemExit(0 if measured["failed"] < measured["requests"] else 1)


def _needed(rate: float, servers: int | None) -> str:
    if servers is None:
        return "\nno answer was good: how many servers are needed can't be said"
    return f"\n{rate:g} good requests/s need {servers} servers like this one, under load like this,\nspread evenly"


async def _measure(load: Load, samples: list[Sample]) -> tuple[bool, float]:
    """Fill `samples`; whether it was interrupted, and the seconds that it took."""
    from dataclasses import replace

    from dynamo.cli.load_test.client import MOST_AT_ONCE, client_for, model_of, run

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    async with client_for(load.url, load.concurrency if load.rate is None else MOST_AT_ONCE) as client:
        if not load.model:
            load = replace(load, model=await model_of(client, load.url, load.headers))
        began = time.perf_counter()
        progress = asyncio.ensure_future(_progress(samples, load.requests, began))
        try:
            await run(client, load, stop, samples.append)
        finally:
            progress.cancel()
            await asyncio.gather(progress, return_exceptions=True)
        return stop.is_set(), time.perf_counter() - began


async def _progress(samples: list[Sample], requests: int, began: float) -> None:
    """Say on a terminal how far it is."""
    if not sys.stderr.isatty():
        return
    try:
        while True:
            print(f"\r{len(samples)}/{requests} requests, {time.perf_counter() - began:.0f} s", end="", file=sys.stderr)
            await asyncio.sleep(_SAY_EVERY)
    finally:
        print("\r\033[K", end="", file=sys.stderr)
