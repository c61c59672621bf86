"""`make bench-streams`: ten thousand open streams of a token a second through one frontend (five minutes).

Forty simulated engines of 256 sequences in two processes, whose steps take a second. Once all streams are open, the
frontend is asked for something else: `/live`, which shows how long its loop is busy, and new requests of a model that
answers at once. Bars stand beside the figures; nothing is asserted but that each stream was whole.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.client import Task
from bench.model import model_folder, words
from bench.processes import BenchError, Servers, busy_seconds, cpu_seconds, ended, rss_mb
from bench.scale.fleet import PROBE, Fleet, start_fleet, start_frontend, start_probe
from bench.sides import MODEL, our_variables
from bench.workloads import prompts

ROOT: Final = Path(__file__).resolve().parents[2]
ROLES: Final = ("frontend", "worker", "nats", "etcd")
SEQUENCES: Final = 256
"""Of an engine at once."""
PROCESSES: Final = 2
STEP_MS: Final = 5.74
"""What a mocker's step takes whose cache is empty."""
KB_BAR, LIVE_BAR_MS, FIRST_BAR_MS = 25.0, 20.0, 50.0
MARGIN_SECONDS: Final = 15.0
SPARE: Final = 64
"""Requests that a frontend may have beside the streams; its own default is 8,192 in all."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    streams: int
    per_second: float
    seconds: float
    frontend_options: tuple[str, ...]

    @property
    def tokens_out(self) -> int:
        """Tokens of a stream, one a second: the first one lasts until the last one was held."""
        return round(self.streams / self.per_second + self.seconds + MARGIN_SECONDS)


def parse(argv: Sequence[str]) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(prog="bench.scale.streams", description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--per-second", type=float, default=150.0, help="streams that are opened (150)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of looking at them, when all are open (30)")
    parser.add_argument("--frontend-option", action="append", default=[], help="e.g. --workers=2")
    given = parser.parse_args(argv)
    return Options(given.streams, given.per_second, given.seconds, tuple(given.frontend_option))


def fleet(streams: int) -> Fleet:
    """Engines with a sequence for each stream; a step of them takes a second."""
    each = -(-streams // (SEQUENCES * PROCESSES))
    blocks = 1 << 20  # so many that the share in use, by which steps get longer, stays near 0
    return Fleet(PROCESSES, each, {
        "decode_speedup_ratio": STEP_MS / 1e3, "num_gpu_blocks": blocks, "max_num_seqs": SEQUENCES,
    })  # fmt: skip


def _child(module: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )


def _give(child: subprocess.Popen[str], task: dict[str, Any]) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(task) + "\n")
    child.stdin.flush()


def _line(child: subprocess.Popen[str], servers: Servers) -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    servers.check()
    if not line:
        raise BenchError("a client failed (see above)")
    return line


def look(servers: Servers, url: str, seconds: float, client: int | None = None) -> dict[str, Any]:
    """Ask the frontend for other things for so long; its answers' times, and what all processes used meanwhile."""
    task = Task(url, PROBE, 4, 1, stream=True, quick_ack=False, warm_up=[], prompts=["one two three four five six"])
    pids = {role: servers.pids(role) for role in ROLES} | ({"client": [client]} if client else {})
    before, busy, began = {role: cpu_seconds(of) for role, of in pids.items()}, busy_seconds(), time.perf_counter()
    with _child("bench.scale.probe") as probe:
        _give(probe, {"task": asdict(task), "seconds": seconds})
        figures: dict[str, Any] = json.loads(_line(probe, servers))
    took = time.perf_counter() - began
    cores = {f"{role}_cores": (cpu_seconds(of) - before[role]) / took for role, of in pids.items()}
    return figures | cores | {"machine_cores": (busy_seconds() - busy) / took}


