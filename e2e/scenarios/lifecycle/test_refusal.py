"""What a user reads when the API server refuses a spec: each sentence names the field, and says what to do."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.cluster.cluster import RefusedError
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import pipeline

MOCKER = {"engine": "mocker"}
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "engine": (pipeline("x", {"engine": "vlm"}), ["spec.components[0].engine", '"vlm"', '"vllm", "sglang"']),
    "range": (pipeline("x", {**MOCKER, "replicas": -1}), ["spec.components[0].replicas", "greater than or equal to 0"]),
    "typo": (pipeline("x", {**MOCKER, "tensorParallelsize": 2}), ['unknown field "spec.components[0].tensorParallels']),
    "empty": (pipeline("x") | {"spec": {"components": []}}, ["spec.components", "at least 1 item"]),
    "twice": (pipeline("x", MOCKER, MOCKER), ["spec.components[1]", "Duplicate value", "worker"]),
    "model": (
        pipeline("x", {"engine": "vllm"}),
        ["spec.model", "source is required by every engine but", "hf://org/repo"],
    ),
    "scheme": (pipeline("x", model={"source": "s3://a/b"}), ["spec.model.source", "unknown scheme", "use hf://"]),
    "half": (pipeline("x", {**MOCKER, "role": "prefill"}), ["spec.components", "prefill needs a component with role"]),
    "nodes": (
        pipeline("x", {"engine": "vllm", "tensorParallelSize": 8, "nodes": 3}, model={"source": "/m"}),
        ["spec.components[0].nodes", "must be divisible by nodes", "choose nodes that divides it"],
    ),
    "argument": (
        pipeline("x", {"engine": "vllm", "engineArgs": {"tensor-parallel-size": 2}}, model={"source": "/m"}),
        ["engineArgs", "repeats what the pipeline sets", "use tensorParallelSize"],
    ),
    "names": (
        pipeline("a-very-long-name-for-a-pipeline", {**MOCKER, "name": "decoders"}),
        ["name of a component", "more than 38 characters together", "shorten one"],
    ),
    "replicas": (pipeline("x", {**MOCKER, "replicas": 1}, replicas=3), ["spec.replicas", "has no effect", "remove"]),
}


@pytest.mark.parametrize("case", CASES)
def test_refusal(case: str, cluster: Any, platform: Any) -> None:
    """Nothing is made, and the sentence is there."""
    manifest, words = CASES[case]
    with pytest.raises(RefusedError) as refused:
        cluster.apply(manifest)
    assert [word for word in words if word not in str(refused.value)] == [], str(refused.value)
    assert cluster.list("dynamo.dev/v1alpha1/DynamoPipeline", "default") == []


def test_an_edit_is_refused_and_the_pipeline_goes_on(namespace: Namespace) -> None:
    """`kubectl scale` and `kubectl patch` say the same sentences; what runs stays as it is."""
    namespace.apply(pipeline("kept", {**MOCKER, "replicas": 1}))
    before = namespace.wait_ready("kept")
    with pytest.raises(RefusedError, match="has no effect because every component sets its own"):
        namespace.kubectl("scale", "dp/kept", "--replicas=3")
    with pytest.raises(RefusedError, match="namespace can't change while the pipeline lives"):
        namespace.kubectl("patch", "dp/kept", "--type=merge", '-p={"spec":{"namespace":"other"}}')
    assert namespace.pipeline("kept")["metadata"]["generation"] == before["metadata"]["generation"]
    assert namespace.condition("kept")["status"] == "True"
