"""Files of other systems become valid pipelines; what has no counterpart is named."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dynamo.cli.conversion.command import convert as command
from dynamo.cli.conversion.conversion import convert
from dynamo.cli.conversion.draft import ConversionError
from dynamo.operator.api.load import load_pipelines

GRAPH = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: disagg, namespace: team}
spec:
  services:
    Frontend:
      componentType: frontend
      replicas: 2
      envs: [{name: DYN_ROUTER_MODE, value: kv}]
      extraPodSpec: {mainContainer: {image: vllm-runtime:1}}
    VllmDecodeWorker:
      componentType: worker
      subComponentType: decode
      envFromSecret: hf-token-secret
      replicas: 2
      resources: {limits: {gpu: "4"}}
      sharedMemory: {size: 16Gi}
      extraPodSpec:
        nodeSelector: {gpu: h100}
        mainContainer:
          image: vllm-runtime:1
          command: [/bin/sh, -c]
          args: ["python3 -m dynamo.vllm --model Qwen/Qwen3-32B --tensor-parallel-size 4 --max-num-seqs 64"]
    VllmPrefillWorker:
      componentType: worker
      replicas: 1
      livenessProbe: {httpGet: {path: /live, port: 9090}}
      resources: {limits: {gpu: "4"}}
      extraPodSpec:
        mainContainer:
          image: vllm-runtime:1
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-32B, -tp=4, --is-prefill-worker]
    Planner: {componentType: planner, replicas: 1}
"""
BETA = """
kind: DynamoGraphDeployment
metadata: {name: agg}
spec:
  components:
    - {name: web, type: frontend, replicas: 1}
    - name: worker
      type: worker
      sharedMemorySize: 8Gi
      podTemplate:
        spec:
          containers:
            - name: main
              args: [-m, dynamo.sglang, --model-path, org/m, --tp, "2", --context-length, "8192"]
              resources: {limits: {nvidia.com/gpu: 2, cpu: 4}}
"""
KSERVE = """
kind: LLMInferenceService
metadata: {name: Llama-3}
spec:
  model: {uri: "hf://meta-llama/Llama-3.1-8B", name: llama}
  replicas: 3
  parallelism: {tensor: 2, expert: true}
  router: {scheduler: {}}
  template:
    containers:
      - name: main
        env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}]
        resources: {limits: {nvidia.com/gpu: "2", memory: 32Gi}}
  prefill: {replicas: 1, template: {containers: [{name: main}]}}
"""
KUBEAI = """
kind: Model
metadata: {name: qwen}
spec:
  url: hf://Qwen/Qwen3-8B
  engine: VLLM
  features: [TextGeneration]
  resourceProfile: nvidia-gpu-l4:2
  minReplicas: 1
  maxReplicas: 3
  args: [--max-model-len=8192, --enable-prefix-caching]
  loadBalancing: {strategy: PrefixHash}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
spec:
  replicas: 2
  selector: {matchLabels: {a: b}}
  template:
    spec:
      volumes:
        - {name: shm, emptyDir: {medium: Memory, sizeLimit: 2Gi}}
        - {name: models, persistentVolumeClaim: {claimName: weights}}
      tolerations: [{key: gpu, operator: Exists}]
      containers:
        - name: vllm
          image: vllm-openai:v1
          command: [/bin/sh, -c]
          args:
            - vllm serve mistralai/Mistral-7B --served-model-name chat --trust-remote-code --api-key s3cret --port 80
          env: [{name: MY_TOKEN, value: s3cret}, {name: VLLM_LOGGING_LEVEL, value: DEBUG}]
          resources: {limits: {nvidia.com/gpu: "1"}}
"""
COMPOSE = """
services:
  web: {image: open-webui}
  llm:
    image: vllm-openai:latest
    command: --model org/m --max-model-len 4096 --gpu-memory-utilization 0.8
    environment: ["HUGGING_FACE_HUB_TOKEN=s3cret", "A=b"]
    ipc: host
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
"""


def spec_of(text: str) -> tuple[dict[str, Any], list[str]]:
    """The spec of the only pipeline, which the operator's own check takes, and the remarks' paths."""
    converted = convert(text)
    (pipeline,) = load_pipelines(converted.text)
    assert pipeline.name
    return dict(yaml.safe_load(converted.text)["spec"]), [str(remark) for remark in converted.remarks]


def test_a_graph_of_nvidia_dynamo() -> None:
    spec, remarks = spec_of(GRAPH)
    decode, prefill = spec["components"]
    assert spec["model"] == {"source": "hf://Qwen/Qwen3-32B"}
    assert spec["frontend"] == {"replicas": 2, "router": {"mode": "kv"}}
    assert decode == {
        "name": "vllmdecodeworker", "engine": "vllm", "tensorParallelSize": 4, "engineArgs": {"max_num_seqs": 64},
        "accelerator": {"resource": "nvidia.com/gpu", "count": 4}, "nodeSelector": {"gpu": "h100"}, "role": "decode",
        "replicas": 2, "sharedMemory": "16Gi", "envFrom": [{"secretRef": {"name": "hf-token-secret"}}],
    }  # fmt: skip
    assert (prefill["role"], prefill["tensorParallelSize"]) == ("prefill", 4)
    assert [remark.partition(":")[0] for remark in remarks] == ["spec.VllmPrefillWorker.livenessProbe", "spec.Planner"]
    assert "namespace: team" in convert(GRAPH).text


