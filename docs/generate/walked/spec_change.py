"""Walk a spec change of a DynamoPipeline: which files of the operator it runs through, until the status says so."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from docs.generate.walked.recorder import Recorder
from docs.generate.walked.request import shared
from tests.operator.apiserver import ApiServer
from tests.operator.pipelines import SMALLEST, body
from tests.operator.test_leadership import until
from tests.operator.test_whole import operating, ready

_CHANGES: Final = 4
"""The first of them warms up."""


def walk_spec_change() -> list[str]:
    """Run the operator against an API server in memory; return what all of some changes run through."""
    recorder = Recorder()
    recorder.install()
    return asyncio.run(_changes(recorder))


async def _changes(recorder: Recorder) -> list[str]:
    async with ApiServer() as server:
        server.put(body(SMALLEST))
        async with operating(server):
            await until(lambda: ready(server), 60)
            runs = [await _change(server, recorder, number) for number in range(_CHANGES)]
    return shared(runs[1:])


async def _change(server: ApiServer, recorder: Recorder, number: int) -> list[str]:
    """Return the files of a change: new pods for every component, and a status that knows of them."""
    await asyncio.sleep(1)  # what the change before has left to do
    pipeline: Any = server.one("DynamoPipeline", "llama")
    generation = pipeline["metadata"]["generation"] + 1
    changed = {**pipeline, "metadata": {**pipeline["metadata"], "generation": generation}}
    changed["spec"] = {**pipeline["spec"], "restart": str(number)}
    recorder.start()
    server.put(changed)
    await until(lambda: _rolled_out(server, generation), 60)
    return [file for file, _ in recorder.stop()]


def _rolled_out(server: ApiServer, generation: int) -> bool:
    server.play()
    status = server.one("DynamoPipeline", "llama").get("status", {})
    return bool(status.get("observedGeneration") == generation and ready(server))
