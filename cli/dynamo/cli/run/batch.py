"""`in=batch:FILE` from its words to its exit code; `session.py` brings the frontend."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamo.cli.asgi_client import Client
from dynamo.cli.batch.input_lines import Reader
from dynamo.cli.batch.ledger import BatchError, Ledger, open_ledger, survey
from dynamo.cli.batch.output_lines import Outcome, Totals, statistics
from dynamo.cli.batch.progress import progress
from dynamo.cli.batch.runner import Asker, ask_all
from dynamo.cli.run.settings import Run

OUTPUT = "output.jsonl"
_SHOWN = 20
"""Lines that failed and are told one by one; the output names all of them."""


@dataclass
class Batch:
    """An input that was looked at, and its open output."""

    input: Path
    entries: int
    ledger: Ledger
    concurrency: int
    ordered: bool


@contextlib.contextmanager
def prepared(run: Run) -> Iterator[Batch]:
    """Check everything that can be known before a model is loaded; raises `BatchError`."""
    settings, file = run.settings, Path(run.roles.batch_file).expanduser()
    if not file.is_file():
        raise BatchError(f"Missing or not a file: {file}. Should be a JSON Lines file.")
    output = Path(settings.batch_output).expanduser() if settings.batch_output else file.parent / OUTPUT
    if output.resolve() == file.resolve():
        raise BatchError(f"{file} would be overwritten by its own answers: give --batch-output another file")
    defaults = json.dumps(run.template, sort_keys=True) if run.template else ""
    answerer = " ".join(filter(None, (run.roles.output, run.model, settings.model_name, defaults)))
    try:
        task = survey(file, settings.batch_ordered, answerer)
    except OSError as error:
        raise BatchError(f"{file} can't be read: {error.strerror}") from error
    with open_ledger(output, task, restart=settings.batch_restart) as ledger:
        if ledger.done:
            _say(f"going on: {len(ledger.done)} of {task.entries} lines were in {output} already")
        yield Batch(file, task.entries, ledger, settings.batch_concurrency, settings.batch_ordered)


async def work(batch: Batch, client: Client, model: str, template: dict[str, Any], *, ignore_eos: bool) -> int:
    """Ask all that is not done yet; the exit code: 0, or 1 where a line failed."""
    asker = Asker(client, model, template, ignore_eos=ignore_eos)
    totals, began = Totals(), time.monotonic()
    earlier = batch.ledger.earlier
    try:
        with batch.input.open("rb") as file, progress(earlier.entries, batch.entries) as step:

            def write(outcome: Outcome) -> None:
                batch.ledger.add(outcome)
                totals.add(outcome)
                if outcome.failed and totals.failed <= _SHOWN:
                    _say(f"line {outcome.number}: {outcome.failed}")
                step()

            todo = (entry for entry in Reader(file) if entry.number not in batch.ledger.done)
            await ask_all(todo, asker.answer, write, concurrency=batch.concurrency, ordered=batch.ordered)
    except asyncio.CancelledError:
        done = len(batch.ledger.done)
        _say(f"interrupted: {done} of {batch.entries} lines are in {batch.ledger.path}; the same command goes on")
        raise
    batch.ledger.finish()
    return _conclude(batch, totals, time.monotonic() - began)


def _conclude(batch: Batch, totals: Totals, seconds: float) -> int:
    _say(statistics(totals, seconds))
    earlier = batch.ledger.earlier
    if earlier.entries:
        _say(
            f"With the runs before: {earlier.entries + totals.entries} lines, "
            f"{earlier.tokens_in + totals.tokens_in} tokens in, {earlier.tokens_out + totals.tokens_out} tokens out"
        )
    failed = earlier.failed + totals.failed
    if failed:
        _say(f"{failed} of {batch.entries} lines failed: {batch.ledger.path} says why")
    return 1 if failed else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
