"""`python -m bench.soak`: the same work for hours, and whether anything grows by it.

`make soak` runs it; docs/design/testing/soak.md says how its report is read. Exit code 1: something grew, or a request
ended wrong.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click
from bench.processes import BenchError
from bench.soak import pipelines, serving
from bench.soak.growth import Growth, Readings, judged

HALVES: Final = ("serving", "operator")
SHORTEST: Final = 3.0
"""Minutes. Caches fill for a quarter of the run, and the rest needs some readings."""
_SHOWN: Final = 20


@click.command(help="Do the same work for hours, and tell whether memory, descriptors, tasks or keys grow.")
@click.option("--minutes", type=float, default=120.0, show_default=True, help="Of work.")
@click.option("--rate", type=float, default=15.0, show_default=True, help="Requests a second.")
@click.option("--sample", type=click.FloatRange(min=1.0), default=10.0, show_default=True, help="Seconds to a reading.")
@click.option("--only", type=click.Choice(HALVES), help="One half of it; both run side by side by default.")
@click.option("--keep", is_flag=True, help="Keep the processes' logs though all is well.")
def main(minutes: float, rate: float, sample: float, only: str | None, keep: bool) -> None:
    if minutes < SHORTEST:
        raise click.UsageError(f"--minutes {minutes:g} is too short: {SHORTEST:g} at least")
    folder, began = Path(tempfile.mkdtemp(prefix="soak-")), time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - began:7.1f}] {text}")
        sys.stdout.flush()

    good = False
    try:
        wanted = HALVES if only is None else (only,)
        good = asyncio.run(_soak(wanted, folder, minutes * 60, rate, sample, say))
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("ended early; all processes are gone")
        sys.exit(130)
    except (BenchError, ValueError) as error:
        click.echo(f"soak: {error}")
    finally:
        if keep or not good:
            click.echo(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if good else 1)


async def _soak(
    wanted: Sequence[str], folder: Path, seconds: float, rate: float, sample: float, say: Callable[[str], None]
) -> bool:
    """Run the halves side by side and report; True where nothing grew and no request ended wrong."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    served: serving.Serving | None = None
    operated: pipelines.Pipelines | None = None

    async def serve() -> None:
        nonlocal served
        (folder / "serving").mkdir()
        served = await serving.soak(folder / "serving", seconds, rate, sample, say)

    async def operate() -> None:
        nonlocal operated
        operated = await pipelines.soak(folder / "operator", seconds, sample, say)

    try:
        async with asyncio.TaskGroup() as group:  # the other half ends with one that fails
            for name, work in zip(HALVES, (serve, operate), strict=True):
                if name in wanted:
                    group.create_task(work())
    except ExceptionGroup as failed:
        raise BenchError("; ".join(f"{type(error).__name__}: {error}" for error in failed.exceptions)) from failed
    readings: list[Readings] = []
    expected: set[str] = set()
    wrong: list[str] = []
    if served is not None:
        readings.append(served.readings)
        expected |= {*serving.STAY, *serving.SERVERS}
        wrong = served.violations
        click.echo(f"{served.requests} requests, {len(wrong)} ended wrong")
    if operated is not None:
        readings.append(operated.readings)
        expected.add("operator")
        click.echo(f"{operated.made} pipelines were made, and all but the last {pipelines.THERE} deleted")
    growths = [judged(series, seconds) for half in readings for series in half.series()]
    if missing := expected - {growth.of for growth in growths}:
        raise BenchError(f"nothing could be read of {', '.join(sorted(missing))}")
    _report(growths, wrong)
    return not wrong and not any(growth.missed for growth in growths)


def _report(growths: Sequence[Growth], wrong: Sequence[str]) -> None:
    click.echo(f"{'of':<20}{'what':<18}{'at first':>10}{'at last':>10}{'grows':>10}")
    for growth in growths:
        click.echo(str(growth))
    for line in wrong[:_SHOWN]:
        click.echo(line)
    missed = sum(growth.missed for growth in growths)
    click.echo(f"{len(growths)} figures, {missed} grow")


if __name__ == "__main__":
    main()
