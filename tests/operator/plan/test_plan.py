"""The plan: what runs, under which names, and what makes a new revision."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.frontend.settings import FrontendSettings
from dynamo.operator.api.frontend import RouterSpec
from dynamo.operator.api.load import load_pipelines
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.plan.plan import GRACE_SECONDS, Environment, model_name, plan
from dynamo.operator.plan.workload import Placement, Plan, Rollout, SecretRef, Workload, resolve
from dynamo.runtime.process.settings import parse

LOCAL = Environment(("http://127.0.0.1:1",), "nats://127.0.0.1:2", local=True, http_host="127.0.0.1")
CLUSTER = Environment(("http://etcd:2379",), "nats://nats:4222", kubernetes_namespace="serving")
FULL = """
  namespace: shared
  model: {source: hf://org/repo@v1, contextLength: 4096, chatTemplate: "{{ x }}", tokenSecret: {name: hf, key: TOKEN},
          toolCallParser: hermes, reasoningParser: qwen3}
  frontend:
    workers: 2
    migrationLimit: 3
    workerWaitTimeoutSeconds: 1.5
    console: false
    router: {mode: kv, prefillLoadScale: 0.5, temperature: 0.1, useKvEvents: false, busyThreshold: 0.8}
  components:
  - name: big
    engine: vllm
    role: decode
    tensorParallelSize: 8
    nodes: 2
    kvCacheBlockSize: 32
    engineArgs: {max-model-len: 8192, text: "it's \\"quoted\\""}
    env: [{name: A, value: b}, {name: S, valueFrom: {secretKeyRef: {name: s, key: k}}}]
  - {name: small, engine: mocker, role: prefill, replicas: 3}
  - {name: code, engine: python, python: {file: code.py, mode: text}}
"""


def pipeline(body: str = "  components: [{engine: mocker}]") -> DynamoPipeline:
    head = "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: llama}\nspec:\n"
    return load_pipelines(head + body)[0]


def argv_of(workload: Workload) -> list[str]:
    ports = {port.name: port.preferred for port in workload.ports}
    paths = {file.name: f"/files/{file.name}" for file in workload.files}
    return resolve(workload.argv, Placement(ports, paths, "1", "leader:29500"))


def settings_of(workload: Workload) -> Any:
    """What the real parser of the planned process makes of its argv."""
    kind = "frontend" if workload.is_frontend else "worker"
    module = importlib.import_module(f"dynamo.{kind}.settings")
    settings = getattr(module, f"{kind.title()}Settings")
    argv: Sequence[str] = argv_of(workload)
    assert argv[:3] == ["python", "-m", f"dynamo.{kind}"]
    return parse(settings, argv[3:])


@pytest.mark.parametrize("environment", [LOCAL, CLUSTER])
@pytest.mark.parametrize("body", [FULL, "  components: [{engine: echo_core}]"])
def test_the_real_parsers_take_every_argv(environment: Environment, body: str) -> None:
    """No flag that frontend or worker doesn't know, no value that they refuse."""
    for workload in plan(pipeline(body), environment).workloads:
        settings_of(workload)


def test_what_loads_the_model_takes_its_argv_too() -> None:
    """Only for a model of the hub; the rest is in the image or on a claim."""
    fetch = importlib.import_module("dynamo.worker.fetch")
    planned = plan(pipeline(FULL), CLUSTER)
    for workload in planned.workers:
        assert workload.fetch[:3] == ("python", "-m", "dynamo.worker.fetch")
        found = parse(fetch.FetchSettings, workload.fetch[3:])
        assert (found.model_path, found.engine) == ("hf://org/repo@v1", settings_of(workload).engine)
    assert planned.frontend.fetch == ()
    assert plan(pipeline(), CLUSTER).workers[0].fetch == ()


