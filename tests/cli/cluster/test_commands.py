"""The commands without a cluster: help, usage, files, and what is imported when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dynamo.cli.cluster.errors import ClusterError
from dynamo.cli.cluster.pipelines.apply import outcome
from dynamo.cli.cluster.pipelines.documents import manifests, placed
from dynamo.cli.commands.cluster_options import seconds_of
from dynamo.cli.main import dynamo
from dynamo.operator.api.load import PipelineFileError

EXAMPLES = Path(__file__).parents[3] / "examples"
COMMANDS = ("install", "uninstall", "apply", "status", "get-url", "delete")
PIPELINE = """apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: mocker}
spec: {components: [{engine: mocker}]}
"""
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\n"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds the cluster of whoever runs it."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_exit_codes(command: str) -> None:
    """Each command explains itself."""
    done = CliRunner().invoke(dynamo, [command, "--help"])
    assert done.exit_code == 0
    assert "Examples:" in done.output
    assert "Exit codes: 0" in done.output
    assert "--kubeconfig" in done.output


@pytest.mark.parametrize("words", [["--help"], *([command, "--help"] for command in COMMANDS), ["ps", "--help"]])
def test_help_costs_no_import_of_the_clients(words: list[str]) -> None:
    """They take half a second."""
    code = (
        "import sys; from dynamo.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('kubernetes', 'pyhelm3', 'urllib3') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [["status"], ["get-url", "x"], ["delete", "x"], ["install"], ["uninstall"]])
def test_without_a_kubeconfig_there_is_one_sentence(words: list[str]) -> None:
    """No traceback; it says where one was looked for."""
    done = CliRunner().invoke(dynamo, words)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: there is no kubeconfig (")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "x", "-A"], "say which with -n"),
        (["get-url", "x", "--port", "1"], "--port goes with --port-forward"),
        (["get-url", "x", "--in-cluster", "--port-forward"], "either"),
        (["delete"], "say NAMES, or -f FILE"),
        (["apply", "x", "--timeout", "soon"], "write 90s, 10m or 1h"),
        (["logs", "-n", "serving"], "say which pipeline"),
        (["logs", "-n", "20"], "say which pipeline"),
    ],
)
def test_usage(words: list[str], said: str) -> None:
    """Exit code 2."""
    done = CliRunner().invoke(dynamo, words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_bad_file_is_refused_before_anybody_is_asked() -> None:
    """There is no cluster here, and nobody missed it."""
    done = CliRunner().invoke(dynamo, ["apply", "-"], input=PIPELINE.replace("mocker}]", "mokcer}]"))
    assert done.exit_code == 1
    assert "<stdin>:4: spec.components[0].engine: 'mokcer'" in done.stderr
    assert "<stdin> has 1 problem: nothing was applied" in done.stderr


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_sent_as_they_are_written(example: Path) -> None:
    """No default is added: fields that the file doesn't name aren't ours."""
    import yaml

    text = example.read_text()
    assert manifests(text, "x") == [document for document in yaml.safe_load_all(text) if document]


def test_several_documents_and_lists() -> None:
    """In the order of the file."""
    items = '- {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}'
    text = f"{SECRET}---\n{PIPELINE}---\napiVersion: v1\nkind: List\nitems:\n{items}\n"
    assert [m["kind"] for m in manifests(text, "x")] == ["Secret", "DynamoPipeline", "ConfigMap"]
    with pytest.raises(PipelineFileError, match=r"metadata\.name"):
        manifests(f"{PIPELINE}---\napiVersion: v1\nkind: Secret\n", "x")


def test_namespaces() -> None:
    """The file's, else the flag's, else the context's; two that differ are a mistake."""
    documents = manifests(f"{PIPELINE}---\n{SECRET.replace('token', 't, namespace: own')}", "x")
    assert [(n.name, n.namespace, n.is_pipeline) for n in placed(documents, None, "ctx")] == [
        ("mocker", "ctx", True), ("t", "own", False),
    ]  # fmt: skip
    assert placed(documents, "own", "ctx")[0].namespace == "own"
    with pytest.raises(ClusterError, match="has namespace own in the file, but you said -n other"):
        placed(documents, "other", "ctx")


def test_outcomes_are_kubectl_s_words() -> None:
    """By the version that the server keeps."""
    live = {"metadata": {"resourceVersion": "1"}}
    assert outcome(None, live) == "created"
    assert outcome(live, live) == "unchanged"
    assert outcome(live, {"metadata": {"resourceVersion": "2"}}) == "configured"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("45", 45.0),
        ("1.5m", 90.0),
        ("m", None),
        ("", None),
        ("1x", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    """As kubectl and helm take them."""
    assert seconds_of(text) == seconds
