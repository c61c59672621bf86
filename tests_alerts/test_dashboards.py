"""Every query of every panel gives data in a real Prometheus, over real processes that have lived a little."""

from __future__ import annotations

import json
import re
from typing import Final

import httpx
import pytest
from docs.generate.cluster.dashboards import DASHBOARDS, FOLDER
from tests.waiting import eventually
from tests_alerts.operator import OperatorSite
from tests_alerts.site import Site

_BY_GRAFANA: Final = {"$__rate_interval": "30s", "$__range": "1m", "$namespace": ".*", "$pipeline": ".*"}
"""What Grafana puts in place of its variables, with all chosen."""
_ARGUMENTS: Final = ("--engine-args", json.dumps({"decode_speedup_ratio": 0.2}))


def queries(uid: str) -> list[tuple[str, str]]:
    """Each panel's title and query, of the file that the chart ships, as Grafana sends it."""
    board = json.loads((FOLDER / f"{uid}.json").read_text())
    return [(panel["title"], _sent(target["expr"])) for panel in board["panels"] for target in panel["targets"]]


def _sent(query: str) -> str:
    for name, value in _BY_GRAFANA.items():
        query = query.replace(name, value)
    assert not re.search(r"\$\w", query), query
    return query


@pytest.fixture
def lively(site: Site) -> Site:
    """A pipeline with prompts in common, a crowd, clients that leave, time limits that pass, and a worker that dies."""
    keys = site.folder / "keys"
    keys.write_text("sk-of-a-test tenant=team-a\n")
    site.headers = {"authorization": "Bearer sk-of-a-test"}
    site.frontend("--router-mode", "kv", "--migration-limit", "2", "--max-requests-per-model", "12",
                  "--router-queue-threshold", "0.0001", "--api-keys-file", str(keys))  # fmt: skip
    workers = {name: site.worker(name, *_ARGUMENTS) for name in ("worker", "other")}
    site.served(2)
    site.traffic(16, prompt="once upon a time " * 40, max_tokens=100, ignore_eos=True)
    running = f'topk(1, vllm:num_requests_running{{namespace="{site.namespace}"}}) > 2'
    site.monitoring.until(running)
    workers[site.monitoring.query(running)[0]["metric"]["pod"]].restart()
    site.served(2)
    return site


def _annoy(site: Site) -> None:
    """Ask for a model that isn't there, with a limit that passes, and leave early."""
    body = {"model": "m", "prompt": "hi", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with httpx.Client(base_url=site.url, headers=site.headers, timeout=30) as client:
        client.post("/v1/completions", json={**body, "model": "none"})
        client.post("/v1/completions", json=body, headers={"x-request-timeout-ms": "50"})
        with client.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_bytes(), b"")


@pytest.mark.parametrize("uid", [uid for uid in DASHBOARDS if uid != "dynamo-operator"])
def test_pipelines_fill_every_panel(uid: str, lively: Site) -> None:
    """Service, workers and KV, tenants."""
    _fill(uid, lively)


def _fill(uid: str, site: Site | OperatorSite) -> None:
    """Wait until each query has given a number."""
    empty = dict.fromkeys(queries(uid))

    def ask() -> bool:
        if isinstance(site, Site):
            _annoy(site)
        for title, query in list(empty):
            if any(sample["value"][1] != "NaN" for sample in site.monitoring.query(query)):
                del empty[title, query]
        return not empty

    eventually("every panel has data", ask, 90, despite=(httpx.HTTPError,)) if not ask() else None
    assert not empty, empty


def test_the_operator_fills_every_panel(operator_site: OperatorSite) -> None:
    """One operator with one pipeline."""
    operator_site.served()
    _fill("dynamo-operator", operator_site)
