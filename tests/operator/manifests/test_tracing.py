"""Traces of all pipelines, switched on for the platform: what their containers are told."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.operator.pipelines import SMALLEST, pipeline
from tests.operator.rendered import CLUSTER_SETTINGS, env_of, main_container, of_kind, render, worker

from dynamo.operator.manifests.context import Tracing
from dynamo.operator.settings import Settings
from dynamo.runtime.process import tracing

TRACED = replace(CLUSTER_SETTINGS, tracing=Tracing("http://collector:4317", "grpc", 0.25))


def test_all_processes_of_a_traced_platform_know_where_traces_go() -> None:
    """Frontend and worker have the same variables, which the runtime reads; without the setting neither has any."""
    for manifest in ("Deployment", "StatefulSet"):
        env = env_of(main_container(of_kind(render(pipeline(SMALLEST), TRACED), manifest)))
        assert {name: value for name, value in env.items() if name.startswith("OTEL_")} == {
            tracing.ENABLED: "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_RESOURCE_ATTRIBUTES": "k8s.namespace.name=serving,dynamo.pipeline=llama",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
        }
        bare = env_of(main_container(of_kind(render(pipeline(SMALLEST)), manifest)))
        assert not [name for name in bare if name.startswith("OTEL_")]


def test_a_component_may_send_its_traces_elsewhere() -> None:
    """Its own variables win."""
    env = env_of(worker(cluster=TRACED, env=[{"name": "OTEL_TRACES_SAMPLER_ARG", "value": "1"}]))
    assert (env["OTEL_TRACES_SAMPLER_ARG"], env["OTEL_EXPORT_ENABLED"]) == ("1", "1")


def test_the_policy_of_egress_lets_traces_through() -> None:
    """Where pipelines may reach only some ports, the receiver's is one of them."""
    text = json.dumps({
        "images": {"frontend": "f:1", "workers": {"default": "w:1"}}, "etcd": {"endpoints": ["http://etcd:2379"]},
        "nats": {"url": "nats://nats:4222"}, "pods": {"restrictEgress": True, "egressPorts": [443]},
        "tracing": {"endpoint": "http://collector.observability:4317"},
    })  # fmt: skip
    policy = of_kind(render(pipeline(SMALLEST), Settings.of(text, {}).cluster), "NetworkPolicy", "llama-egress")
    assert [port["port"] for port in policy["spec"]["egress"][-1]["ports"]] == [443, 2379, 4222, 4317]
