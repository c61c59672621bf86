"""A pipeline as its users meet it by kubectl: refusals, defaults, columns, explanations, scale."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from e2e.apiserver.client import MERGE, until
from e2e.manifests.rendering import pipeline
from e2e.manifests.server import Server
from tests.operator.codegen.test_crd import BAD
from tests.operator.pipelines import FULL, ROUTED, SMALLEST

from dynamo.operator.codegen.crd import FILE_NAME, FOLDERS
from dynamo.operator.kube.resources import PIPELINES
from dynamo.operator.manifests import naming

Spec = dict[str, Any]
STATUS: Spec = {
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "Serving", "message": "every part is ready",
         "lastTransitionTime": "2026-11-21T00:00:00Z", "observedGeneration": 1},
    ],
    "url": "http://llama-frontend.serving.svc:8000", "model": "org/llama", "engines": "vllm,mocker", "workers": "2/3",
    "replicas": 1, "selector": f"{naming.PIPELINE}=llama",
}  # fmt: skip
MANY: Spec = {
    "model": {"source": "hf://org/repo"},
    "components": [
        {
            "name": f"c{number}", "engine": "vllm", "engineArgs": {f"argument-{i}": "x" for i in range(128)},
            "env": [{"name": f"V{i}", "value": "x"} for i in range(128)],
        }
        for number in range(16)
    ],
}  # fmt: skip
"""Every list as long as it may be."""


def applied(server: Server, namespace: str, spec: Spec, name: str = "llama") -> str:
    """By plain `kubectl apply`; what the user reads."""
    code, text = server.try_kubectl("apply", "-f", "-", stdin=yaml.safe_dump(pipeline(namespace, spec, name)))
    assert code == 0, text
    return text


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_definition_installs_by_plain_apply(server: Server, folder: str) -> None:
    """Its whole text goes into an annotation, which may have 256 KB; ours stays below 100."""
    file = os.path.join(folder, FILE_NAME)
    assert os.path.getsize(file) < 100_000
    for _ in range(2):
        code, text = server.try_kubectl("apply", "-f", file)
        assert code == 0, text
    assert "unchanged" in text
    conditions = server.admin.ask("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{_name()}")
    states = {c["type"]: c["status"] for c in conditions["status"]["conditions"]}
    assert states["Established"] == states["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in states


def _name() -> str:
    return f"{PIPELINES.plural}.{PIPELINES.group}"


@pytest.mark.parametrize(("spec", "path", "remedy"), BAD)
def test_a_mistake_is_refused_with_field_and_remedy(
    server: Server, namespace: str, spec: Spec, path: str, remedy: str
) -> None:
    """What a user reads names the field and says what to do."""
    code, text = server.try_kubectl("apply", "-f", "-", stdin=yaml.safe_dump(pipeline(namespace, spec)))
    assert code == 1
    assert path in text
    assert remedy in text
    assert "budget" not in text, "the rule was never run"


def test_several_mistakes_are_told_at_once(server: Server, namespace: str) -> None:
    """Nobody should have to apply five times."""
    bad = {
        "frontend": {"ingress": {}, "httpRoute": {"gateway": {"name": "g"}}},
        "components": [
            {"name": "a", "engine": "llamacpp", "tensorParallelSize": 3, "nodes": 2},
            {"name": "b", "engine": "mocker", "role": "prefill", "python": {"file": "x"}},
        ],
    }
    code, text = server.try_kubectl("apply", "-f", "-", stdin=yaml.safe_dump(pipeline(namespace, bad)))
    assert code == 1
    for said in ("hf://org/repo", "keep one", "divisible by nodes", "runs on one node", "role decode", "remove it"):
        assert said in text


def test_unknown_fields_are_refused(server: Server, namespace: str) -> None:
    """A typo is no setting."""
    spec = {"components": [{"engine": "mocker", "replicaz": 2}]}
    code, text = server.try_kubectl("apply", "-f", "-", stdin=yaml.safe_dump(pipeline(namespace, spec)))
    assert code == 1
    assert 'unknown field "spec.components[0].replicaz"' in text


@pytest.mark.parametrize("spec", [SMALLEST, FULL, ROUTED, MANY], ids=["smallest", "full", "routed", "many"])
def test_a_good_pipeline_is_taken_twice(server: Server, namespace: str, spec: Spec) -> None:
    """The rules' cost stays within the limit for the largest one too; the second apply finds nothing to change.

    So does Argo CD, which compares as `kubectl apply` does: that needs names, since the server fills in the one that
    is left out.
    """
    named = {**spec, "components": [{"name": "worker", **component} for component in spec["components"]]}
    assert "created" in applied(server, namespace, named)
    assert "unchanged" in applied(server, namespace, named)


def test_names_are_checked(server: Server, namespace: str) -> None:
    """Pipeline and component together, since StatefulSets are named after both."""
    long = {"components": [{"name": "b" * 20, "engine": "mocker"}]}
    code, text = server.try_kubectl("apply", "-f", "-", stdin=yaml.safe_dump(pipeline(namespace, long, "a" * 19)))
    assert code == 1
    assert "38 characters together: shorten one" in text
    applied(server, namespace, long, "a" * 18)


def test_columns(server: Server, namespace: str) -> None:
    """One line says whether it is up, what it serves, where, and if not, why not."""
    applied(server, namespace, {"components": [{"name": "a", "engine": "mocker", "tensorParallelSize": 4}]})
    path = PIPELINES.path(namespace, "llama", "status")
    server.admin.ask("PATCH", path, {"status": STATUS | {"tensorParallel": "4"}}, MERGE)
    head, line = server.kubectl("-n", namespace, "get", "dp").splitlines()
    assert head.split() == ["NAME", "READY", "REASON", "MODEL", "ENGINE", "WORKERS", "URL", "AGE"]
    assert line.split()[:-1] == ["llama", "True", "Serving", "org/llama", "vllm,mocker", "2/3", STATUS["url"]]
    head, line = server.kubectl("-n", namespace, "get", "dynamo", "-o", "wide").splitlines()
    assert head.split()[-3:] == ["TP", "ROUTER", "GENERATION"]
    assert line.split()[-3:] == ["4", "round-robin", "1"]


def test_every_field_is_explained(server: Server) -> None:
    """`kubectl explain` has a sentence, down to the last field."""
    code, text = server.try_kubectl("explain", "dp.spec.frontend.httpRoute.gateway.sectionName")
    assert code == 0, text
    assert "listener" in text
    code, text = server.try_kubectl("explain", "dp", "--recursive")
    assert code == 0, text
    assert "maxUnavailable" in text


def test_scale(server: Server, namespace: str) -> None:
    """`kubectl scale` sets spec.replicas; where that would change nothing, it says so instead of reporting success."""
    applied(server, namespace, SMALLEST)
    code, text = server.try_kubectl("-n", namespace, "scale", "dp/llama", "--replicas=3")
    assert (code, "scaled" in text) == (0, True), text
    assert json.loads(server.kubectl("-n", namespace, "get", "dp", "llama", "-o", "json"))["spec"]["replicas"] == 3
    applied(server, namespace, {"components": [{"engine": "mocker", "replicas": 2}]}, "pinned")
    code, text = server.try_kubectl("-n", namespace, "scale", "dp/pinned", "--replicas=3")
    assert code == 1
    assert "remove components[].replicas" in text


def test_labels_and_status_can_always_be_written(server: Server, namespace: str) -> None:
    """Also of a pipeline that came in before a rule: what its spec says isn't judged again."""
    applied(server, namespace, FULL)
    server.kubectl("-n", namespace, "label", "dp", "llama", "team=a")
    server.admin.ask("PATCH", PIPELINES.path(namespace, "llama", "status"), {"status": STATUS}, MERGE)


