"""`make bench`: both sides up at once, every workload measured on each in turn, one table at the end.

Servers are started fresh for each group of workloads that share an engine speed and a tokenizer, and kept over its
rounds. Within a round the two sides follow each other at once, and the order changes from round to round, so that
drift of the machine falls on both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.figures import SIDES, Results, absolute_bars, disturbance, had_faults, per_unit, table, whole_system
from bench.model import model_folder, words
from bench.peer import VERSION, peer_python
from bench.processes import BenchError, Servers, busy_seconds, cpu_seconds, ended, rss_mb
from bench.sides import MODEL, STARTERS, Plan, Side
from bench.workloads import Workload, groups, prompts, select

ROOT = Path(__file__).resolve().parents[1]
CLIENT_SECONDS = 300.0
ROLES = ("frontend", "worker", "nats", "etcd")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    only: tuple[str, ...]
    sides: tuple[str, ...]
    rounds: int
    scale: float
    frontend_options: tuple[str, ...]
    output: Path | None


def parse(argv: Sequence[str]) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(prog="bench/run.py", description=f"Compare with ai-dynamo {VERSION}.")
    parser.add_argument("--only", default="", help="workloads, separated by commas (all)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each workload and side (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of requests (1)")
    parser.add_argument(
        "--frontend-option", action="append", default=[], help="given to our frontend, e.g. --workers=2"
    )
    parser.add_argument("--output", type=Path, help="the JSON file (bench/results/<time>.json)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--ours-only", action="store_true")
    which.add_argument("--peer-only", action="store_true")
    found = parser.parse_args(argv)
    sides = ("ours",) if found.ours_only else ("peer",) if found.peer_only else SIDES
    only = tuple(name for name in found.only.split(",") if name)
    return Options(only, sides, found.rounds, found.scale, tuple(found.frontend_option), found.output)


def _usage(side: Side) -> dict[str, float]:
    return {role: cpu_seconds(pids) if (pids := side.servers.pids(role)) else 0.0 for role in ROLES}


def _task(side: Side, workload: Workload, texts: Sequence[str]) -> str:
    warm, measured = texts[: workload.warm_up], texts[workload.warm_up :]
    return json.dumps(
        {
            "url": side.url,
            "model": MODEL,
            "tokens_out": workload.tokens_out,
            "at_once": workload.at_once,
            "stream": workload.stream,
            "quick_ack": workload.quick_ack,
            "warm_up": warm,
            "prompts": measured,
            "wave_seconds": workload.wave_seconds,
        }
    )


def _talk(client: subprocess.Popen[str], task: str, side: Side) -> tuple[dict[str, Any], dict[str, float]]:
    """Run the client's two halves; its figures, and the CPU seconds that the servers used in the second."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(task + "\n")
    client.stdin.flush()
    if client.stdout.readline().strip() != "warm":
        side.servers.check()
        raise BenchError("the client failed while warming up (see above)")
    before = {**_usage(side), "client": cpu_seconds([client.pid]), "machine": busy_seconds()}
    client.stdin.write("go\n")
    client.stdin.flush()
    line = client.stdout.readline()
    after = {**_usage(side), "machine": busy_seconds()}
    side.servers.check()
    if not line:
        raise BenchError("the client failed while measuring (see above)")
    figures: dict[str, Any] = json.loads(line)
    after["client"] = figures.pop("client_cpu")
    return figures, {part: after[part] - before[part] for part in before}