def test_every_field_reaches_its_process() -> None:
    """What the file says is what the settings objects say."""
    planned = plan(pipeline(FULL), CLUSTER)
    frontend = settings_of(planned.frontend)
    assert (frontend.http_host, frontend.http_port, frontend.namespace, frontend.workers) == (
        "0.0.0.0",
        8000,
        "shared",
        2,
    )
    assert (frontend.router_mode, frontend.migration.limit, frontend.worker_wait_timeout_secs) == ("kv", 3, 1.5)
    assert (frontend.access.console, FrontendSettings().access.console) == (False, True)
    assert (frontend.kv.overlap_score_weight, frontend.kv.temperature) == (0.5, 0.1)
    assert RouterSpec().prefill_load_scale == FrontendSettings().kv.overlap_score_weight  # what isn't passed on
    assert (frontend.kv.follow_events, frontend.thresholds.active_decode_blocks_threshold) == (False, 0.8)
    big, small, code = map(settings_of, planned.workers)
    assert (big.engine, big.model_path, big.model_name) == ("vllm", "hf://org/repo@v1", "org/repo")
    assert (big.endpoint, big.role) == ("dyn://shared.big.generate", "decode")
    assert (big.context_length, big.kv_cache_block_size, big.chat_template) == (4096, 32, "/files/chat-template")
    assert (big.dyn_tool_call_parser, big.dyn_reasoning_parser) == ("hermes", "qwen3")
    assert (big.tensor_parallel_size, big.num_nodes, big.node_rank, big.leader_addr) == (8, 2, 1, "leader:29500")
    assert json.loads(big.engine_args) == {"max-model-len": 8192, "text": 'it\'s "quoted"'}
    assert (small.role, small.num_nodes, small.system_port, small.system_host) == ("prefill", 1, 9090, "0.0.0.0")
    assert (code.python_file, code.python_mode) == ("code.py", "text")


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
ANY_JSON = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ANY_COMPONENT = st.fixed_dictionaries(
    {"engine": st.sampled_from(["mocker", "echo_core", "llamacpp", "vllm"])},
    optional={
        "replicas": st.integers(0, 5),
        "tensorParallelSize": st.integers(1, 64),
        "kvCacheBlockSize": st.integers(1, 4096),
        "engineArgs": st.dictionaries(st.text(alphabet="abc-_@'\" ", min_size=1, max_size=9), ANY_JSON, max_size=4),
        "env": st.lists(st.fixed_dictionaries({"name": st.just("A"), "value": TEXT}), max_size=1),
    },
)
ANY_SPEC = st.fixed_dictionaries(
    {
        "components": st.lists(ANY_COMPONENT, min_size=1, max_size=1),
        "model": st.fixed_dictionaries(
            {"source": st.sampled_from(["hf://a/b", "./x.gguf", "--help", "a b", "-"])},
            optional={"name": TEXT.filter(bool), "contextLength": st.integers(1, 99)},
        ),
    },
    optional={
        "frontend": st.fixed_dictionaries(
            {},
            optional={
                "workers": st.integers(1, 9),
                "workerWaitTimeoutSeconds": st.floats(0, 99),
                "router": st.fixed_dictionaries(
                    {}, optional={"temperature": st.floats(0, 9), "busyThreshold": st.floats(0, 1)}
                ),
            },
        )
    },
)


@settings(max_examples=60, deadline=None)
@given(ANY_SPEC)
def test_any_value_reaches_the_parsers_as_it_is(spec: dict[str, Any]) -> None:
    """Whatever the file says, also what looks like a flag, comes out of the real parser again."""
    head = "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: llama}\n"
    (loaded,) = load_pipelines(head + yaml.safe_dump({"spec": spec}, allow_unicode=True))
    planned = plan(loaded, CLUSTER)
    worker, frontend = settings_of(planned.workers[0]), settings_of(planned.frontend)
    assert worker.model_path == spec["model"]["source"]
    assert worker.model_name == model_name(loaded)
    assert json.loads(worker.engine_args or "{}") == loaded.spec.components[0].engine_args
    assert frontend.worker_wait_timeout_secs == pytest.approx(loaded.spec.frontend.worker_wait_timeout_seconds)


@pytest.mark.parametrize(("environment", "seconds"), [(CLUSTER, GRACE_SECONDS), (replace(LOCAL, grace_seconds=7), 7)])
def test_every_process_knows_how_long_streams_may_go_on(environment: Environment, seconds: int) -> None:
    """In its argv, and the executor that would end it knows it too."""
    for workload in plan(pipeline(), environment).workloads:
        assert settings_of(workload).graceful_shutdown_timeout_secs == workload.grace_seconds == seconds
    for workload in plan(
        pipeline("  gracefulShutdownTimeoutSeconds: 3600\n  components: [{engine: mocker}]"), environment
    ).workloads:
        assert settings_of(workload).graceful_shutdown_timeout_secs == workload.grace_seconds == 3600


def test_environment_and_secrets() -> None:
    """Connections and the user's variables are plain, secrets are references."""
    planned = plan(pipeline(FULL), CLUSTER)
    big = planned.workers[0]
    assert dict(big.environment) == {
        "DYN_NAMESPACE": "shared", "ETCD_ENDPOINTS": "http://etcd:2379", "NATS_SERVER": "nats://nats:4222", "A": "b",
    }  # fmt: skip
    assert SecretRef("HF_TOKEN", "hf", "TOKEN", "spec.model.tokenSecret") in big.secrets
    assert [(s.variable, s.secret, s.key) for s in big.secrets][1:] == [("S", "s", "k")]


@pytest.mark.parametrize(("environment", "expected"), [(LOCAL, "llama"), (CLUSTER, "serving_llama")])
def test_the_default_namespace(environment: Environment, expected: str) -> None:
    """On a laptop the pipeline's name, in a cluster the Kubernetes namespace with it."""
    assert plan(pipeline(), environment).namespace == expected


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("hf://org/repo@rev", "org/repo"),
        ("hf://org/repo:Q4_K_M", "org/repo"),
        ("hf://org/repo/Q8/x.gguf@rev", "org/repo"),
        ("file:///models/a.gguf", "a"),
        ("models/llama/", "llama"),
        ("pvc://claim/x/y", "y"),
        ("package://gemma", "gemma"),
    ],
)
def test_the_model_is_named_after_its_source(source: str, name: str) -> None:
    """The repository or the file; `model.name` wins."""
    body = f"  model: {{source: {source}}}\n  components: [{{engine: mocker}}]"
    assert model_name(pipeline(body)) == name
    assert model_name(pipeline(body.replace("{source", "{name: mine, source"))) == "mine"


