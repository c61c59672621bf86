"""A model of the (stand-in) hub: one download into the claim for all workers, with the token out of a Secret."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import home, operator_selector
from e2e.kind.places import REPOSITORY
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, asking, pipeline, say, workers
from tokenizers import Tokenizer, models, pre_tokenizers

NAME, REPO, TOKEN = "hubbed", "org/tiny", "a-token-of-a-test"
STAND_IN = REPOSITORY / "tests/llm/stand_in_hub.py"
PORT = 8080
START_SECONDS = 240
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def test_hub(namespace: Namespace, platform: Platform) -> None:
    """Without the Secret it says so; with it two workers serve after one download, and a new pod needs none."""
    _start_hub(namespace, platform)
    namespace.apply(_pipeline())
    condition = wait_for("it says what is missing", lambda: _waits_for_secret(namespace), START_SECONDS)
    assert "hf" in condition["message"]
    namespace.kubectl("create", "secret", "generic", "hf", f"--from-literal=HF_TOKEN={TOKEN}")
    namespace.wait_ready(NAME, START_SECONDS)
    with asking(namespace, NAME) as client:
        assert say(client, REPO, "hello world")
    assert _downloads(namespace) == {"config.json": 1, "tokenizer.json": 1, "tokenizer_config.json": 1}
    namespace.kubectl("delete", "pod", workers(namespace, NAME)[0]["metadata"]["name"])
    namespace.wait_ready(NAME, START_SECONDS)
    assert _downloads(namespace)["tokenizer.json"] == 1
    ours = namespace.kubectl("get", "pod,sts,deploy,cm", "-l", f"dynamo.dev/pipeline={NAME}", "-o", "yaml")
    assert TOKEN not in ours + namespace.kubectl("get", "dp,events", "-o", "yaml")


def test_a_gated_model_without_a_token(namespace: Namespace, platform: Platform) -> None:
    """The condition has the sentence: which model, and which field to set."""
    _start_hub(namespace, platform)
    manifest = _pipeline()
    del manifest["spec"]["model"]["tokenSecret"]
    namespace.apply(manifest)
    message = wait_for("it says why", lambda: _said(namespace, "is gated"), START_SECONDS)
    assert f"hf://{REPO}" in message
    assert "spec.model.tokenSecret" in message


def _pipeline() -> Object:
    worker = {"engine": "mocker", "replicas": 2, "env": [{"name": "HF_ENDPOINT", "value": f"http://hub:{PORT}"}]}
    model = {"source": f"hf://{REPO}", "tokenSecret": {"name": "hf"}, "cache": {"size": "1Gi"}}
    return pipeline(NAME, worker, model=model)


def _waits_for_secret(namespace: Namespace) -> dict[str, str] | None:
    condition = namespace.condition(NAME)
    return condition if condition.get("reason") == "CreateContainerConfigError" else None


def _said(namespace: Namespace, words: str) -> str | None:
    message: str = namespace.condition(NAME).get("message", "")
    return message if words in message else None


def _downloads(namespace: Namespace) -> dict[str, int]:
    with namespace.reach("hub", PORT) as url:
        asked = httpx.get(f"{url}/requests", timeout=20).json()
    files = [path.rpartition("/")[2] for method, path, _ in asked if method == "GET" and "/resolve/" in path]
    return {name: files.count(name) for name in set(files)}


def _start_hub(namespace: Namespace, platform: Platform) -> None:
    """A pod that serves the model's files; its image is the operator's, which has Python."""
    here, selector = home(platform), operator_selector(platform)
    image = here.list("apps/v1/Deployment", selector)[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    files = {name.replace("/", "."): text for name, text in _model().items()}
    config: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hub"}}
    namespace.apply({**config, "data": {"hub.py": STAND_IN.read_text(), **files}}, _hub_pod(image), _service())
    namespace.kubectl("wait", "pod/hub", "--for=condition=Ready", f"--timeout={START_SECONDS}s")


def _model() -> dict[str, str]:
    """Enough of a repository for an engine that makes up its answers: how text becomes tokens."""
    words = ["<unk>", "hello", "world", *(f"w{n}" for n in range(200))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    about = {"model_type": "llama", "vocab_size": len(words), "max_position_embeddings": 2048}
    talk = {"chat_template": TEMPLATE, "unk_token": "<unk>"}
    texts = {"config.json": json.dumps(about), "tokenizer.json": tokenizer.to_str()}
    return {**texts, "tokenizer_config.json": json.dumps(talk)}


def _hub_pod(image: str) -> Object:
    items = [{"key": name, "path": str(Path(REPO) / name)} for name in _model()]
    volumes = [{"name": "hub", "configMap": {"name": "hub", "items": [{"key": "hub.py", "path": "hub.py"}, *items]}}]
    container = {
        "name": "hub",
        "image": image,
        "command": ["python", "/hub/hub.py", "/hub", str(PORT), TOKEN],
        "volumeMounts": [{"name": "hub", "mountPath": "/hub"}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "volumes": volumes, "securityContext": security}
    metadata = {"name": "hub", "labels": {"app": "hub"}}
    grace = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, **grace}}


def _service() -> Object:
    spec = {"selector": {"app": "hub"}, "ports": [{"port": PORT}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hub"}, "spec": spec}
