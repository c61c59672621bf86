"""Traces of a pipeline in a cluster, in OpenTelemetry's own Collector: one value of the chart switches them on."""

from __future__ import annotations

import httpx
import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import operator_down
from e2e.cluster.releases import install
from e2e.images.recipes import COLLECTOR
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, pipeline
from e2e.traffic.spans import Span, settings, spans_in, tree

NAME = "traced"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SPANS = {"http-request", "preprocess", "route", "handle_payload", "queue", "engine"}
GRPC, HTTP = 4317, 4318
ARRIVE_SECONDS = 60


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.timeout(900)
def test_one_value_switches_traces_on_for_all_pipelines(namespace: Namespace, platform: Platform) -> None:
    """Frontend and worker send their spans below the client's, with the pipeline's name.

    Requests without a traceparent aren't traced here, since the share is 0.
    """
    receiver = f"http://otelcol.{namespace.name}.svc:{GRPC}"
    with operator_down(platform):
        namespace.apply(*_collector(namespace.name))
        namespace.kubectl("wait", "pod/otelcol", "--for=condition=Ready", "--timeout=60s")
        install(namespace, "--set-string", f"tracing.endpoint={receiver}", "--set", "tracing.ratio=0")
        namespace.apply(pipeline(NAME, {"engine": "mocker"}))
        namespace.wait_ready(NAME)
        with namespace.reach(f"service/{NAME}-frontend", 8000) as url:
            model = namespace.pipeline(NAME)["status"]["model"]
            asked = {"model": model, "prompt": "hello", "max_tokens": 4}
            httpx.post(f"{url}/v1/completions", json=asked, timeout=30).raise_for_status()
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            httpx.post(f"{url}/v1/completions", json=asked, headers=headers, timeout=30).raise_for_status()
        spans = wait_for("the trace is whole", lambda: _whole(namespace), ARRIVE_SECONDS)
        assert {span.trace for span in spans} == {TRACE}
        assert tree(spans, TRACE)["handle_payload"] == ("dynamo-worker", "route")
        named = {(s.resource["k8s.namespace.name"], s.resource["dynamo.pipeline"]) for s in spans}
        assert named == {(namespace.name, NAME)}
        namespace.kubectl("delete", f"dp/{NAME}", "--wait=true")


def _whole(namespace: Namespace) -> list[Span] | None:
    spans = spans_in(namespace.kubectl("logs", "otelcol"))
    return spans if {span.name for span in spans} >= SPANS else None


def _collector(namespace: str) -> tuple[Object, Object]:
    labels = {"app": "otelcol"}
    locked = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    container = {
        "name": "otelcol", "image": COLLECTOR, "imagePullPolicy": "IfNotPresent", "command": ["/otelcol"],
        "args": [f"--config=yaml:{settings('0.0.0.0', GRPC, HTTP)}"], "securityContext": locked,
        "readinessProbe": {"tcpSocket": {"port": GRPC}, "periodSeconds": 1},
    }  # fmt: skip
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "otelcol", "namespace": namespace, "labels": labels},
        "spec": {"containers": [container], "securityContext": security, "automountServiceAccountToken": False},
    }  # fmt: skip
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "otelcol", "namespace": namespace},
        "spec": {"selector": labels, "ports": [{"name": "grpc", "port": GRPC}, {"name": "http", "port": HTTP}]},
    }  # fmt: skip
    return pod, service