def test_a_graph_of_its_newer_version() -> None:
    spec, _ = spec_of(BETA)
    (worker,) = spec["components"]
    assert (worker["engine"], worker["tensorParallelSize"], worker["sharedMemory"]) == ("sglang", 2, "8Gi")
    assert spec["model"] == {"source": "hf://org/m", "contextLength": 8192}
    assert worker["resources"] == {"limits": {"cpu": "4"}}


def test_kserve() -> None:
    spec, remarks = spec_of(KSERVE)
    assert spec["model"]["tokenSecret"] == {"name": "hub", "key": "token"}
    assert spec["model"]["name"] == "llama"
    assert [(c["role"], c["engine"], c["replicas"]) for c in spec["components"]] == [
        ("decode", "vllm", 3), ("prefill", "vllm", 1),
    ]  # fmt: skip
    assert [remark.partition(":")[0] for remark in remarks] == ["spec.parallelism.expert", "spec.router"]


def test_kubeai() -> None:
    spec, remarks = spec_of(KUBEAI)
    assert spec["components"] == [{
        "name": "worker", "engine": "vllm", "engineArgs": {"enable_prefix_caching": True},
        "accelerator": {"resource": "nvidia.com/gpu", "count": 2}, "replicas": 1,
    }]  # fmt: skip
    assert spec["frontend"] == {"router": {"mode": "kv"}}
    assert spec["model"] == {"contextLength": 8192, "source": "hf://Qwen/Qwen3-8B", "name": "qwen"}
    assert [r.partition(":")[0] for r in remarks] == ["spec.resourceProfile", "spec.minReplicas", "spec.maxReplicas"]


def test_a_deployment_of_vllm() -> None:
    """No secret is copied."""
    spec, remarks = spec_of(DEPLOYMENT)
    (worker,) = spec["components"]
    assert spec["model"] == {"name": "chat", "source": "hf://mistralai/Mistral-7B"}
    assert worker["engineArgs"] == {"trust_remote_code": True}
    assert worker["env"] == [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]
    assert (worker["sharedMemory"], worker["replicas"]) == ("2Gi", 2)
    assert "s3cret" not in convert(DEPLOYMENT).text + "".join(remarks)
    assert any("pvc://weights/PATH" in remark for remark in remarks)


def test_a_compose_file() -> None:
    spec, remarks = spec_of(COMPOSE)
    (worker,) = spec["components"]
    assert worker["name"] == "llm"
    assert worker["engineArgs"] == {"gpu_memory_utilization": 0.8}
    assert worker["accelerator"] == {"resource": "nvidia.com/gpu", "count": 2}
    assert worker["env"] == [{"name": "A", "value": "b"}]
    assert "s3cret" not in convert(COMPOSE).text + "".join(remarks)
    assert remarks[0].startswith("services.web: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "line 1: is not valid YAML"),
        ("kind: Pod", "none of DynamoGraphDeployment"),
        ("kind: Deployment\nspec: {template: {spec: {containers: [{image: nginx}]}}}", "no engine that a pipeline has"),
        ("services: {web: {image: nginx}}", "no server of a model"),
        ("kind: Model\nspec: {engine: OLlama}", "VLLM is"),
        (DEPLOYMENT.replace("vllm serve", "vllm serve '"), "can't be read"),
        (DEPLOYMENT.replace("replicas: 2", "replicas: -1"), "no valid pipeline: spec.components[0].replicas"),
        (GRAPH.replace("Qwen/Qwen3-32B, -tp", "other/model, -tp"), "one pipeline has one model"),
    ],
)  # fmt: skip
def test_what_cant_be_converted_is_said(text: str, says: str) -> None:
    with pytest.raises(ConversionError) as raised:
        convert(text)
    assert says in str(raised.value)


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from([
            "services", "spec", "components", "template", "containers", "args", "command", "image", "env", "resources",
            "limits", "name", "replicas", "model", "uri", "prefill", "engine", "volumes", "emptyDir",
        ]), inner, max_size=4,
    ), max_leaves=12,
)  # fmt: skip


@given(st.sampled_from(["DynamoGraphDeployment", "LLMInferenceService", "Model", "Deployment", ""]), VALUES, VALUES)
def test_no_file_breaks_it(kind: str, spec: Any, services: Any) -> None:
    """Whatever a document holds: a valid pipeline, or a sentence."""
    with contextlib.suppress(ConversionError):
        assert load_pipelines(convert(json.dumps({"kind": kind, "spec": spec, "services": services})).text)


def test_the_command(tmp_path: Path) -> None:
    """YAML alone on standard output, remarks on standard error; a file by `-o`; `-` is standard input."""
    file, output = tmp_path / "graph.yaml", tmp_path / "pipeline.yaml"
    file.write_text(GRAPH)
    run = CliRunner()
    done = run.invoke(command, [str(file)])
    assert done.exit_code == 0
    assert load_pipelines(done.stdout)[0].name == "disagg"
    assert f"{file}: spec.Planner: " in done.stderr
    assert run.invoke(command, ["-", "-o", str(output)], input=COMPOSE).exit_code == 0
    assert load_pipelines(output.read_text())[0].name == "pipeline"
    missing = run.invoke(command, [str(tmp_path / "none.yaml")])
    assert (missing.exit_code, "can't be read: No such file" in missing.output) == (1, True)
