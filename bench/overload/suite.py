"""`make bench-overload`: three times what the engines can do, for a minute; prints what was served and what refused.

One frontend, two mock workers whose slots are the capacity, etcd and NATS. First a closed loop finds the capacity,
then an open one sends a multiple of it. What it is held against stands beside each figure; nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.model import model_folder
from bench.overload.client import QUICK_SECONDS, Task
from bench.processes import BenchError, Servers, busy_seconds, cpu_seconds, ended, rss_mb
from bench.sides import MODEL, WORKERS, Side, start_slots

ROOT = Path(__file__).resolve().parents[2]
SLOTS = 32
"""Per worker."""
SPARE = 8
"""Requests that may wait in the engines, so that a slot that becomes free is taken at once."""
SPEED = 0.5
"""Of the engines: slow enough that slots are the capacity, and not this machine's cores."""
TOKENS_OUT = 64
WARM_UP_SECONDS = 5.0
LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    seconds: float
    factor: float
    frontend_options: tuple[str, ...]
    output: Path | None


@dataclass(slots=True)
class Looks:
    """The frontend's resident memory in MB, each second of a phase."""

    mb: list[float] = field(default_factory=list)

    @property
    def grown(self) -> float:
        """From the second third of the phase to the last: what the first third brings is buffers that stay."""
        third = max(1, len(self.mb) // 3)
        return sum(self.mb[-third:]) / third - sum(self.mb[third : 2 * third]) / third if len(self.mb) >= 3 else 0.0


def parse(argv: Sequence[str]) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(prog="bench.overload.suite", description="More load than the engines can take.")
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload (60)")
    parser.add_argument("--factor", type=float, default=3.0, help="times the capacity (3)")
    parser.add_argument(
        "--frontend-option", action="append", default=[], help="in place of --max-requests-per-model, e.g. "
        "--busy-threshold=0.5",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="the JSON file (bench/results/overload-<time>.json)")
    found = parser.parse_args(argv)
    return Options(found.seconds, found.factor, tuple(found.frontend_option), found.output)


def phase(side: Side, task: Task) -> dict[str, Any]:
    """Send one phase's load; its figures, with what the frontend used meanwhile."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    pids, looks, over = side.servers.pids("frontend"), Looks(), threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            looks.mb.append(rss_mb(pids))

    watching = threading.Thread(target=look)
    before, busy, began = cpu_seconds(pids), busy_seconds(), time.perf_counter()
    watching.start()
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "bench.overload.client"], input=json.dumps(asdict(task)) + "\n", env=env,
            stdout=subprocess.PIPE, text=True, timeout=task.seconds + 120, check=False,
        )  # fmt: skip
    finally:
        over.set()
        watching.join()
    side.servers.check()
    if ran.returncode:
        raise BenchError("the client failed (see above)")
    took = time.perf_counter() - began
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures | {
        "frontend_cores": (cpu_seconds(pids) - before) / took, "machine_cores": (busy_seconds() - busy) / took,
        "rss_mb": looks.mb, "grown_mb": looks.grown,
    }  # fmt: skip


def told(capacity: dict[str, Any], overload: dict[str, Any], factor: float) -> list[str]:
    """The lines for a reader: each figure with what it is held against."""
    share = overload["served_per_second"] / max(1e-9, capacity["served_per_second"])
    slow, refused = overload["refused_slower_than_bar"], max(1, overload["refused"])
    rss = overload["rss_mb"] or [0.0]
    return [
        f"capacity       {capacity['served_per_second']:.1f} requests/s of {TOKENS_OUT} tokens, "
        f"frontend {capacity['frontend_cores']:.2f} cores",
        f"asked for      {factor:g} times as much",
        f"served         {overload['served_per_second']:.1f} requests/s, {share:.0%} of the capacity (bar 90%)",
        f"refused        {overload['refused']}, of them without Retry-After {overload['without_retry_after']} (bar 0)",
        f"a refusal      {overload['refused_p50_ms']:.1f} ms (p50), {overload['refused_p99_ms']:.1f} ms (p99); "
        f"{slow / refused:.2%} over {QUICK_SECONDS * 1e3:g} ms (bar 0)",
        f"served in      {overload['whole_p50_ms']:.0f} ms (p50), {overload['whole_p99_ms']:.0f} ms (p99); "
        f"at capacity {capacity['whole_p50_ms']:.0f} and {capacity['whole_p99_ms']:.0f}",
        f"neither        {overload['faults']} (bar 0) {'; '.join(overload['first_faults'])}",
        f"memory         {rss[0]:.0f} MB at the beginning, {max(rss):.0f} at most; "
        f"{overload['grown_mb']:+.1f} from the second third to the last",
        f"frontend       {overload['frontend_cores']:.2f} cores; the machine {overload['machine_cores']:.2f}",
    ]


def run(options: Options) -> int:
    """All of it."""
    most = WORKERS * SLOTS + SPARE
    flags = options.frontend_options or (f"--max-requests-per-model={most}",)
    with tempfile.TemporaryDirectory(prefix="bench-overload-") as folder, Servers(Path(folder)) as servers:
        side = start_slots(servers, model_folder(), SLOTS, SPEED, ("--router-mode", "least-loaded", *flags))
        phase(side, Task(side.url, MODEL, TOKENS_OUT, WARM_UP_SECONDS, at_once=most))
        capacity = phase(side, Task(side.url, MODEL, TOKENS_OUT, options.seconds / 3, at_once=most))
        rate = capacity["served_per_second"] * options.factor
        overload = phase(side, Task(side.url, MODEL, TOKENS_OUT, options.seconds, rate=rate))
    print("\n".join(told(capacity, overload, options.factor)))
    output = options.output or ROOT / "bench" / "results" / time.strftime("overload-%Y%m%d-%H%M%S.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"flags": flags, "capacity": capacity, "overload": overload}, indent=1))
    print(f"all figures: {output}")
    return 1 if overload["faults"] else 0


if __name__ == "__main__":
    sys.exit(ended(lambda: run(parse(sys.argv[1:]))))
