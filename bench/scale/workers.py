"""`make bench-workers`: a thousand registered workers on real etcd and NATS (five minutes).

How long a new frontend takes to see them all, what everybody uses while nothing happens, how large `/health` and
`/metrics` are, and what happens when all of them are killed and started anew under requests. Bars stand beside the
figures; nothing is asserted but that no request fails once the frontend has settled.

Each is a client of etcd and NATS of its own, so a thousand in ten processes keep a core busy at rest.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
from bench.model import model_folder
from bench.processes import BenchError, Servers, busy_seconds, cpu_seconds, ended, rss_mb, wait_for
from bench.scale.fleet import START_SECONDS, Fleet, ids, routable, start_fleet, start_frontend
from bench.sides import MODEL, get, our_variables

ROLES: Final = ("frontend", "worker", "nats", "etcd")
PROCESSES: Final = 10
ENGINE: Final = {"speedup_ratio": 0}
VIEW_BAR, REST_BAR, SETTLED_BAR = 3.0, 5.0, 15.0
"""Seconds of a new frontend; per cent of a core; seconds after a mass restart."""
PER_SECOND: Final = 20.0
AFTER_SECONDS: Final = 10.0
ASK_SECONDS: Final = 5.0
_VIEW_POLL: Final = 0.05


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    workers: int
    rest: float


@dataclass(slots=True)
class Asked:
    """Requests at a pace, and how they ended; a phase begins with `take`."""

    url: str
    ends: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Ask until it is over."""
        body = {"model": MODEL, "prompt": "one two three", "max_tokens": 2, "ignore_eos": True}
        with httpx.Client(timeout=ASK_SECONDS) as client:
            while not self.over.wait(1 / PER_SECOND):
                try:
                    end = str(client.post(f"{self.url}/v1/completions", json=body).status_code)
                except httpx.HTTPError as error:
                    end = type(error).__name__
                self.ends[end] += 1

    def take(self) -> Counter[str]:
        """How requests have ended since it was last asked."""
        taken, self.ends = self.ends, Counter()
        return taken


def parse(argv: Sequence[str]) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(prog="bench.scale.workers", description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--rest", type=float, default=20.0, help="seconds in which nothing happens (20)")
    given = parser.parse_args(argv)
    return Options(given.workers, given.rest)


def at_rest(servers: Servers, seconds: float) -> str:
    """What each role uses, in per cent of a core."""
    before = {role: cpu_seconds(servers.pids(role)) for role in ROLES}
    busy, began = busy_seconds(), time.perf_counter()
    time.sleep(seconds)
    servers.check()
    took = time.perf_counter() - began
    used = {role: 100 * (cpu_seconds(servers.pids(role)) - before[role]) / took for role in ROLES}
    parts = ", ".join(f"{role} {percent:.1f}%" for role, percent in used.items())
    return f"at rest        {parts} of a core (bar {REST_BAR:g} for the frontend); machine " + (
        f"{100 * (busy_seconds() - busy) / took:.0f}%"
    )


def new_frontend(servers: Servers, env: dict[str, str], workers: set[str]) -> str:
    """Start another frontend and wait until it can route to all."""
    began = time.perf_counter()
    url = start_frontend(servers, env, ("--router-mode", "round-robin"), role="second")
    answered = 0.0
    while not workers <= routable(url):
        servers.check()
        if not answered and get(f"{url}/live") is not None:
            answered = time.perf_counter() - began
        if time.perf_counter() - began > 120:
            raise BenchError(f"the new frontend sees {len(routable(url))} of {len(workers)} workers after two minutes")
        time.sleep(_VIEW_POLL)
    took = time.perf_counter() - began
    memory = rss_mb(servers.pids("second"))
    servers.stop("second")
    return (
        f"new frontend   sees all after {took:.2f} s (bar {VIEW_BAR:g}), of which {answered:.2f} until it answers; "
        f"{memory:.0f} MB"
    )


def pages(url: str) -> str:
    """How large the two pages are, and how long they take."""
    lines = []
    for path in ("/health", "/metrics"):
        began = time.perf_counter()
        with urllib.request.urlopen(f"{url}{path}", timeout=30) as answer:
            size = len(answer.read())
        lines.append(f"{path} {size / 1024:.0f} KB in {(time.perf_counter() - began) * 1e3:.1f} ms")
    return f"pages          {', '.join(lines)}"


def mass_restart(servers: Servers, env: dict[str, str], fleet: Fleet, url: str) -> tuple[list[str], int]:
    """Kill all, start them anew, under requests; the lines, and how many failed after it had settled."""
    asked = Asked(url)
    asking = threading.Thread(target=asked.run)
    asking.start()
    try:
        time.sleep(3)
        before = asked.take()
        servers.stop("worker", kill=True)
        began = time.perf_counter()
        started = [servers.start("worker", fleet.command(model_folder()), env) for _ in range(fleet.processes)]
        wait_for("the first of the new workers", lambda: bool(ids(started)), servers, START_SECONDS)
        first = time.perf_counter() - began
        wait_for(
            "the frontend to see only what is there", lambda: _settled(url, started, fleet), servers, START_SECONDS
        )
        settled = time.perf_counter() - began
        meanwhile = asked.take()
        time.sleep(AFTER_SECONDS)
        after = asked.take()
    finally:
        asked.over.set()
        asking.join()
    failed = sum(count for end, count in after.items() if end != "200")
    return [
        f"mass restart   settled {settled - first:.1f} s after the first of the new ones was ready (bar "
        f"{SETTLED_BAR:g}), and {settled:.1f} s after all were killed: starting {fleet.processes} processes is in it",
        f"requests       before {dict(before)}, meanwhile {dict(meanwhile)}, after {dict(after)} (bar: 200 only)",
    ], failed + (not after)


def _settled(url: str, started: Sequence[Path], fleet: Fleet) -> bool:
    """Tell whether a frontend can route to all of the new ones, and to nobody else."""
    new = ids(started)
    return len(new) == fleet.size and routable(url) == new


def run(options: Options) -> int:
    """All of it; 1 where a request failed after a mass restart had settled."""
    fleet = Fleet(PROCESSES, max(1, options.workers // PROCESSES), ENGINE)
    with tempfile.TemporaryDirectory(prefix="bench-workers-") as folder, Servers(Path(folder)) as servers:
        env = our_variables(servers)
        url = start_frontend(servers, env, ("--router-mode", "round-robin"))
        began = time.perf_counter()
        workers = start_fleet(servers, fleet, model_folder(), env)
        print(f"workers        {len(workers)}, ready after {time.perf_counter() - began:.1f} s", flush=True)
        print(new_frontend(servers, env, workers), flush=True)
        print(at_rest(servers, options.rest), flush=True)
        print(pages(url), flush=True)
        lines, failed = mass_restart(servers, env, fleet, url)
        print("\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(ended(lambda: run(parse(sys.argv[1:]))))
