"""A component's own server: a container beside the worker in a cluster, a child of the worker on a laptop."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.operator.pipelines import Spec, pipeline
from tests.operator.rendered import env_of, main_container, of_kind, render

from dynamo.cli.local.process_specs import local_problems
from dynamo.operator.api import rules
from dynamo.operator.api.v1alpha1 import Component
from dynamo.operator.plan.plan import Environment, plan

VLLM: Spec = {
    "engine": "openai",
    "image": "vllm/vllm-openai:v0.32.0",
    "args": ["--model", "Qwen/Qwen3-0.6B", "--port=8123", "$(HOME)"],
    "accelerator": {"count": 2},
    "resources": {"limits": {"memory": "64Gi"}},
    "env": [{"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
}


def arguments_of(component: Spec, *, local: bool) -> dict[str, Any]:
    """What the worker's engine is told."""
    made = plan(pipeline({"components": [component]}), Environment(("e",), "n", local=local)).workers[0].argv
    text = made[made.index("--engine-args") + 1] if "--engine-args" in made else "{}"
    told: dict[str, Any] = json.loads(str(text))
    return told


def test_the_stock_image_runs_beside_the_worker() -> None:
    """It has the devices, the port and the probes; it starts before the worker and ends after it."""
    manifest = of_kind(render(pipeline({"components": [VLLM]})), "StatefulSet")
    worker = main_container(manifest)
    (server,) = manifest["spec"]["template"]["spec"]["initContainers"]
    assert (server["image"], server["restartPolicy"]) == ("vllm/vllm-openai:v0.32.0", "Always")
    assert server["args"][2:] == ["--port=8123", "$$(HOME)"]
    assert server["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": "2"}
    assert "limits" not in worker["resources"]
    assert worker["image"] != server["image"]
    assert server["ports"][0]["containerPort"] == 8123
    assert server["startupProbe"]["tcpSocket"] == server["livenessProbe"]["tcpSocket"] == {"port": "server"}
    assert server["securityContext"]["runAsNonRoot"]
    assert "OPENAI_API_KEY" in [variable["name"] for variable in server["env"]]
    assert "ETCD_ENDPOINTS" not in env_of(server)
    volumes = {volume["name"] for volume in manifest["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in server["volumeMounts"]} <= volumes
    assert arguments_of(VLLM, local=False) == {"url": "http://127.0.0.1:8123/v1", "api_key_env": "OPENAI_API_KEY"}


def test_a_pipeline_without_a_server_is_as_before() -> None:
    """Nothing of it shows, so no pipeline rolls; the image is the worker's for other engines."""
    manifest = of_kind(render(pipeline({"components": [{"engine": "mocker", "image": "mine:1"}]})), "StatefulSet")
    assert main_container(manifest)["image"] == "mine:1"
    assert "initContainers" not in manifest["spec"]["template"]["spec"]
    given = {"engine": "openai", "engineArgs": {"url": "http://a:1/v1"}}
    assert arguments_of(given, local=False) == {"url": "http://a:1/v1"}


@pytest.mark.parametrize(
    ("more", "local", "told"),
    [
        ({"upstream": "http://a.b.svc/v1"}, False, {"url": "http://a.b.svc/v1"}),
        ({"command": ["x", "--port", "{port}"]}, True, {"command": ["x", "--port", "{port}"]}),
        ({"command": ["x"], "args": ["--port", "81"]}, False,
         {"command": ["x", "--port", "81"], "url": "http://127.0.0.1:81/v1"}),
        ({"image": "i", "command": ["x"]}, False, {"url": "http://127.0.0.1:8000/v1"}),
        ({"image": "i", "command": ["x"]}, True, {"command": ["x"], "url": "http://127.0.0.1:8000/v1"}),
        ({"image": "i", "command": ["x"], "args": ["--port=81", "y"]}, True, {"command": ["x", "--port={port}", "y"]}),
        ({"image": "i", "upstream": "http://127.0.0.1:11434"}, False, {"url": "http://127.0.0.1:11434"}),
        ({"args": ["--port", "99999"], "image": "i"}, False, {"url": "http://127.0.0.1:8000/v1"}),
    ],
)  # fmt: skip
def test_what_the_worker_is_told(more: Spec, local: bool, told: Spec) -> None:
    """Where the server is, and its command where the worker starts it."""
    assert arguments_of({"engine": "openai", **more}, local=local) == told


def test_what_cannot_be_is_said() -> None:
    """A server of another engine, an address with a password in it, an image on a laptop."""
    problems = list(rules.server_is_for_openai(Component.model_validate_json('{"engine": "vllm", "args": ["x"]}')))
    assert [problem.path for problem in problems] == ["args"]
    for url in ("http://u:p@h/v1", "ftp://h", "http://h/?q", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="upstream"):
            Component.model_validate_json(json.dumps({"engine": "openai", "upstream": url}))
    made = pipeline({"components": [{"engine": "openai", "image": "i"}]})
    (problem,) = local_problems(made, plan(made, Environment(("e",), "n", local=True)), {})
    assert "no containers here" in problem
