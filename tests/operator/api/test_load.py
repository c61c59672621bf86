"""Pipeline files: what is good loads, what is wrong is named with line, field and remedy, all at once."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.operator.api.load import FileProblem, PipelineFileError, load_pipelines
from dynamo.operator.api.v1alpha1 import DynamoPipeline

HEAD = "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: test}\n"


def problems(text: str) -> list[str]:
    with pytest.raises(PipelineFileError) as caught:
        load_pipelines(text, "f.yaml")
    return [str(p) for p in caught.value.problems]


def spec(body: str) -> str:
    return f"{HEAD}spec:\n{textwrap.indent(textwrap.dedent(body).strip(), '  ')}\n"


def test_the_five_line_pipeline_loads() -> None:
    """An engine is all that must be said."""
    (pipeline,) = load_pipelines(HEAD + "spec: {components: [{engine: mocker}]}")
    component = pipeline.spec.components[0]
    assert (component.name, component.role, component.nodes, component.kv_cache_block_size) == (
        "worker",
        "aggregated",
        1,
        None,
    )
    assert (pipeline.spec.frontend.port, pipeline.spec.frontend.router.mode) == (8000, "round-robin")


def test_every_field_of_the_design_loads() -> None:
    """Nothing of the table is missing from the types."""
    (pipeline,) = load_pipelines(
        spec("""
        namespace: llama-3b
        replicas: 2
        restart: "2026-11-21"
        model:
          source: hf://meta-llama/Llama-3.2-3B-Instruct@main
          name: llama
          tokenSecret: {name: hf-token, key: TOKEN}
          cache: {size: 40Gi, storageClassName: fast, accessMode: ReadWriteMany}
          contextLength: 8192
          chatTemplate: "{{ messages }}"
        frontend:
          replicas: 2
          port: 8080
          workers: 4
          router: {mode: kv, prefillLoadScale: 2, temperature: 0.5, useKvEvents: false, busyThreshold: 0.9}
          migrationLimit: 3
          workerWaitTimeoutSeconds: 1.5
          service: {type: LoadBalancer, annotations: {a: b}}
          resources: {requests: {cpu: 500m}, limits: {memory: 1Gi, cpu: 2}}
          podTemplate: {spec: {nodeSelector: {a: b}}}
        components:
        - {name: prefill, role: prefill, engine: vllm, tensorParallelSize: 2}
        - name: decode
          role: decode
          engine: vllm
          replicas: 4
          tensorParallelSize: 8
          nodes: 2
          rollout: {strategy: Rolling, maxSurge: 25%, maxUnavailable: 0}
          engineArgs: {max-model-len: 8192, nested: {a: [1, 2.5, true]}}
          kvCacheBlockSize: 32
          env: [{name: A, value: b}, {name: C, valueFrom: {secretKeyRef: {name: s, key: k}}}]
          envFrom: [{configMapRef: {name: c}}]
          resources: {limits: {memory: 64Gi}}
          accelerator: {resource: amd.com/gpu, count: 4}
          podTemplate: {metadata: {labels: {a: b}}}
        - {name: code, engine: python, python: {file: /a.py, configMap: code, mode: text}}
        runtime:
          etcd: {endpoints: [http://etcd:2379], secret: etcd-auth}
          nats: {url: nats://nats:4222, secret: nats-auth}
        """)
    )
    assert pipeline.spec.components[1].rollout.max_surge == "25%"
    assert pipeline.spec.restart == "2026-11-21"


def test_every_field_has_a_description() -> None:
    """`kubectl explain` has a sentence for each."""
    schema = DynamoPipeline.model_json_schema()
    for name, definition in {**schema["$defs"], "root": schema}.items():
        for field, facts in definition.get("properties", {}).items():
            same_words = schema["$defs"].get(str(facts.get("$ref")).rpartition("/")[2], {})
            assert facts.get("description") or same_words.get("description"), f"{name}.{field}"


CASES = [
    ("components: [{engine: vlm}]", "components[0].engine: 'vlm' is not one of vllm, sglang", "did you mean vllm?"),
    ("components: [{}]", "spec.components[0].engine: is required", "engine: mocker"),
    ("components: []", "spec.components", "at least 1"),
    ("components:", "spec.components: is required", "list at least one"),
    ("components: [{engine: mocker}]\nreplica: 2", "spec.replica: is not a field here", "did you mean replicas?"),
    ("components: [{engine: mocker, tensor_parallel_size: 2}]", "tensor_parallel_size", "mean tensorParallelSize?"),
    ("components: [{engine: mocker, toolCallParser: hermes}]", "not a field here: it is spec.model", ".toolCallParser"),
    ("components: [{engine: mocker}]\ntensorParallelSize: 2", "it is spec.components[].tensorParallelSize", "spec."),
    ("components: [{engine: mocker, replicas: '2'}]", "[0].replicas: must be a whole number", "remove the quotes"),
    ("components: [{engine: mocker, replicas: -1}]", "components[0].replicas", "must be 0 or more, not -1"),
    ("components: [{engine: mocker}]\nrestart: 2026", "spec.restart: must be a string", "quote it"),
    ("components: [{engine: mocker}]\nfrontend: {port: 70000}", "spec.frontend.port", "65535 or less"),
    ("components: [{engine: mocker}]\nfrontend: {router: {mode: kvv}}", "spec.frontend.router.mode", "mean kv?"),
    ("components: [{engine: mocker}]\nmodel: {cache: {size: big}}", "model.cache.size: 'big'", "like 500m, 4 or 40Gi"),
    ("components: [{engine: mocker}, {engine: mocker}]", "components[1].name: 'worker' is already", "components[0]"),
    ("components: [{engine: llamacpp}]", "spec.model.source: is required by engine llamacpp", "hf://org/repo"),
    ("components: [{engine: vllm, role: prefill}]\nmodel: {source: x}", "spec.components[0].role", "role decode"),
    ("components: [{engine: vllm, role: decode}]\nmodel: {source: x}", "spec.components[0].role", "role prefill"),
    ("components: [{engine: vllm, tensorParallelSize: 3, nodes: 2}]\nmodel: {source: x}", "[0].nodes", "divisible"),
    ("components: [{engine: echo_core, nodes: 2, tensorParallelSize: 2}]", "[0].nodes", "use vllm, sglang, trtllm"),
    ("components: [{engine: python}]", "components[0].python: is required", "python.file"),
    ("components: [{engine: mocker, python: {file: a.py}}]", "components[0].python: is for engine python", "remove it"),
    ("components: [{engine: mocker, engineArgs: {--model: x}}]", "engineArgs.--model", "use spec.model.source"),
    ("components: [{engine: mocker, env: [{name: A}, {name: A}]}]", "[0].env[1].name: A is set twice", "remove"),
    ("components: [{engine: mocker, env: [{name: NATS_SERVER, value: x}]}]", "env[0].name", "spec.runtime.nats.url"),
    ("components: [{engine: mocker, name: frontend}]", "components[0].name: 'frontend' is taken", "choose another"),
    ("components: [{engine: mocker, name: Foo_1}]", "components[0].name: 'Foo_1' must be lower-case", "digits and '-'"),
    (f"components: [{{engine: mocker, name: {'a' * 35}}}]", "components[0].name", "39 characters together, 38 at most"),
    ("components: [{engine: mocker, replicas: 2}]\nreplicas: 3", "spec.replicas: has no effect", "remove components[]"),
    ("components: [{engine: mocker, rollout: {maxSurge: 0, maxUnavailable: 0%}}]", "rollout: maxSurge", "raise one"),
    ("components: [{engine: mocker}]\nmodel: {source: s3://a/b}", "spec.model.source: s3:// is unknown", "use hf://"),
    ("components: [{engine: mocker}]\nmodel: {source: hf://llama}", "model.source: hf:// needs", "hf://org/repo@rev"),
    ("components: [{engine: mocker}]\nmodel: {source: pvc://claim}", "model.source: pvc:// needs", "pvc://models/"),
    ("components: [{engine: mocker}]\ncomponents: [{engine: mocker}]", "spec.components: is given twice", "remove one"),
    ("components: [{engine: echo_core, role: prefill}, {name: d, engine: vllm, role: decode}]\nmodel: {source: x}",
     "components[0].role: engine echo_core can't split", "use aggregated"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "where", "remedy"), CASES)
def test_each_mistake_names_its_field_and_a_remedy(body: str, where: str, remedy: str) -> None:
    """One line per mistake: file, line, path, what is wrong, what to do."""
    found = problems(spec(body))
    assert len(found) == 1, found
    assert where in found[0]
    assert remedy in found[0]


def test_all_problems_come_at_once_with_their_lines() -> None:
    """Nobody fixes a file one error at a time."""
    found = problems(spec("replica: 1\nfrontend:\n  port: 0\ncomponents:\n  - engine: vlm\n  - role: x"))
    assert [line.split(": ")[0] for line in found] == ["f.yaml:5", "f.yaml:7", "f.yaml:9", "f.yaml:10", "f.yaml:10"]


def test_two_documents_with_one_name() -> None:
    """The second is named, and where the first stands."""
    one = spec("components: [{engine: mocker}]")
    assert problems(f"{one}---\n{one}") == [
        "f.yaml:9: metadata.name: 'test' is already the name of the pipeline at line 3: rename one"
    ]


def test_other_kubernetes_objects_are_passed_over() -> None:
    """A Secret beside its pipeline is no mistake; a pipeline with a slip in its kind is."""
    one = spec("components: [{engine: mocker}]")
    assert len(load_pipelines(f"apiVersion: v1\nkind: Secret\n---\n{one}")) == 1
    assert "kind: must be DynamoPipeline" in problems(one.replace("DynamoPipeline", "DynamoPipelin"))[0]
    assert "contains Secret, not DynamoPipeline: start with" in problems("apiVersion: v1\nkind: Secret\n")[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "contains no DynamoPipeline"),
        ("just a text", "start with `apiVersion"),
        ("- 1\n- 2", "is not a DynamoPipeline but a list"),
        ("a: [b\nc: d", "f.yaml:2: is not valid YAML"),
        ("a:\n\tb: c", "indent with spaces, not tabs"),
        ("a: \x01", "character U+0001"),
        ("a: !!python/object:os.system {}", "only plain values"),
        ("a: !!binary aGk=", "only plain values"),
        ("1: 2", "quote it"),
        ('a: "\\0"', "has a NUL"),
        ('a: {b: ["\\ud800"]}', "an unpaired surrogate"),
        ("a: &x [*x]", "nested too deeply"),
        ("a: " + "[" * 200, "is not valid YAML"),
        ("a: " + "9" * 5000, "is not valid YAML"),
        ("x: 1\n" * 300_000, "larger than 1 MB"),
        ("---\nx: 1\n" * 2001, "more than 2000 documents"),
    ],
)
def test_what_is_no_pipeline_file_is_said_so(text: str, said: str) -> None:
    """One sentence for every kind of rubbish."""
    assert said in problems(text)[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 20_000, "is nested too deeply"),
        ("{a: " * 20_000, "is nested too deeply"),
        ("".join(f"{' ' * n}a:\n" for n in range(900)), "is nested too deeply"),
        ("a: !!bool z\n", "is not valid YAML: 'z'"),
    ],
    ids=["lists", "mappings", "indents", "a word that is no boolean"],
)
def test_what_yaml_itself_stumbles_over_is_one_sentence(text: str, said: str) -> None:
    """Depth that its parser can't follow, and words of a type that they don't have."""
    (problem,) = problems(text)
    assert said in problem


def test_very_many_problems_are_counted() -> None:
    """The text of the error has the first hundred."""
    with pytest.raises(PipelineFileError) as caught:
        load_pipelines("---\na: 1\n" * 150)
    assert len(caught.value.problems) > 150
    assert str(caught.value).splitlines()[-1] == f"... and {len(caught.value.problems) - 100} more problems"


def test_aliases_cannot_explode() -> None:
    """Ten levels of ten aliases are refused, not expanded."""
    levels = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    levels += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "too many values" in problems("\n".join(levels))[0]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 9)
    | st.text(max_size=8)
    | st.sampled_from(["vllm", "mocker", "decode"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["engine", "name", "role", "replicas", "env", "model", "source", "port", "router", "mode", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["components", "model", "frontend", "runtime", "replicas", "y"]), JSON, max_size=5)
)
def test_no_spec_gives_anything_but_pipelines_or_problems(body: dict[str, object]) -> None:
    """Whatever a file holds, a reader gets pipelines or sentences that name fields, never a traceback."""
    text = HEAD + yaml.safe_dump({"spec": body}, allow_unicode=True)
    found: Sequence[FileProblem] = ()
    try:
        load_pipelines(text, "f.yaml")
    except PipelineFileError as error:
        found = error.problems
    assert all(p.path and p.message for p in found if "YAML" not in p.message), found
