"""Reads what a frontend has counted, out of its `/metrics`: facts for `diagnosis/traffic.py`."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dynamo.cli.diagnosis.slowness import RunningFact, WorkerFact
from dynamo.cli.diagnosis.traffic import TrafficFacts
from dynamo.cli.local.facts.last_errors import last_matching
from dynamo.cli.local.state import FRONTEND, NODE, WORKER, RunState
from dynamo.runtime.process.printable import visible

SECONDS: Final = 3.0
_MOST_BYTES: Final = 1 << 22
_PREFIX: Final = "dynamo_frontend_"
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks this machine itself, whatever proxy the environment names."""
_LONGEST_ID: Final = 80
_INSTANCE: Final = re.compile(r"worker (?P<id>[0-9a-f]{14})")
_ENGINE_SAID: Final = re.compile(r" ERROR [\w.]+: \[[^\]]*\] (?P<said>.+)")
_FAILED: Final = re.compile(r" WARNING [\w.]+: \[[^\]]*\] (?:failed after \d+ token\(s\): |500 )(?P<said>.+)")
_TEMPLATE: Final = re.compile(r"\[[^\]]*\] 400 (?P<said>.*chat template.+)")
_REFUSED: Final = re.compile(r"\[[^\]]*\] 400 (?P<said>.+)")
"""Lines of the logs about one request: what its engine failed with, and what its client was told."""

Sample = tuple[str, dict[str, str], float]


def ask(url: str, pipeline: str) -> TrafficFacts | str:
    """Ask a frontend; a sentence where it doesn't tell."""
    try:
        with _DIRECT.open(f"{url}/metrics", timeout=SECONDS) as answer:
            return read(answer.read(_MOST_BYTES).decode(errors="replace"), pipeline)
    except urllib.error.HTTPError as error:
        key = ": it wants an API key" if error.code == http.client.UNAUTHORIZED else ""
        return f"requests of {pipeline}: {url}/metrics answers {error.code}{key}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"requests of {pipeline}: {url}/metrics gives no answer that can be read ({error})"


def of_run(run: RunState, others: Iterable[RunState] = ()) -> TrafficFacts | str:
    """Ask the first frontend of a run for all of it; a sentence where it doesn't tell."""
    facts = ask(run.url, run.pipeline)
    if isinstance(facts, str):
        return facts
    parts = {part.instance: part.name for part in run.parts if part.instance}
    parts |= {
        part.instance: f"{other.pipeline}/{part.name}" for other in others for part in other.parts
        if part.instance and other.pipeline != run.pipeline
    }  # fmt: skip
    logs = [Path(part.log) for part in run.parts]
    workers = [path for part, path in zip(run.parts, logs, strict=True) if part.kind in (WORKER, NODE)]
    frontends = [path for part, path in zip(run.parts, logs, strict=True) if part.kind == FRONTEND]
    engine = last_matching(workers, _ENGINE_SAID) or last_matching(frontends, _FAILED)
    refused = last_matching(frontends, _TEMPLATE) or last_matching(frontends, _REFUSED)
    return replace(
        facts, file=run.file, workers=tuple(_workers(run.url, parts, facts.most_running)),
        running=tuple(_running(run.url, parts)), engine_said=engine["said"] if engine else "",
        refused=refused["said"] if refused else "",
    )  # fmt: skip


def _json(url: str) -> Any:
    """Return what a route answers; None where it has none, or tells others only."""
    try:
        with _DIRECT.open(url, timeout=SECONDS) as answer:
            return json.loads(answer.read(_MOST_BYTES))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None


def _dicts(answer: Any, key: str) -> list[dict[str, Any]]:
    listed = answer.get(key) if isinstance(answer, dict) else None
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _workers(url: str, parts: Mapping[str, str], most: Mapping[str, int]) -> Iterator[WorkerFact]:
    for row in _dicts(_json(f"{url}/console/workers"), "workers"):
        instance, model = str(row.get("id")), str(row.get("model"))
        usage, limit, here = row.get("kv_usage"), most.get(model), _number(row.get("in_flight"))
        running, waiting = _number(row.get("running")), _number(row.get("queue"))
        if limit:  # most routers need no figures of engines, so none are published: what is sent there is known
            running, waiting = max(running, min(here, limit)), max(waiting, here - limit)
        yield WorkerFact(
            parts.get(instance, instance), model, str(row.get("role")), str(row.get("card") or ""), running, waiting,
            limit, float(usage) if isinstance(usage, int | float) else None,
        )  # fmt: skip


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _running(url: str, parts: Mapping[str, str]) -> Iterator[RunningFact]:
    for request in _dicts(_json(f"{url}/requests"), "running"):
        stages = _dicts(request, "stages")
        last = stages[-1] if stages else {}
        worker = next((name for name in map(_worker, reversed(stages)) if name), "")
        took = last.get("took_ms")
        yield RunningFact(
            visible(str(request.get("id")))[:_LONGEST_ID], str(last.get("name")), parts.get(worker, worker),
            took / 1000 if isinstance(took, int | float) else 0.0, _number(request.get("output_tokens")),
        )  # fmt: skip


def _worker(stage: Mapping[str, Any]) -> str:
    match = _INSTANCE.search(str(stage.get("what")))
    return match["id"] if match else ""


def read(text: str, pipeline: str, where: str = "") -> TrafficFacts:
    """Return the facts of a text in Prometheus' format."""
    sums: defaultdict[str, float] = defaultdict(float)
    failures: Counter[str] = Counter()
    rejections: Counter[str] = Counter()
    timeouts: Counter[str] = Counter()
    unserved = []
    most: dict[str, int] = {}
    for name, labels, value in _samples(text):
        sums[name] += value
        if name == "failures_total":
            failures[labels.get("error_type", "")] += int(value)
        elif name == "rejected_requests_total":
            rejections[labels.get("reason", "")] += int(value)
        elif name == "timeouts_total":
            timeouts[labels.get("type", "")] += int(value)
        elif name == "model_max_num_seqs" and value:
            most[labels.get("model", "")] = int(value)
        elif name == "model_ready" and not value:
            unserved.append(labels.get("model", ""))
    return TrafficFacts(
        pipeline, where, int(sums["requests_total"]), failures, rejections, timeouts,
        broken_off=int(sums["model_migration_exhausted_total"]),
        first_token_seconds=_mean(sums, "time_to_first_token_seconds"),
        token_seconds=_mean(sums, "inter_token_latency_seconds"),
        queue_seconds=_mean(sums, "router_queue_wait_seconds"),
        answers=int(sums["output_sequence_tokens_count"]),
        output_tokens=int(sums["output_sequence_tokens_sum"]),
        prompt_tokens=_mean(sums, "input_sequence_tokens"),
        waiting=int(sums["router_queue_pending_requests"]),
        unserved=tuple(unserved),
        most_running=most,
    )  # fmt: skip


def _mean(sums: Mapping[str, float], histogram: str) -> float | None:
    count = sums[f"{histogram}_count"]
    return sums[f"{histogram}_sum"] / count if count else None


def _samples(text: str) -> Iterator[Sample]:
    """Yield the frontend's own samples, buckets left out."""
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(_PREFIX) and not sample.name.endswith("_bucket"):
                yield sample.name.removeprefix(_PREFIX), dict(sample.labels), sample.value