def test_without_a_source_the_model_is_named_after_the_pipeline() -> None:
    """So that two echo pipelines on one etcd serve two models."""
    assert model_name(pipeline()) == "llama"


def component(planned: Plan, name: str = "worker") -> Workload:
    return next(w for w in planned.workloads if w.component == name)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("{engine: mocker, replicas: 5}", True),
        ("{engine: mocker, rollout: {maxSurge: 2}}", True),
        ("{engine: mocker, name: worker, role: aggregated}", True),
        ("{engine: echo_core}", False),
        ("{engine: mocker, engineArgs: {a: 1}}", False),
        ("{engine: mocker, env: [{name: A, value: b}]}", False),
        ("{engine: mocker, resources: {limits: {cpu: 1}}}", False),
        ("{engine: mocker, podTemplate: {spec: {}}}", False),
        ("{engine: mocker, envFrom: [{secretRef: {name: a}}]}", False),
        ("{engine: mocker, accelerator: {count: 1}}", False),
    ],
)
def test_what_makes_a_new_revision(change: str, same: bool) -> None:
    """What needs new processes does, how many there are and how they roll doesn't."""
    before = component(plan(pipeline(), CLUSTER)).revision
    after = component(plan(pipeline(f"  components: [{change}]"), CLUSTER)).revision
    assert (before == after) is same


def test_restart_rolls_everything_and_a_component_only_itself() -> None:
    """`restart` is in every hash; one component's change isn't in the other's."""
    plain = plan(pipeline(), CLUSTER)
    restarted = plan(pipeline("  restart: again\n  components: [{engine: mocker}]"), CLUSTER)
    assert all(a.revision != b.revision for a, b in zip(plain.workloads, restarted.workloads, strict=True))
    two = plan(pipeline("  components: [{engine: mocker}, {name: b, engine: echo_core}]"), CLUSTER)
    assert component(two).revision == component(plain).revision


def test_a_revision_survives_the_api_server() -> None:
    """Numbers come back as 1 for 1.0 and maps in another order: the same revision."""
    first = plan(pipeline("  components: [{engine: mocker, engineArgs: {a: 1.0, b: {c: 1, d: 2}}}]"), CLUSTER)
    second = plan(pipeline("  components: [{engine: mocker, engineArgs: {b: {d: 2, c: 1}, a: 1}}]"), CLUSTER)
    assert component(first).revision == component(second).revision


def test_names_of_revisions_fit_into_kubernetes() -> None:
    """`<pipeline>-<component>-<revision>-<group>` stays under 53 characters."""
    revision = component(plan(pipeline(), CLUSTER)).revision
    assert len("-".join(["x" * 38, revision, "999"])) + 1 < 53


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ("engine: mocker", None),
        ("engine: vllm", ("nvidia.com/gpu", 1)),
        ("engine: vllm, tensorParallelSize: 8, nodes: 2", ("nvidia.com/gpu", 4)),
        ("engine: vllm, accelerator: {count: 0}", None),
        ("engine: llamacpp, accelerator: {resource: amd.com/gpu}", ("amd.com/gpu", 1)),
        ("engine: python, python: {file: x}", ("nvidia.com/gpu", 1)),
        ("engine: vllm, accelerator: {resource: amd.com/gpu, count: 2}", ("amd.com/gpu", 2)),
    ],
)
def test_accelerators_per_pod(facts: str, expected: tuple[str, int] | None) -> None:
    """tensorParallelSize / nodes, none with a CPU engine, unless `accelerator` says otherwise."""
    planned = plan(pipeline(f"  model: {{source: x}}\n  components: [{{{facts}}}]"), CLUSTER)
    assert component(planned).accelerators == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ("replicas: 1", Rollout(1, 0)),
        ("replicas: 4", Rollout(0, 1)),
        ("replicas: 10, rollout: {maxSurge: 25%}", Rollout(3, 0)),
        ("replicas: 10, rollout: {maxUnavailable: 25%}", Rollout(0, 2)),
        ("replicas: 1, rollout: {maxUnavailable: 25%}", Rollout(0, 1)),
        ("replicas: 3, rollout: {strategy: Recreate}", Rollout(0, 3, recreate=True)),
    ],
)
def test_rollouts_are_rounded_so_that_they_can_move(facts: str, expected: Rollout) -> None:
    """A surge rounds up, a gap down, never both to 0."""
    planned = plan(pipeline(f"  components: [{{engine: mocker, {facts}}}]"), CLUSTER)
    assert component(planned).rollout == expected
