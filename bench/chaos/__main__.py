"""`python -m bench.chaos`: traffic against real processes while a seeded schedule kills, pauses, slows and cuts them.

`make chaos` runs it; docs/design/testing/chaos.md says how its report is read. Exit code 1: something was violated.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
from bench.chaos import network
from bench.chaos.report import Outcome, listing, report
from bench.chaos.run import CALM, Options, run


@click.command(help="Break things under traffic, and check that every request ends once and right.")
@click.option(
    "--seed", "seeds", multiple=True, type=int, default=(1, 2, 3, 4, 5), show_default=True, help="Repeatable."
)
@click.option("--minutes", type=float, default=2.0, show_default=True, help="Of faults and traffic, for each seed.")
@click.option("--rate", type=float, default=6.0, show_default=True, help="Requests a second.")
@click.option("--every", type=float, default=2.0, show_default=True, help="Seconds from fault to fault, at the mean.")
@click.option("--keep", is_flag=True, help="Keep the processes' logs though all is well.")
def main(seeds: tuple[int, ...], minutes: float, rate: float, every: float, keep: bool) -> None:
    seconds = minutes * 60
    if seconds < 2 * CALM:
        raise click.UsageError(f"--minutes {minutes:g} is too short: {2 * CALM / 60:.2f} at least")
    missing = network.enter(sys.argv[1:])
    if missing:
        click.echo(f"No network of its own can be made here, so no link is cut; the rest is done. Why: {missing}")
    options = Options(seconds, rate, apart=not missing, every=every, warm=min(10.0, seconds / 6))
    try:
        outcomes = [one_seed(seed, options, keep) for seed in seeds]
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("ended early; all processes are gone")
        sys.exit(130)
    bad = [outcome.seed for outcome in outcomes if outcome.violations]
    click.echo(f"{len(outcomes)} seeds, violations with {bad}" if bad else f"{len(outcomes)} seeds, 0 violations")
    sys.exit(1 if bad else 0)


def one_seed(seed: int, options: Options, keep: bool) -> Outcome:
    """Run it and say what came of it; logs stay where something was wrong."""
    folder, began = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-")), time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - began:6.1f}] {text}")
        sys.stdout.flush()

    kept = keep
    try:
        outcome = asyncio.run(_until_told(seed, folder, options, say))
        kept = kept or bool(outcome.violations)
        (folder / "requests").write_text(listing(outcome.records))
    except TimeoutError:
        kept = True
        raise
    finally:
        if kept:
            click.echo(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    click.echo(report(outcome))
    if outcome.violations:
        flags = f"--seed {seed} --minutes {options.seconds / 60:g} --rate {options.rate:g} --every {options.every:g}"
        click.echo(f'run it again: make chaos ARGS="{flags}"')
    sys.stdout.flush()
    return outcome


async def _until_told(seed: int, folder: Path, options: Options, say: Callable[[str], None]) -> Outcome:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run(seed, folder, options, say)


if __name__ == "__main__":
    main()