def measure(side: Side, workload: Workload, texts: Sequence[str]) -> dict[str, Any]:
    """One workload on one side, once."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "bench.client"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as client:
        try:
            figures, cpu = _talk(client, _task(side, workload, texts), side)
        finally:
            client.kill()
    requests = figures["requests"]
    units = {role: per_unit(workload, cpu[role], requests) for role in ROLES}
    rss = rss_mb(side.servers.pids("frontend"))
    ours = sum(cpu[part] for part in cpu if part != "machine")
    capacity = figures["seconds"] * (os.cpu_count() or 1)
    return {
        **figures,
        "frontend": units["frontend"],
        "workers": units["worker"],
        "nats": units["nats"],
        "etcd": units["etcd"],
        "total": sum(units.values()),
        "worker_us_per_token": cpu["worker"] * 1e6 / figures["tokens"],
        "rss_mb": rss,
        "rss_beyond_tokenizer_mb": rss - max(0.0, side.rss_loaded - side.rss_empty),
        "client_us_per_token": cpu["client"] * 1e6 / figures["tokens"],
        # What neither the servers nor the client used: somebody else was on the machine.
        "others_share": max(0.0, cpu["machine"] - ours) / capacity,
    }


def _scaled(workload: Workload, scale: float) -> int:
    return max(workload.at_once, round(workload.requests * scale))


def run_group(
    plan: Plan, workloads: Sequence[Workload], options: Options, vocabulary: Sequence[str], results: Results
) -> None:
    """Start the sides of one group, measure, stop them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynamo-bench-")))
        sides = {}
        for name in options.sides:
            servers = stack.enter_context(Servers(folder / name))
            sides[name] = STARTERS[name](servers, plan)
        for workload in workloads:
            for number in range(options.rounds):
                count = workload.warm_up + _scaled(workload, options.scale)
                seed = f"{workload.name}/{number}"
                texts = prompts(vocabulary, workload.tokens_in, count, seed, workload.long_tokens)
                for name in options.sides if number % 2 == 0 else tuple(reversed(options.sides)):
                    figures = measure(sides[name], workload, texts)
                    results.setdefault(workload.name, {}).setdefault(name, []).append(figures)
                    _progress(workload, name, number, figures)


def _progress(workload: Workload, side: str, number: int, figures: dict[str, Any]) -> None:
    said = f"{workload.name:>3} {side} round {number + 1}: frontend {figures['frontend']:.3f} {workload.metric}"
    said += (
        f", workers {figures['workers']:.3f}, TTFT p50 {figures['ttft_p50_ms']:.2f} p99 {figures['ttft_p99_ms']:.2f} ms"
    )
    if figures["faults"]:
        said += f", {figures['faults']} FAULTS: {figures['first_faults'][0]}"
    print(said, file=sys.stderr, flush=True)


def report(workloads: Sequence[Workload], results: Results) -> str:
    """What is printed at the end."""
    lines = [table(workloads, results), "", "All processes of each side, ours to the peer's:", ""]
    lines += [whole_system(workloads, results), ""]
    lines += absolute_bars(results)
    lines += disturbance(results)
    return "\n".join(lines)


def save(workloads: Sequence[Workload], results: Results, options: Options) -> Path:
    """The machine-readable form."""
    path = options.output or ROOT / "bench" / "results" / time.strftime("%Y%m%d-%H%M%S.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "peer": f"ai-dynamo {VERSION}",
        "python": platform.python_version(),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "architecture": platform.machine()},
        "rounds": options.rounds,
        "scale": options.scale,
        "workloads": [asdict(w) for w in workloads],
        "results": results,
    }
    path.write_text(json.dumps(content, indent=1))
    return path


def compare(options: Options) -> int:
    """Everything that was asked for; 1 if an answer was wrong."""
    workloads = select(options.only)
    if "peer" in options.sides:
        peer_python()
    model = model_folder()
    vocabulary = words(model)
    results: Results = {}
    try:
        for group, members in groups(workloads):
            plan = Plan(model, group.speed, group.tokenizer, options.frontend_options, group.workers)
            run_group(plan, members, options, vocabulary, results)
    finally:
        if results:
            print(report(workloads, results))
            print(f"figures: {save(workloads, results, options)}", file=sys.stderr)
    return int(had_faults(results))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    return ended(lambda: compare(parse(sys.argv[1:] if argv is None else argv)))


if __name__ == "__main__":
    sys.exit(main())
