"""Traces of `dynamo up` in OpenTelemetry's own Collector, by both of its protocols."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from e2e.apiserver.client import until
from e2e.apiserver.plane import free_ports
from e2e.kind.places import REPOSITORY, Places
from e2e.traffic.spans import settings, spans_in, tree

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PIPELINE = """apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: traced}
spec:
  model: {name: m}
  components: [{engine: mocker}]
"""
SECONDS = 60
PORTIONS = ("sdk", "operator", "frontend", "worker", "cli")


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_real_collector_gets_the_spans_of_both_processes(tmp_path: Path, protocol: str) -> None:
    """From the client's traceparent to the engine, and what ends with an error is marked so."""
    grpc, http, port = free_ports(3)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    receiver = f"http://127.0.0.1:{grpc if protocol == 'grpc' else http}"
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONSAFEPATH": "1", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    home |= {"PYTHONPATH": os.pathsep.join(str(REPOSITORY / portion) for portion in PORTIONS)}
    home |= {
        "OTEL_EXPORT_ENABLED": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
    }
    collector = [str(Places.of(os.environ).bin / "otelcol"), f"--config=yaml:{settings('127.0.0.1', grpc, http)}"]
    served = [sys.executable, "-m", "dynamo.cli", "up", "pipeline.yaml", "--http-port", str(port)]
    said, url = tmp_path / "collector.txt", f"http://127.0.0.1:{port}"
    with said.open("w") as out, (tmp_path / "up.txt").open("w") as log:
        taking = subprocess.Popen(collector, stdout=out, stderr=subprocess.STDOUT)
        serving = subprocess.Popen(served, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path, env=home)
        try:
            until("it serves", lambda: _status(f"{url}/v1/models") == 200 and _models(url), SECONDS)
            body = {"model": "m", "prompt": "hi", "max_tokens": 4}
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=30).raise_for_status()
            assert _status(f"{url}/v1/completions", json={"model": "m"}, headers=headers) == 400
            until("the trace is whole", lambda: len(tree(spans_in(said.read_text()), TRACE)) == 6, SECONDS)
        finally:
            for process in (serving, taking):
                process.terminate()
                process.wait(SECONDS)
    assert tree(spans_in(said.read_text()), TRACE) == {
        "http-request": ("dynamo-frontend", PARENT),
        "preprocess": ("dynamo-frontend", "http-request"),
        "route": ("dynamo-frontend", "http-request"),
        "handle_payload": ("dynamo-worker", "route"),
        "queue": ("dynamo-worker", "handle_payload"),
        "engine": ("dynamo-worker", "handle_payload"),
    }


def _status(url: str, **asked: object) -> int:
    """The code of an answer; 0 where nobody answers."""
    try:
        method = "POST" if "json" in asked else "GET"
        return httpx.request(method, url, timeout=10, **asked).status_code  # type: ignore[arg-type]
    except httpx.HTTPError:
        return 0


def _models(url: str) -> bool:
    return bool(httpx.get(f"{url}/v1/models", timeout=10).json()["data"])
