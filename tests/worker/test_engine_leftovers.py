"""Nothing of a request is left in an engine: not even what waits in circles for the garbage collector."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from tests.worker.engine_rigs import Recorder, Rig

from dynamo.llm.protocols import LENGTH


@pytest.fixture(autouse=True)
def fast_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_TOKEN_ECHO_DELAY_MS", "2")


def test_requests_leave_nothing_to_the_collector(run: Any) -> None:
    """What ended or was given up is gone soon: in circles it would wait with its prompt, for hundreds of others."""

    async def ended(rig: Rig) -> weakref.ref[Recorder]:
        sink, _ = rig.submit(max_tokens=3)
        assert await sink.end() == LENGTH
        return weakref.ref(sink)

    async def given_up(rig: Rig) -> weakref.ref[Recorder]:
        sink, abort = rig.submit(rig.endless())
        await sink.until(1)
        abort()
        return weakref.ref(sink)

    async def body(rig: Rig) -> None:
        gc.collect()
        gc.disable()
        try:
            sinks = [await ask(rig) for ask in (ended, given_up) for _ in range(3)]
            await rig.idle()
            await ended(rig)  # a loop's turn may keep the last one until the next
            assert [sink() for sink in sinks] == [None] * len(sinks)
        finally:
            gc.enable()

    run(body)
