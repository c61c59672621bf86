"""Gauges of who is where: requests by the stage that they are in, and the load of each worker as routing sees it.

Nothing is counted for them: they are read off what requests, sets and workers say when somebody asks for metrics. The
names and labels are NVIDIA Dynamo's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dynamo.frontend.metrics import PREFIX
from dynamo.frontend.routing.model_pool import ModelPool
from dynamo.frontend.routing.model_set import ModelSet

_LABELS: Final = ("worker_id", "dp_rank", "worker_type")
_LAST: Final = {
    "worker_last_time_to_first_token_seconds": ("last_ttft", "Seconds until the first token of the latest request"),
    "worker_last_input_sequence_tokens": ("last_isl", "Prompt tokens of the latest request"),
    "worker_last_inter_token_latency_seconds": ("last_itl", "Mean seconds between tokens of the latest answer"),
}


def worker_gauges(pool: ModelPool) -> Iterator[Metric]:
    """Yield the gauges of each worker; in aggregated serving their type is `decode`, as in NVIDIA Dynamo."""
    sets = [("decode", models) for models in pool.sets()] + [("prefill", models) for models in pool.prefills.sets()]
    yield from _loads(sets)
    for name, (attribute, text) in _LAST.items():
        family = GaugeMetricFamily(PREFIX + name, f"{text} at a worker", labels=_LABELS)
        for kind, models in sets:
            for worker in models.workers.values():
                if (value := getattr(worker, attribute)) is not None:
                    family.add_metric([str(worker.id), "0", kind], value)
        yield family


def _loads(sets: Iterable[tuple[str, ModelSet]]) -> Iterator[Metric]:
    text = "of the requests that this frontend knows of there"
    blocks = GaugeMetricFamily(PREFIX + "worker_active_decode_blocks", f"KV blocks {text}", labels=_LABELS)
    tokens = GaugeMetricFamily(
        PREFIX + "worker_active_prefill_tokens", f"Prompt tokens without a first token {text}", labels=_LABELS
    )
    for kind, models in sets:
        for worker in models.workers.values():
            for rank in range(1 if models.kv is None else worker.ranks):
                load = models.load_of(worker, rank)
                labels = [str(worker.id), str(rank), kind]
                blocks.add_metric(labels, load.blocks)
                tokens.add_metric(labels, load.prefill_tokens)
    yield blocks
    yield tokens
