"""Reading what processes and servers hold: /proc, /metrics, etcd's keys, NATS' connections."""

from __future__ import annotations

import base64
import http.client
import json
import time
from pathlib import Path
from typing import Any, Final

from bench.chaos.leaks import Held, Servers
from bench.chaos.processes import Part, Site
from prometheus_client.parser import text_string_to_metric_families

_FIGURES: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv",
    "dynamo_component_inflight_requests": "inflight",
    "dynamo_component_asyncio_tasks": "tasks",
    "dynamo_frontend_active_requests": "running",
    "dynamo_frontend_inflight_requests": "inflight",
    "dynamo_frontend_router_queue_pending_requests": "queued",
    "dynamo_frontend_asyncio_tasks": "tasks",
    "dynamo_frontend_model_migration_total": "migrations",
    "dynamo_component_uptime_seconds": "uptime",
}
_LIMIT: Final = 10.0


def held(part: Part) -> Held:
    """What one process holds now; raises `OSError` where it doesn't answer."""
    figures = metrics(part.port)
    if part.sort == "frontend":
        figures["running"] -= 1  # this question
    status = dict(line.split(":", 1) for line in Path(f"/proc/{part.pid}/status").read_text().splitlines())
    files = len(list(Path(f"/proc/{part.pid}/fd").iterdir()))
    if "VmRSS" not in status:
        raise OSError(f"{part.name} has ended")
    return Held(
        part.name, part.lives, (time.monotonic() - part.began) / 60, files=files, threads=int(status["Threads"]),
        megabytes=int(status["VmRSS"].split()[0]) / 1024, tasks=int(figures["tasks"]), figures=figures,
    )  # fmt: skip


def metrics(port: int) -> dict[str, float]:
    """The figures that matter here, by our short names; those of several labels are added up."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(_get(port, "/metrics").decode()):
        for sample in family.samples:
            if (name := _FIGURES.get(sample.name)) is not None:
                found[name] = found.get(name, 0.0) + sample.value
    return found


def servers(site: Site) -> Servers:
    """What etcd and NATS hold now."""
    connections = json.loads(_get(site.watched_port, "/connz?subs=1&limit=1000"))["connections"]
    subjects = tuple(tuple(sorted(connection.get("subscriptions_list") or ())) for connection in connections)
    return Servers(_keys(site.etcd_port), subjects)


def _keys(port: int) -> frozenset[str]:
    start, end = (base64.b64encode(text).decode() for text in (b"dynamo/", b"dynamo0"))
    answer = _get(port, "/v3/kv/range", {"key": start, "range_end": end, "keys_only": True})
    return frozenset(base64.b64decode(one["key"]).decode() for one in json.loads(answer).get("kvs", []))


def instances(site: Site) -> frozenset[str]:
    """The ids of the workers that live, as keys have them."""
    return frozenset(f"{said['instance']:014x}" for part in site.of("worker") if (said := part.said()) is not None)


def _get(port: int, path: str, body: Any = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LIMIT)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if data is None else "POST", path, data, {"connection": "close"})
        answer = connection.getresponse()
        found = answer.read()
        if answer.status != 200:
            raise OSError(f"{path}: {answer.status}")
        return found
    except http.client.HTTPException as error:
        raise OSError(f"{path}: {error!r}") from error
    finally:
        connection.close()


def instances_of(port: int) -> int:
    """How many workers a frontend answers with; raises `OSError` where it isn't healthy."""
    return len(json.loads(_get(port, "/health"))["instances"])
