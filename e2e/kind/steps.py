"""Commands with a deadline and a readable failure, and steps that say how long they took."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SHOWN_LINES = 30
CLEAN_SECONDS = 10


class StepError(Exception):
    """What could not be done and what to do next, in sentences for whoever runs the tests."""


def say(text: str) -> None:
    """One line to whoever watches; standard error, so that pytest's summary stays the last line of standard output."""
    sys.stderr.write(f"e2e: {text}\n")
    sys.stderr.flush()


@contextmanager
def step(name: str) -> Iterator[None]:
    """Announce a step, and say afterwards how many seconds it took."""
    say(f"{name} ...")
    began = time.monotonic()
    yield
    say(f"{name}: {time.monotonic() - began:.0f} s")


def run(
    args: Sequence[str | Path],
    *,
    seconds: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
) -> str:
    """Run a command to its end and return its standard output.

    `env` is added to ours. Raises StepError with the end of what it printed if it fails or takes more than `seconds`.
    """
    command = [str(arg) for arg in args]
    try:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError as error:
        raise StepError(f"{command[0]} is not installed, or not on PATH") from error
    with process:
        try:
            said, complained = process.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise StepError(f"{_short(command)} had not ended after {seconds:.0f} s") from error
        finally:
            end(process)
    if process.returncode:
        raise StepError(f"{_short(command)} ended with {process.returncode}:\n{_tail(said + complained)}")
    return said


def end(process: subprocess.Popen[Any], seconds: float = CLEAN_SECONDS) -> None:
    """Let a command that still runs clean up after itself (debootstrap unmounts), then end it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def succeeds(args: Sequence[str | Path], *, seconds: float, env: Mapping[str, str] | None = None) -> bool:
    """Whether a command ends with 0 in time."""
    try:
        run(args, seconds=seconds, env=env)
    except StepError:
        return False
    return True


def _short(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) < 200 else text[:200] + " …"


def _tail(output: str) -> str:
    return "\n".join("  " + line for line in output.strip().splitlines()[-SHOWN_LINES:])
