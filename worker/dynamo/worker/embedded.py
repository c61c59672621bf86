"""An engine inside a program: what `dynamo.llm`'s `run_input` asks for by name (`dynamo.llm.serving.upper_layers`)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from dynamo.llm.serving.upper_layers import EngineHost, EngineOn, Failed
from dynamo.runtime.process.settings import build, options_among
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.main import loaded_model
from dynamo.worker.settings import WorkerSettings


async def prepare(options: Mapping[str, Any]) -> EngineOn:
    """See `EngineHost`."""
    settings = build(WorkerSettings, **options_among(WorkerSettings, options))
    model = await loaded_model(settings)
    create_engine(settings, model)  # unstarted: what is wrong with its arguments is said now

    @contextlib.asynccontextmanager
    async def on(runtime: DistributedRuntime, endpoint: str) -> AsyncIterator[Failed]:
        there = replace(settings, endpoint=endpoint)
        serving = await serve_engine(runtime, create_engine(there, model), model, there)
        try:
            yield serving.failed
        finally:
            await serving.stop(runtime.config.grace)

    return on


_: EngineHost = prepare
