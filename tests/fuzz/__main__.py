"""`python -m tests.fuzz`: hostile input for everything that reads any, while what it costs others is watched.

`make fuzz` runs it; docs/design/testing/fuzz.md says what it tries and how a finding is read.
Exit code 1: a bar was broken.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import click
from tests.fuzz import children
from tests.fuzz.findings import Kept
from tests.fuzz.lane import Lane, Live
from tests.fuzz.site import MODEL, pair
from tests.fuzz.targets import attacks, bodies, constraints, openapi, plane, rawhttp, wire
from tests.fuzz.watch import Watch

LIVE: tuple[Live, ...] = (bodies, rawhttp, wire.Wire(), constraints)
OTHERS = {openapi.NAME: openapi.run, plane.NAME: plane.run}
NAMES = [*(target.NAME for target in LIVE), *children.TARGETS, *OTHERS]


@click.command(help="Send everything that reads input what a stranger would, and watch what it costs others.")
@click.option("--minutes", type=float, default=5.0, show_default=True, help="In all; each target has its share.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--only", type=click.Choice(NAMES), multiple=True, help="Some targets; repeatable.")
@click.option("--case", "number", type=int, default=None, help="One case of one target, by its number.")
@click.option("--attack", "names", multiple=True, help="Attacks by name, `all` for each; `list` names them.")
@click.option("--hundred", is_flag=True, help="A hundred of each attack at once.")
def main(
    minutes: float, seed: int, only: tuple[str, ...], number: int | None, names: tuple[str, ...], hundred: bool
) -> None:
    kept = Kept(click.echo)
    began = time.monotonic()
    if names == ("list",):
        for attack in attacks.ALL.values():
            click.echo(f"{attack.name:24} {attack.finding:4} {attack.says}")
        return
    try:
        if names:
            asyncio.run(_attacks(names, hundred, kept))
        else:
            _targets(only or tuple(NAMES), minutes * 60, seed, number, kept)
    except KeyboardInterrupt:
        click.echo("ended early; all processes are gone")
        sys.exit(130)
    took = (time.monotonic() - began) / 60
    more = f" ({kept.again} more like these)" if kept.again else ""
    click.echo(f"{len(kept.findings)} findings{more} in {took:.1f} minutes; they lie in {kept.folder.name}/")
    sys.exit(1 if kept.findings else 0)


def _targets(only: Iterable[str], seconds: float, seed: int, number: int | None, kept: Kept) -> None:
    wanted = [name for name in NAMES if name in only]
    share = seconds / len(wanted)
    live = [target for target in LIVE if target.NAME in wanted]
    for name in wanted:
        if name in children.TARGETS:
            count = children.run(name, seed, share, kept, first=number or 0, most=1 if number is not None else None)
            click.echo(f"{name}: {count} cases")
        elif name in OTHERS:
            click.echo(f"{name}: {OTHERS[name](seed, share, kept)} cases")
    if live:
        asyncio.run(_live(live, seed, share, number, kept))


async def _live(targets: list[Live], seed: int, share: float, number: int | None, kept: Kept) -> None:
    models = [*dict.fromkeys([MODEL, *(model for target in targets for model in target.MODELS)])]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, pair(Path(folder), models) as (site, control):
        async with Watch(site, control) as watch:
            for target in targets:
                lane = Lane(site, watch, kept)
                await lane.target(target, seed, share, number or 0, None if number is None else 1)
                click.echo(f"{target.NAME}: {lane.cases} cases; {lane.worst}")
                sys.stdout.flush()


async def _attacks(names: Iterable[str], hundred: bool, kept: Kept) -> None:
    wanted = [*attacks.ALL.values()] if "all" in names else [attacks.named(name) for name in names]
    for flags in dict.fromkeys(attack.flags for attack in wanted):
        alike = [attack for attack in wanted if attack.flags == flags]
        models = [*dict.fromkeys([MODEL, *(model for attack in alike for model in attack.models)])]
        with (
            tempfile.TemporaryDirectory(prefix="fuzz-") as folder,
            pair(Path(folder), models, *flags) as (site, control),
        ):
            async with Watch(site, control) as watch:
                for attack in alike:
                    lane = Lane(site, watch, kept)
                    broken = await attacks.fire(attack, lane, hundred)
                    click.echo(f"{attack.name}: {'broken' if broken else 'held'}; {lane.worst}")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
