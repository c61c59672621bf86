"""The CRD: what Kubernetes demands of a schema, and that it refuses what `api/rules.py` refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.admission import admit, holds, schema, walk, with_defaults
from tests.operator.pipelines import FULL, ROUTED, SMALLEST, Spec, body, specs

from dynamo.operator.api import rules
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.codegen.cel_rules import BY_SCHEMA, BY_THE_OPERATOR, CEL_RULES
from dynamo.operator.codegen.crd import FILE_NAME, FOLDERS, crd, crd_text

ROOT = Path(__file__).parents[3]
MODEL = {"model": {"source": "/m"}}


def one(**component: Any) -> Spec:
    return {"components": [component], **MODEL}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_written_file_is_what_the_types_say(folder: str) -> None:
    """Drift fails: `make generate` writes it again."""
    assert (ROOT / folder / FILE_NAME).read_text("utf-8") == crd_text()


def test_yaml_readers_see_what_was_meant() -> None:
    """No text turns into a boolean or a number; the size stays far below what `kubectl apply` stores."""
    assert yaml.safe_load(crd_text()) == crd()
    assert len(crd_text().encode()) < 100_000
    switches = re.compile(r": (y|n|yes|no|on|off)$", re.IGNORECASE | re.MULTILINE)
    assert not switches.search(crd_text())
    assert "{{" not in crd_text(), "the chart's copy would be taken for a template"


def test_the_schema_is_structural() -> None:
    """A type everywhere or one of Kubernetes' two exceptions, no unions, no references."""
    for path, node in walk(schema()):
        opaque = node.get("x-kubernetes-preserve-unknown-fields") or node.get("x-kubernetes-int-or-string")
        assert "type" in node or opaque, path
        assert not {"$ref", "anyOf", "oneOf", "allOf", "title", "nullable"} & set(node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        for name in node.get("required", []):
            assert "default" not in node["properties"][name], f"{path}.{name}"


def test_every_field_has_a_description() -> None:
    """`kubectl explain` has a sentence for each field; the object's metadata is Kubernetes' own."""
    missing = [p for p, n in walk(schema()) if not n.get("description") and not p.endswith("{}") and p != "metadata"]
    assert [p for p in missing if not p.endswith(("endpoints[]", "hostnames[]", "paths[]"))] == []


def test_nothing_is_filled_into_lists() -> None:
    """`kubectl apply` and Argo CD would see a difference for ever; the descriptions say what counts instead."""
    filled = [path for path, node in walk(schema()) if "[]" in path and "default" in node]
    assert filled == ["spec.components[].name"], "the key of a map needs one"
    assert dict(walk(schema()))["spec.components[].nodes"]["description"].endswith("; default 1.")


def test_lists_are_bounded_and_say_what_they_are() -> None:
    """Unbounded lists of what a rule reads exceed Kubernetes' cost limit; map keys are always there."""
    for path, node in walk(schema()):
        if node.get("type") != "array":
            continue
        assert "maxItems" in node, path
        assert node["x-kubernetes-list-type"] in ("map", "atomic"), path
        for key in node.get("x-kubernetes-list-map-keys", []):
            items = node["items"]
            assert key in items.get("required", []) or "default" in items["properties"][key], path


def test_every_text_list_and_map_has_a_bound() -> None:
    """Who may write a pipeline, or its status, decides no size: not a text's, a list's, or a map's."""
    unbounded = [path for path, node in walk(schema()) if path not in _KUBERNETES and _lacks_bound(node)]
    assert unbounded == []


_KUBERNETES = ("", "metadata", "apiVersion", "kind")


def _lacks_bound(node: dict[str, Any]) -> bool:
    if node.get("type") == "string":
        return "maxLength" not in node and "enum" not in node
    if node.get("x-kubernetes-int-or-string"):
        return "maxLength" not in node and "pattern" in node
    if node.get("type") == "array":
        return "maxItems" not in node
    is_map = "additionalProperties" in node or node.get("x-kubernetes-preserve-unknown-fields")
    return bool(is_map) and "maxProperties" not in node


def test_every_rule_has_its_counterpart() -> None:
    """A new rule in `api/rules.py` without CEL or schema fails here, and a CEL rule names a real one and a place."""
    names = {r.__name__ for r in (*rules.ROOT_RULES, *rules.SPEC_RULES, *rules.COMPONENT_RULES)}
    mirrored = {r.mirrors for r in CEL_RULES} - {""}
    assert mirrored | set(BY_SCHEMA) | BY_THE_OPERATOR == names
    assert not mirrored & BY_THE_OPERATOR
    places = {path for path, _ in walk(schema())}
    assert {r.place for r in CEL_RULES} <= places
    for rule in CEL_RULES:
        assert not rule.field or f"{rule.place}{rule.field}".lstrip(".") in places, rule
        assert "string(" not in rule.rule + rule.expression, "Kubernetes finds string(int) too costly"
        assert ":" in rule.message, "says what to do"


def test_root_rules_are_few() -> None:
    """They can never become stricter, and they block status writes: two, as agreed."""
    assert [r.mirrors for r in CEL_RULES if not r.place] == ["names_fit", ""]


@pytest.mark.parametrize("spec", [SMALLEST, FULL, ROUTED])
def test_good_pipelines_are_let_in(spec: Spec) -> None:
    """The smallest one, the one with every field, and the other way in."""
    assert admit(body(spec)) == []


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda f: f.name)
def test_every_example_is_let_in(file: Path) -> None:
    """What `dynamo up` runs, `kubectl apply` takes."""
    for document in yaml.safe_load_all(file.read_text("utf-8")):
        assert admit(document) == []


