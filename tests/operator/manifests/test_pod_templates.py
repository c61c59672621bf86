"""The user's podTemplate over ours: what merges, what wins, what is refused with its path."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.pipelines import Spec, pipeline
from tests.operator.rendered import env_of, main_container, of_kind, render

from dynamo.operator.cluster.changes import differences
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import RenderError


def test_pod_templates_merge_by_name() -> None:
    """Containers and variables by name, what is ours stays where nothing is said; our labels can't be taken."""
    patch = {
        "metadata": {"labels": {naming.COMPONENT: "mine", "team": "a"}},
        "spec": {
            "containers": [
                {"name": "worker", "image": "mine:1", "env": [{"name": "HOME", "value": "/home"}]},
                {"name": "proxy", "image": "proxy:1"},
            ],
            "volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}],
            "topologySpreadConstraints": [{"topologyKey": "kubernetes.io/hostname", "$patch": "delete"}],
            "enableServiceLinks": None,
        },
    }
    before = copy.deepcopy(patch)
    found = pipeline({"components": [{"engine": "mocker", "podTemplate": patch}]})
    template = of_kind(render(found), "StatefulSet")["spec"]["template"]
    ours, theirs = template["spec"]["containers"]
    assert (ours["image"], env_of(ours)["HOME"], theirs["name"]) == ("mine:1", "/home", "proxy")
    assert env_of(ours)["DYN_NAMESPACE"] == "serving_llama"
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["labels"][naming.COMPONENT] == "worker"
    assert {"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}} in template["spec"]["volumes"]
    assert template["spec"]["topologySpreadConstraints"] == []
    assert "enableServiceLinks" not in template["spec"]
    assert patch == before, "the pipeline's own object is never changed"


def test_of_alternatives_the_users_stands() -> None:
    """Two handlers, two sources or two values would be refused, and nulls don't reach the operator."""
    ours = {
        "name": "worker",
        "livenessProbe": {"exec": {"command": ["true"]}},
        "env": [{"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    }
    volumes = [{"name": "cache", "persistentVolumeClaim": {"claimName": "mine"}}, {"name": "tmp", "emptyDir": {"a": 1}}]
    patch = {"spec": {"containers": [ours], "volumes": volumes}}
    manifest = of_kind(render(pipeline({"components": [{"engine": "mocker", "podTemplate": patch}]})), "StatefulSet")
    container = main_container(manifest)
    assert container["livenessProbe"] == {
        "exec": {"command": ["true"]},
        "periodSeconds": 10,
        "timeoutSeconds": 5,
        "failureThreshold": 6,
    }
    assert {"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in container["env"]
    assert manifest["spec"]["template"]["spec"]["volumes"] == [volumes[1], volumes[0]]


@pytest.mark.parametrize(
    ("patch", "path", "remedy"),
    [
        ({"spec": "x"}, "podTemplate.spec", "must be a mapping"),
        ({"spec": {"containers": {"worker": {}}}}, "podTemplate.spec.containers", "must be a list"),
        ({"spec": {"containers": ["x"]}}, "podTemplate.spec.containers[0]", "must be a mapping"),
        ({"spec": {"containers": [{"image": "x"}]}}, "podTemplate.spec.containers[0].name", "is required"),
        ({"spec": {"containers": [{"name": "x"}]}}, "spec.containers[1].image", "container of yours"),
        ({"$patch": "replace", "spec": "x"}, "podTemplate.spec", "must be a mapping"),
        ({"metadata": {"$patch": "replace", "labels": ["x"]}}, "metadata.labels", "must be a mapping"),
        ({"metadata": {"labels": {"a": 1}}}, "metadata.labels.a", "quote it"),
        ({"spec": {"containers": [{"name": "worker", "$patch": "delete"}]}}, "containers", "must keep the container"),
        ({"spec": {"$patch": "replace"}}, "spec.containers", "must keep the container 'worker'"),
        ({"spec": {"containers": [{"name": "worker", "env": [{"name": "A", "value": 1}]}]}}, ".value", "quote it"),
    ],
)
def test_malformed_pod_templates_are_refused_with_their_path(patch: Spec, path: str, remedy: str) -> None:
    """The API server would say `internal error`, and the operator would try for ever."""
    found = pipeline({"components": [{"engine": "mocker", "podTemplate": patch}]})
    with pytest.raises(RenderError) as caught:
        render(found)
    assert path in caught.value.path
    assert caught.value.path.startswith("spec.components[0].podTemplate")
    assert remedy in caught.value.message


_KEYS = st.sampled_from(
    ["metadata", "labels", "spec", "containers", "volumes", "env", "name", "value", "image", "$patch", "ports", "x"]
)
_WILD = st.recursive(
    st.sampled_from(["worker", "replace", "delete", "x", 1, True, 2.5]) | st.just({"$patch": "replace"}),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(_KEYS, _WILD, max_size=3)
    | st.fixed_dictionaries({"spec": st.fixed_dictionaries({"containers": _WILD}, optional={"volumes": _WILD})})
)
def test_no_pod_template_breaks_the_operator(template: Spec) -> None:
    """Whatever the opaque field holds: manifests with our selector's labels, or a sentence that names the field."""
    found = pipeline({"components": [{"engine": "mocker", "podTemplate": template}]})
    try:
        rendered = render(found)
    except RenderError as error:
        assert error.path.startswith("spec.components[0].podTemplate")  # noqa: PT017  # most are accepted
        return
    manifest = of_kind(rendered, "StatefulSet")
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert differences(manifest, copy.deepcopy(manifest)) == []
