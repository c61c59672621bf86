"""`make bench-router`: routing by KV caches, ours and ai-dynamo's in turn, then what a decision and an event cost.

Per scenario both server sets are up at once and are kept over its rounds; each round has prompts of its own.
Within a round the sides follow each other, and the order changes from round to round.
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

from bench.figures import Results, disturbance, had_faults
from bench.model import model_folder, words
from bench.peer import VERSION, peer_python
from bench.processes import BenchError, Servers, busy_seconds, cpu_seconds, ended
from bench.router.micro import Figure, costs, peer_costs
from bench.router.scenarios import ANSWER_TOKENS, Scenario, conversations, select
from bench.router.servers import STARTERS, Fleet
from bench.router.table import micro_table, table
from bench.sides import MODEL

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("frontend", "worker", "nats", "etcd")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    only: tuple[str, ...]
    leave_out: tuple[str, ...]
    rounds: int
    scale: float
    micro: bool
    """The costs, too."""
    only_micro: bool
    output: Path | None
    frontend_options: tuple[str, ...] = ()


def parse(argv: Sequence[str]) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(
        prog="bench.router.suite", description=f"Compare with the router of ai-dynamo {VERSION}."
    )
    parser.add_argument("--only", default="", help="scenarios, separated by commas (all); micro: the costs alone")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each scenario and side (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of conversations (1)")
    parser.add_argument("--ours-only", action="store_true", help="leave ai-dynamo out")
    parser.add_argument(
        "--frontend-option",
        action="append",
        default=[],
        help="given to our frontends, e.g. --router-prefill-load-scale=2",
    )
    parser.add_argument("--output", type=Path, help="the JSON file (bench/results/router-<time>.json)")
    found = parser.parse_args(argv)
    only = tuple(name for name in found.only.split(",") if name)
    scenarios = tuple(name for name in only if name != "micro")
    left_out = ("peer",) if found.ours_only else ()
    micro = not only or "micro" in only
    return Options(
        scenarios, left_out, found.rounds, found.scale, micro, only == ("micro",), found.output,
        tuple(found.frontend_option),
    )  # fmt: skip


def send(fleet: Fleet, talks: list[Any], at_once: int) -> dict[str, Any]:
    """One run of the client; its figures with the CPU that the servers used meanwhile."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    task = {
        "urls": fleet.urls, "model": MODEL, "tokens_out": ANSWER_TOKENS, "at_once": at_once, "conversations": talks,
    }  # fmt: skip
    command = [sys.executable, "-m", "bench.router.client"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as client:
        try:
            return _talk(client, json.dumps(task), fleet)
        finally:
            client.kill()


def _talk(client: subprocess.Popen[str], task: str, fleet: Fleet) -> dict[str, Any]:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(task + "\n")
    client.stdin.flush()
    if client.stdout.readline().strip() != "ready":
        raise BenchError("the client could not connect (see above)")
    before = _usage(fleet, client.pid)
    client.stdin.write("go\n")
    client.stdin.flush()
    line = client.stdout.readline()
    after = _usage(fleet, client.pid)
    fleet.servers.check()
    if not line:
        raise BenchError("the client failed (see above)")
    figures: dict[str, Any] = json.loads(line)
    used = {part: after[part] - before[part] for part in before}
    own = sum(used[part] for part in used if part != "machine")
    capacity = figures["seconds"] * (os.cpu_count() or 1)
    return {
        **figures,
        "frontend_ms_per_request": used["frontend"] * 1e3 / figures["requests"],
        "others_share": max(0.0, used["machine"] - own) / capacity,
    }


def _usage(fleet: Fleet, client: int) -> dict[str, float]:
    found = {role: cpu_seconds(pids) if (pids := fleet.servers.pids(role)) else 0.0 for role in ROLES}
    return {**found, "client": cpu_seconds([client]), "machine": busy_seconds()}


def measure(fleet: Fleet, scenario: Scenario, number: int, vocabulary: Sequence[str], scale: float) -> dict[str, Any]:
    """One scenario on one side, once."""
    count = max(scenario.at_once, round(scenario.conversations * scale))
    prompts = f"{scenario.name}/{number}"

    def sent(conversations_sent: int, part: str) -> dict[str, Any]:
        talks = conversations(vocabulary, conversations_sent, prompts, f"{prompts}{part}")
        return send(fleet, talks, scenario.at_once)

    if not scenario.restart:
        return sent(count, "")
    sent(count // 2, "")
    before = sent(count // 2, "/before")["hit_ratio"]
    begin = time.monotonic()
    fleet.restart()
    back = time.monotonic() - begin
    after = sent(count // 2, "/after")
    kept = after["hit_ratio"] / before if before and after["hit_ratio"] is not None else None
    return {**after, "restart_seconds": back, "kept": kept}


def run(scenario: Scenario, options: Options, vocabulary: Sequence[str], model: Path, results: Results) -> None:
    """Start the sides of one scenario, measure, stop them."""
    sides = [side for side in scenario.sides if side not in options.leave_out]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynamo-bench-router-")))
        fleets = {
            side: STARTERS[side](stack.enter_context(Servers(folder / side)), scenario, model, options.frontend_options)
            for side in sides
        }
        for number in range(options.rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                figures = measure(fleets[side], scenario, number, vocabulary, options.scale)
                results.setdefault(scenario.name, {}).setdefault(side, []).append(figures)
                _progress(scenario, side, number, figures)


def _progress(scenario: Scenario, side: str, number: int, figures: dict[str, Any]) -> None:
    hits = "not told" if figures["hit_ratio"] is None else f"{figures['hit_ratio']:.3f}"
    said = f"{scenario.name:>7} {side} round {number + 1}: hit ratio {hits}"
    said += f", TTFT p50 {figures['ttft_p50_ms']:.1f} p99 {figures['ttft_p99_ms']:.1f} ms"
    if figures["faults"]:
        said += f", {figures['faults']} FAULTS: {figures['first_faults'][0]}"
    print(said, file=sys.stderr, flush=True)


def save(results: Results, micro: Sequence[Figure], options: Options) -> Path:
    """The machine-readable form."""
    path = options.output or ROOT / "bench" / "results" / time.strftime("router-%Y%m%d-%H%M%S.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "peer": f"ai-dynamo {VERSION}",
        "python": platform.python_version(),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "architecture": platform.machine()},
        "rounds": options.rounds,
        "scale": options.scale,
        "frontend_options": options.frontend_options,
        "results": results,
        "costs": [asdict(figure) for figure in micro],
    }
    path.write_text(json.dumps(content, indent=1))
    return path


def compare(options: Options) -> int:
    """Everything that was asked for; 1 if an answer was wrong."""
    scenarios = select(options.only) if options.only or not options.only_micro else ()
    results: Results = {}
    micro: list[Figure] = []
    try:
        if scenarios:
            if "peer" not in options.leave_out:
                peer_python()
            model = model_folder()
            for scenario in scenarios:
                run(scenario, options, words(model), model, results)
        if options.micro:
            micro = list(costs({} if "peer" in options.leave_out else peer_costs()))
    finally:
        if results or micro:
            print("\n\n".join(filter(None, (table(scenarios, results), micro_table(micro)))))
            print("\n".join(disturbance(results)))
            print(f"figures: {save(results, micro, options)}", file=sys.stderr)
    return int(had_faults(results))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    return ended(lambda: compare(parse(sys.argv[1:] if argv is None else argv)))


if __name__ == "__main__":
    sys.exit(main())