def test_defaults_are_those_of_the_types() -> None:
    """What the API server fills in is what pydantic would."""
    defaulted = with_defaults(schema(), body({"components": [{"engine": "mocker", "rollout": {}}]}))
    plain = body({"components": [{"engine": "mocker"}]})
    full = DynamoPipeline.model_validate(plain, strict=False)
    assert DynamoPipeline.model_validate(defaulted, strict=False) == full
    assert defaulted["spec"]["components"] == [{"engine": "mocker", "name": "worker", "rollout": {}}]
    assert defaulted["spec"]["frontend"]["router"]["mode"] == "round-robin"
    assert "status" not in defaulted


BAD: list[tuple[Spec, str, str]] = [
    (one(engine="mocker", name="a" * 34), "", "shorten one"),
    ({"replicas": 3, "components": [{"engine": "mocker", "replicas": 2}]}, "spec.replicas", "remove components[]"),
    ({"components": [{"engine": "llamacpp"}]}, "spec.model", "hf://org/repo"),
    ({**SMALLEST, "model": {"source": "s3://a/b"}}, "spec.model.source", "use hf://"),
    ({**SMALLEST, "model": {"source": "file://a"}}, "spec.model.source", "absolute path"),
    ({**SMALLEST, "model": {"source": "hf://llama"}}, "spec.model.source", "hf://org/repo"),
    ({**SMALLEST, "model": {"source": "hf://org/repo/model.safetensors"}}, "spec.model.source", "file.gguf"),
    ({**SMALLEST, "model": {"source": "pvc://claim/"}}, "spec.model.source", "pvc://models/llama"),
    ({**SMALLEST, "model": {"source": "package://"}}, "spec.model.source", "a name after it"),
    (one(engine="vllm", role="prefill"), "spec.components", "role decode"),
    (one(engine="vllm", tensorParallelSize=3, nodes=2), "spec.components[0].nodes", "component worker: tensorPar"),
    (one(engine="echo_core", tensorParallelSize=2, nodes=2), "spec.components[0].nodes", "engine echo_core runs on"),
    (
        {"components": [{"engine": "echo_core", "role": "prefill"}, {"name": "d", "engine": "vllm", "role": "decode"}],
         **MODEL},
        "spec.components[0].role", "engine echo_core can't split",
    ),
    (one(engine="python"), "spec.components[0].engine", "set python.file"),
    (one(engine="mocker", python={"file": "x"}), "spec.components[0].python", "remove it"),
    (one(engine="mocker", engineArgs={"--model": "x"}), "spec.components[0].engineArgs", "use spec.model.source"),
    (one(engine="mocker", engineArgs={"block_size": 3}), "spec.components[0].engineArgs", "use kvCacheBlockSize"),
    (one(engine="mocker", name="frontend"), "spec.components[0].name", "choose another"),
    (one(engine="mocker", env=[{"name": "NATS_SERVER"}]), "components[0].env[0].name", "use spec.runtime.nats.url"),
    (one(engine="mocker", env=[{"name": "A", "value": "", "valueFrom": {}}]), "env[0]", "A has both"),
    (one(engine="mocker", env=[{"name": "A"}, {"name": "A"}]), "components[0].env", "Duplicate"),
    ({"components": [{"engine": "mocker"}] * 2}, "spec.components", "Duplicate"),
    (one(engine="mocker", rollout={"strategy": "Recreate", "maxSurge": 1}), "rollout.strategy", "use Rolling"),
    ({**SMALLEST, "frontend": {"ingress": {}, "httpRoute": {"gateway": {"name": "g"}}}},
     "spec.frontend.httpRoute", "keep one"),
    (one(engine="mocker", rollout={"maxSurge": 0, "maxUnavailable": "0%"}), "components[0].rollout", "raise one"),
    (one(engine="mocker", nodes=2, tensorParallelSize=2, replicas=513), "spec.components", "1024 pods at most"),
    (one(engine="mocker", gangScheduling=True), "components[0].gangScheduling", "set nodes above 1"),
    (one(engine="mocker", resourceClaims=[{"name": "a"}]), "components[0].resourceClaims[0]", "set one of them"),
    (one(engine="mocker", resourceClaims=[{"name": "a", "resourceClaimName": "b"}] * 2), "resourceClaims", "Duplicate"),
    (one(engine="mocker", tolerations=[{"operator": "Exists", "key": "a", "value": "b"}]), "[0].value", "use Equal"),
    (one(engine="mocker", tolerations=[{"value": "b"}]), "components[0].tolerations[0]", "must be Exists"),
    (one(engine="mocker", tolerations=[{"key": "a", "tolerationSeconds": 1}]), "tolerationSeconds", "effect NoExecute"),
    ({**SMALLEST, "model": {"cache": {}}}, "spec.model.cache", "set one of them"),
    ({**SMALLEST, "model": {"cache": {"claimName": "a", "accessMode": "ReadWriteMany"}}}, "cache.claimName", "remove"),
    ({"replicas": 500, "components": [{"engine": "mocker", "name": n} for n in "abc"]}, "spec.components", "1024 pods"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "path", "remedy"), BAD)
