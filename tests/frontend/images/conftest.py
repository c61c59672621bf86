"""A mocker behind a whole frontend, for images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dynamo.runtime import DistributedRuntime
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.main import load_model
from dynamo.worker.settings import WorkerSettings

QUICK = '{"speedup_ratio": 0}'


@pytest.fixture
def serve(within: Any) -> Callable[..., DistributedRuntime]:
    """Serve a built engine on a site; the call returns when it is routed to."""

    def start(site: Any, engine: str = "mocker", args: str = QUICK, name: str = "m") -> DistributedRuntime:
        settings = WorkerSettings(engine=engine, model_name=name, engine_args=args)

        async def run() -> DistributedRuntime:
            model = load_model(settings)
            runtime = await DistributedRuntime.in_memory(site.world)
            site.workers.append(runtime)
            await serve_engine(runtime, create_engine(settings, model), model, settings)
            return runtime

        runtime: DistributedRuntime = site.run(run())
        within("it is routed to", lambda: runtime.id in site.instances())
        return runtime

    return start
