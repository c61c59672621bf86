"""What vLLM counts at each of its steps, kept for the worker's load."""

from __future__ import annotations

from typing import Any

from dynamo.worker.engine import EngineLoad


def figures_into(figures: dict[int, EngineLoad]) -> Any:
    """Return a factory of vLLM's stat loggers, which keep the newest figures of each rank."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Newest(StatLoggerBase):  # type: ignore[misc] # untyped
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._rank = engine_index
            figures[engine_index] = EngineLoad()

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            now = figures[self._rank]
            if scheduler_stats is not None:
                now.running, now.waiting = scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs
                now.kv_usage = scheduler_stats.kv_cache_usage
            if iteration_stats is not None:
                now.preemptions += iteration_stats.num_preempted_reqs

        def log_engine_initialized(self) -> None:
            """Say nothing: our own lines do."""

    return Newest
