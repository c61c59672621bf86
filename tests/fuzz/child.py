"""`python -m tests.fuzz.child TARGET SEED FIRST COUNT`: cases that need no site, each told in a line of JSON.

A process of its own: a case may crash it, or keep it busy for ever, and its parent (`children.py`) sees to that. What
a case costs is CPU time and memory of this process, so that a busy machine changes nothing.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.fuzz import children
from tests.fuzz.watch import _forget_peak, peak, resident

from dynamo.runtime.errors import DynamoException

ADDRESSES: Final = 6 << 30
"""Bytes of address space: whatever takes more gets a MemoryError, and the machine goes on."""


def main(name: str, seed: str, first: int, count: int) -> None:
    """Do the cases, and say of each when it begins and what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    target = children.target(name)
    corpus = [*target.corpus().items()]
    for number in range(first, first + count):
        label, run = corpus[number] if number < len(corpus) else target.case(Random(f"{name}/{seed}/{number}"))
        _say({"number": number, "name": label})
        _say({"number": number, **_done(run)})


def _done(run: Callable[[], object]) -> dict[str, Any]:
    gc.collect()
    _forget_peak(_self())
    before, began, error = resident(_self()), time.process_time(), ""
    try:
        run()
    except DynamoException:
        pass
    except BaseException as failure:  # panics of Rust are no Exceptions
        if isinstance(failure, KeyboardInterrupt):
            raise
        error = f"{type(failure).__name__}: {str(failure)[:300]} at {_place(failure)}"
    return {"cpu": time.process_time() - began, "rose": peak(_self()) - before, "error": error}


def _place(failure: BaseException) -> str:
    """The line of ours that it came from."""
    frames = traceback.extract_tb(failure.__traceback__)
    ours = [frame for frame in frames if "/dynamo/" in frame.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def _self() -> int:
    return int(Path("/proc/self").readlink().name)


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
