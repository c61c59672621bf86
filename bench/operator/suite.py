"""`make bench-operator`: the operator on a real API server with fake nodes; `--help` says what can be left out.

Every scenario has a control plane of its own. Prints each figure with its bar and writes all of them to
`bench/results/operator-<time>.json`; exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.operator.plane import ROOT, Plane
from bench.operator.scenarios import Figure, Sizes, burst, failover, floor, noisy, paced
from bench.processes import BenchError, busy_seconds

Scenario = Callable[[Plane, Sizes], Coroutine[Any, Any, list[Figure]]]
SCENARIOS: dict[str, Scenario] = {"floor": floor, "paced": paced, "burst": burst, "failover": failover, "noisy": noisy}


def main() -> None:
    """Runs what was asked for."""
    given = _arguments()
    try:
        found = {name: _run(name, given.sizes) for name in given.only}
    except BenchError as error:
        sys.exit(f"make bench-operator: {error}")
    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    path = results / f"operator-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps({k: [f._asdict() for f in v] for k, v in found.items()}, indent=1) + "\n")
    missed = [f"{k}: {f.name}" for k, v in found.items() for f in v if f.missed]
    print(f"\n{path.relative_to(ROOT)}; " + (f"MISSED: {', '.join(missed)}" if missed else "every bar is held"))
    sys.exit(1 if missed else 0)


def _run(name: str, sizes: Sizes) -> list[Figure]:
    print(f"\n{name}", flush=True)
    begun, busy = time.monotonic(), busy_seconds()
    # What failed leaves its logs behind.
    folder = Path(tempfile.mkdtemp(prefix="dynamo-bench-"))
    with Plane(folder) as plane:
        found = asyncio.run(SCENARIOS[name](plane, sizes))
    shutil.rmtree(folder)
    seconds = time.monotonic() - begun
    for figure in found:
        print(f"  {figure}", flush=True)
    print(f"  ({seconds:.0f} s, {(busy_seconds() - busy) / seconds:.1f} cores busy)", flush=True)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-operator", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(SCENARIOS), help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of pipelines")
    parser.add_argument("--rate", type=float, default=Sizes.rate, help="pipelines a second where they come at a pace")
    given = parser.parse_args()
    given.only = [name for name in given.only.split(",") if name]
    unknown = [name for name in given.only if name not in SCENARIOS]
    if unknown:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(SCENARIOS)}")
    given.sizes = replace(Sizes.scaled(given.scale), rate=given.rate)
    return given


if __name__ == "__main__":
    main()
