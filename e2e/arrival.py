"""A cluster that is made beside the tests: they wait for it when they need it, and learn that it does not come.

Whoever makes it holds a lock on a file, which the system frees however it ends, and writes a word there if all is well.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.kind.steps import end

VARIABLE = "E2E_ARRIVAL"
WORD = "here"
END_SECONDS = 60


class NotComingError(Exception):
    """The cluster could not be made; its maker has said why."""


@contextmanager
def awaited(file: Path, command: Sequence[str]) -> Iterator[dict[str, str]]:
    """Run `command` plus a descriptor of the locked `file`; gives what tests need in their environment to wait for it.

    At the end the command is told to end, too, if it still runs.
    """
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        number = held.fileno()
        process = subprocess.Popen(
            [*command, str(number)], pass_fds=[number], stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield {VARIABLE: str(file)}
    finally:
        end(process, END_SECONDS)


@contextmanager
def announced(descriptor: int) -> Iterator[None]:
    """For the maker: what happens inside is the making; the word is written if it does not fail."""
    with os.fdopen(descriptor, "w") as file:
        yield
        file.write(WORD)


def wait() -> None:
    """For a test: until the cluster is there, or nobody makes one. Raises NotComingError."""
    place = os.environ.get(VARIABLE)
    if not place:
        return
    with Path(place).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        if file.read() != WORD:
            raise NotComingError("the cluster did not come up: the lines of `e2e:` above say why")
