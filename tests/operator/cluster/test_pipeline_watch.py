"""kopf's thread may call deeper than Python's default; nobody else is hurt by that."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import kopf
import pytest

from dynamo.operator.cluster import pipeline_watch

DEEP = """
import sys
import msgspec
from dynamo.operator.cluster import pipeline_watch
pipeline_watch._start(lambda: None)
for decode, data in ((msgspec.json.decode, b"[" * 100_000), (msgspec.msgpack.decode, b"\\x91" * 100_000)):
    try:
        decode(data)
    except RecursionError:
        print("refused")
"""


def test_lists_within_each_other_end_no_process() -> None:
    """The main thread's stack holds as many calls as Python lets it make then."""
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["refused", "refused"]), done.stderr


def test_the_limit_of_calls_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which kopf has run, and ended, is as careful as before."""
    seen: list[int] = []

    async def operator(**_: object) -> None:
        seen.append(sys.getrecursionlimit())

    monkeypatch.setattr(kopf, "operator", operator)
    before = sys.getrecursionlimit()
    asyncio.run(pipeline_watch.run_kopf(kopf.OperatorRegistry(), kopf.OperatorSettings(), (), asyncio.Event()))
    assert seen == [max(before, pipeline_watch.DEEPEST)]
    assert sys.getrecursionlimit() == before
