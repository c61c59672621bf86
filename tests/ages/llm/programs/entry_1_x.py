"""2026 (1.x): engines and inputs joined by `make_engine` and `run_input`. Arguments: engine, input, port."""

from __future__ import annotations

import asyncio
import sys

from dynamo.llm import EngineType, EntrypointArgs, RouterConfig, RouterMode, make_engine, run_input
from dynamo.runtime import DistributedRuntime, dynamo_worker


@dynamo_worker()
async def main(runtime: DistributedRuntime) -> None:
    engine, way, port = sys.argv[1:]
    args = EntrypointArgs(
        EngineType[engine], model_name="entered" if engine != "Dynamic" else None, http_host="127.0.0.1",
        http_port=int(port), http_metrics_port=0, namespace="test",
        router_config=RouterConfig(RouterMode.PowerOfTwoChoices),
        kv_cache_block_size=16, mocker_engine_args={"speedup_ratio": 100.0} if engine == "Mocker" else None,
    )  # fmt: skip
    await run_input(runtime, way, await make_engine(runtime, args))


if __name__ == "__main__":
    asyncio.run(main())