def test_each_mistake_is_refused_with_field_and_remedy(spec: Spec, path: str, remedy: str) -> None:
    """One sentence each, at the field, and `api/rules.py` agrees that it is wrong."""
    (admitted_body,) = admit(body(spec))
    assert path in admitted_body
    assert remedy in admitted_body
    assert rules.check(DynamoPipeline.model_validate(body(spec), strict=False))


@pytest.mark.parametrize("name", ["Llama", "1st", "a.b", "a-", "a" * 38])
def test_names_that_no_child_could_bear(name: str) -> None:
    """Services need a letter in front, and there is room for 37 characters."""
    admitted = admit(body(SMALLEST, name))
    assert admitted
    assert all("metadata.name" in line for line in admitted)


def test_the_dynamo_namespace_is_for_life() -> None:
    """A change would split old parts from new ones."""
    rule = next(r.rule for r in CEL_RULES if "oldSelf" in r.rule)
    assert holds(rule, {"namespace": "a"}, {"namespace": "a"})
    assert holds(rule, {"replicas": 1}, {"replicas": 2})
    assert not holds(rule, {"namespace": "a"}, {"namespace": "b"})
    assert not holds(rule, {"namespace": "a"}, {})


@settings(deadline=None)
@given(specs())
def test_what_the_types_take_the_api_server_takes(spec: Spec) -> None:
    """No valid pipeline is refused by the CRD."""
    assert admit(body(spec)) == []


_SOURCES = st.from_regex(r"\A(hf|pvc|file|package|s3|)(://|:/)?[/@a.]{0,6}\Z")


@settings(deadline=None)
@given(_SOURCES.filter(bool))
def test_sources_are_judged_alike(source: str) -> None:
    """CEL's patterns and Python's code draw the same line."""
    spec = {**SMALLEST, "model": {"source": source}}
    parsed = DynamoPipeline.model_validate(body(spec), strict=False)
    assert bool(admit(body(spec))) == bool(rules.check(parsed)), source


_WILD = st.fixed_dictionaries(
    {"engine": st.sampled_from(["vllm", "mocker", "python", "echo_core"])},
    optional={
        "role": st.sampled_from(["aggregated", "prefill", "decode"]),
        "name": st.sampled_from(["a", "b", "frontend", "c" * 33]),
        "nodes": st.integers(1, 3),
        "tensorParallelSize": st.integers(1, 4),
        "replicas": st.integers(0, 2),
        "python": st.just({"file": "x"}),
        "engineArgs": st.dictionaries(st.sampled_from(["model", "--block_size", "ok", "model_path"]), st.just("x")),
        "rollout": st.fixed_dictionaries(
            {},
            optional={
                "strategy": st.sampled_from(["Recreate", "Rolling"]),
                "maxSurge": st.sampled_from([0, 1, "0%", "9%"]),
                "maxUnavailable": st.sampled_from([0, 1, "0%", "9%"]),
            },
        ),
        "env": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["A", "B", "DYN_NAMESPACE"])},
                optional={"value": st.just("x"), "valueFrom": st.just({})},
            ),
            max_size=2,
        ),
    },
)


@settings(deadline=None)
@given(
    st.lists(_WILD, min_size=1, max_size=3),
    st.sampled_from([{}, MODEL["model"]]),
    st.sampled_from([1, 2]),
)
def test_mistakes_are_seen_by_both(components: list[Spec], model: Spec, replicas: int) -> None:
    """A pipeline that `dynamo validate` refuses is refused by the API server, and the other way round."""
    manifest = body({"components": components, "model": model, "replicas": replicas})
    parsed = DynamoPipeline.model_validate(manifest, strict=False)
    assert bool(admit(manifest)) == bool(rules.check(parsed)), (admit(manifest), rules.check(parsed))