def hold(servers: Servers, url: str, options: Options, count: int, seconds: float) -> dict[str, Any]:
    """Open so many streams, look, and wait for their ends."""
    tokens = options.tokens_out if seconds else 3
    texts = prompts(words(model_folder()), 32, count, f"streams/{count}")
    task = Task(
        url, MODEL, tokens, count, stream=True, quick_ack=False, warm_up=[], prompts=texts,
        request_seconds=options.tokens_out * 3.0,
    )  # fmt: skip
    began = time.perf_counter()
    with _child("bench.scale.stream_client") as client:
        _give(client, {"task": asdict(task), "per_second": options.per_second})
        _line(client, servers)
        took = time.perf_counter() - began
        held = {"opened_in": took, "rss_mb": rss_mb(servers.pids("frontend"))}
        if seconds:
            held |= look(servers, url, seconds, client.pid)
        over = time.perf_counter() - began
        figures: dict[str, Any] = json.loads(_line(client, servers))
    if seconds and not figures["faults"] and figures["first_end"] < over:
        raise BenchError(
            f"the first stream ended after {figures['first_end']:.0f} s, before the look at all of them was over "
            f"({over:.0f} s): --per-second is more than this machine opens"
        )
    return figures | held


def told(options: Options, alone: dict[str, Any], held: dict[str, Any], first_rss: float) -> list[str]:
    """The lines for a reader: each figure with what it is held against."""
    kb = (held["rss_mb"] - first_rss) * 1024 / max(1, options.streams - 1)
    cores = ", ".join(f"{role} {held[f'{role}_cores']:.2f}" for role in (*ROLES, "client", "machine"))
    return [
        f"streams        {options.streams} of a token a second, open after {held['opened_in']:.0f} s",
        f"whole          {held['whole']}; {held['faults']} faults (bar 0) {'; '.join(held['first_faults'])}",
        f"memory         {kb:.1f} KB for each beyond the first (bar {KB_BAR:g}); {held['rss_mb']:.0f} MB in all",
        f"/live          {held['live_p50_ms']:.1f} ms (p50), {held['live_p99_ms']:.1f} (p99, bar {LIVE_BAR_MS:g}), "
        f"{held['live_most_ms']:.1f} at most; without streams {alone['live_p50_ms']:.1f}, {alone['live_p99_ms']:.1f}, "
        f"{alone['live_most_ms']:.1f}",
        f"first token    {held['first_p50_ms']:.1f} ms (p50), {held['first_p99_ms']:.1f} (p99, bar {FIRST_BAR_MS:g}); "
        f"without streams {alone['first_p50_ms']:.1f}, {alone['first_p99_ms']:.1f}",
        f"pace           {held['itl_p50_s']:.3f} s between tokens (p50), {held['itl_p99_s']:.3f} (p99), "
        f"{held['itl_most_s']:.3f} at most",
        f"cores          {cores}",
        f"a token        {held['frontend_cores'] / options.streams * 1e6:.1f} us of the frontend, "
        f"{sum(held[f'{role}_cores'] for role in ROLES) / options.streams * 1e6:.1f} of all servers",
    ]


def run(options: Options) -> int:
    """All of it; 1 where a stream wasn't whole."""
    model = model_folder()
    with tempfile.TemporaryDirectory(prefix="bench-streams-") as folder, Servers(Path(folder)) as servers:
        env = our_variables(servers)
        room = f"--max-concurrent-requests={options.streams + SPARE}"
        # fastokens would be loaded amid the streams, once, and its 36 MB counted as theirs
        fixed = ("--router-mode", "round-robin", "--tokenizer", "fastokens", room)
        url = start_frontend(servers, env, (*fixed, *options.frontend_options))
        start_probe(servers, model, env)
        start_fleet(servers, fleet(options.streams), model, env)
        first_rss = float(hold(servers, url, options, 1, 0.0)["rss_mb"])
        alone = look(servers, url, options.seconds / 3)
        held = hold(servers, url, options, options.streams, options.seconds)
    print("\n".join(told(options, alone, held, first_rss)))
    return 1 if held["faults"] else 0


if __name__ == "__main__":
    sys.exit(ended(lambda: run(parse(sys.argv[1:]))))