@pytest.fixture
def autoscaler(server: Server) -> Iterator[None]:
    """The controller of HorizontalPodAutoscalers; without metrics it still holds the minimum."""
    flags = [
        f"--kubeconfig={server.kubeconfig('autoscaler', server.admin_token)}", "--leader-elect=false",
        "--controllers=horizontal-pod-autoscaler-controller", "--bind-address=127.0.0.1", "--secure-port=0",
        "--horizontal-pod-autoscaler-sync-period=1s",
    ]  # fmt: skip
    with (server.folder / "autoscaler.log").open("ab") as log:
        process = subprocess.Popen([server.binary("kube-controller-manager"), *flags], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait(10)


def test_an_autoscaler_scales_a_pipeline(server: Server, namespace: str, autoscaler: None) -> None:
    """It reads the count and the selector from /scale, and writes spec.replicas there."""
    applied(server, namespace, SMALLEST)
    server.admin.ask("PATCH", PIPELINES.path(namespace, "llama", "status"), {"status": STATUS}, MERGE)
    server.kubectl(
        "-n", namespace, "autoscale", "dynamopipeline.dynamo.dev/llama", "--min=3", "--max=5", "--cpu-percent=50"
    )

    def replicas() -> int:
        return int(server.admin.ask("GET", PIPELINES.path(namespace, "llama"))["spec"]["replicas"])

    until("the minimum is reached", lambda: replicas() == 3)
    scale = server.admin.ask("GET", PIPELINES.path(namespace, "llama", "scale"))
    assert scale["status"] == {"replicas": 1, "selector": STATUS["selector"]}
    path = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers/llama"
    conditions = {c["type"]: c for c in server.admin.ask("GET", path)["status"]["conditions"]}
    assert conditions["AbleToScale"]["status"] == "True"
