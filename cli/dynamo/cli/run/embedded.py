"""A conversation inside a program: what `dynamo.llm`'s `run_input` asks for by name
(`dynamo.llm.serving.upper_layers`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dynamo.cli.asgi_client import RequestError
from dynamo.cli.run.main import read
from dynamo.cli.run.session import HOLD_SECONDS, converse
from dynamo.frontend.embedded import settings_of
from dynamo.llm.serving.upper_layers import Talk
from dynamo.runtime.errors import EngineError
from dynamo.runtime.runtime import DistributedRuntime


async def talk(runtime: DistributedRuntime, way: str, options: Mapping[str, Any], model: str) -> None:
    """See `Talk`; returns when the person leaves, or the answer is written. `EngineError` where there was none."""
    run = read([f"in={way}", "out=dyn"], terminal=True, installed=())
    run = replace(run, settings=replace(run.settings, model_name=model))
    settings = replace(settings_of(options), worker_wait_timeout_secs=HOLD_SECONDS)
    talking = asyncio.ensure_future(converse(run, runtime, settings))
    closing = asyncio.ensure_future(runtime.closing.wait())
    try:
        await asyncio.wait((talking, closing), return_when=asyncio.FIRST_COMPLETED)
        if talking.done() and talking.result():
            raise EngineError("The engine returned no output. Run again with -v to see its log.")
    except RequestError as error:
        raise EngineError(str(error)) from error
    finally:
        for task in (talking, closing):
            task.cancel()
        await asyncio.gather(talking, closing, return_exceptions=True)


_: Talk = talk
