"""Everything that the operator writes: taken by the API server, not changed by a second apply, allowed to run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.apiserver.client import RefusedError
from e2e.manifests.rendering import CLUSTER_SETTINGS, OPENSHIFT, PLAIN, pipeline, rendered, templates
from e2e.manifests.server import Server
from hypothesis import HealthCheck, Phase, given, settings
from tests.operator.pipelines import FULL, ROUTED, SMALLEST, valid_pipelines

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.cluster.changes import differences
from dynamo.operator.manifests.context import ClusterSettings, Manifest

EXAMPLES = Path(__file__).parents[2] / "examples"
Spec = dict[str, Any]


def examples() -> list[tuple[str, Spec]]:
    """The specs of all pipelines that we show."""
    files = sorted(EXAMPLES.glob("**/*.yaml"))
    documents = [(file, one) for file in files for one in yaml.safe_load_all(file.read_text("utf-8"))]
    return [(f"{file.stem.replace('_', '-')}-{one['metadata']['name']}", one["spec"]) for file, one in documents if one]


CASES = [("smallest", SMALLEST), ("full", FULL), ("routed", ROUTED), *examples()]


def without_their_pods(spec: Spec) -> Spec:
    """Without the parts that are the user's own to keep within the standard, or that need more than this server has."""
    elsewhere = ("podTemplate", "priorityClassName", "runtimeClassName")
    components = [{k: v for k, v in c.items() if k not in elsewhere} for c in spec["components"]]
    frontend = {k: v for k, v in spec.get("frontend", {}).items() if k != "podTemplate"}
    return {**spec, "components": components, "frontend": frontend}


def settle(server: Server, manifest: Manifest) -> None:
    """Written once, it is as wanted, and written again it is the same object."""
    first = server.apply(manifest)
    assert differences(manifest, first) == []
    second = server.apply(manifest)
    if manifest["kind"] == "PersistentVolumeClaim":
        # The server itself changes a claim's bookkeeping once.
        first, second = second, server.apply(manifest)
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], manifest["kind"]


@pytest.mark.parametrize("cluster", [CLUSTER_SETTINGS, PLAIN, OPENSHIFT], ids=["signed-in", "plain", "openshift"])
@pytest.mark.parametrize(("name", "spec"), CASES, ids=[name for name, _ in CASES])
def test_children_are_taken_and_at_rest(
    server: Server, namespace: str, name: str, spec: Spec, cluster: ClusterSettings
) -> None:
    """No field is unknown, none comes back in another form, no second apply writes."""
    live = server.apply(pipeline(namespace, spec))
    for manifest in rendered(live, cluster):
        settle(server, manifest)


@pytest.mark.parametrize("cluster", [CLUSTER_SETTINGS, PLAIN, OPENSHIFT], ids=["signed-in", "plain", "openshift"])
@pytest.mark.parametrize(("name", "spec"), CASES, ids=[name for name, _ in CASES])
def test_pods_are_within_the_restricted_standard(
    server: Server, namespace: str, name: str, spec: Spec, cluster: ClusterSettings
) -> None:
    """GPU engines included; what the server would refuse, it refuses here."""
    live = server.apply(pipeline(namespace, without_their_pods(spec)))
    found = rendered(live, cluster)
    for manifest in found:
        if manifest["kind"] == "ServiceAccount":
            server.apply(manifest)
    for template in templates(found):
        server.try_pod(namespace, template)


def test_this_server_enforces_the_standard(server: Server, namespace: str) -> None:
    """The test above would see a pod that may become root."""
    live = server.apply(pipeline(namespace, SMALLEST))
    for manifest in rendered(live, PLAIN):
        if manifest["kind"] == "ServiceAccount":
            server.apply(manifest)
    template = templates(rendered(live, PLAIN))[0]
    loose = {**template["spec"]["containers"][0], "securityContext": {"allowPrivilegeEscalation": True}}
    with pytest.raises(RefusedError, match="violates PodSecurity"):
        server.try_pod(namespace, {**template, "spec": {**template["spec"], "containers": [loose]}})


def test_any_pipeline_is_taken_and_at_rest(server: Server, new_namespace: Callable[[], str]) -> None:
    """Whatever the types allow."""

    @settings(
        max_examples=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(valid_pipelines)
    def case(found: DynamoPipeline) -> None:
        spec = json.loads(found.model_dump_json(by_alias=True, exclude_none=True))["spec"]
        live = server.apply(pipeline(new_namespace(), spec, found.name))
        again = server.apply(pipeline(live["metadata"]["namespace"], spec, found.name))
        assert again["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]
        for manifest in rendered(live):
            settle(server, manifest)

    case()


def test_what_the_server_gives_back_renders_the_same(server: Server, namespace: str) -> None:
    """Defaults, numbers and the order of maps make no new revision."""
    for name, spec in CASES:
        live = server.apply(pipeline(namespace, spec, name[:20].strip("-")))
        given_back = json.loads(server.kubectl("-n", namespace, "get", "dp", live["metadata"]["name"], "-o", "json"))
        assert rendered(given_back) == rendered(live) == rendered({**live, "spec": live["spec"]})
        asked = {**live, "spec": spec}
        assert [m["metadata"]["name"] for m in rendered(asked)] == [m["metadata"]["name"] for m in rendered(live)]
