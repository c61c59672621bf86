"""Charts and what the operator generates, before kubeconform (with this API server's own schemas) and kube-score."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from e2e.charts.helm import Helm
from e2e.manifests.rating import EXEMPTIONS, Exemption, criticals
from e2e.manifests.rendering import CLUSTER_SETTINGS, PLAIN, pipeline, rendered, templates
from e2e.manifests.schemas import write_schemas
from e2e.manifests.server import Server
from e2e.manifests.test_children import CASES, Spec
from tests.operator.pipelines import UID

from dynamo.operator.codegen.yaml_text import to_yaml
from dynamo.operator.manifests.context import ClusterSettings, Manifest

ROOT = Path(__file__).parents[2]
PLATFORM, PIPELINES = ROOT / "charts/dynamo-platform", ROOT / "charts/dynamo-pipeline"
INSTALLATIONS = {
    **{file.name.split(".")[0]: (PLATFORM, file) for file in (ROOT / "tests/charts/golden").glob("*.values.yaml")},
    **{f"pipelines-{file.stem}": (PIPELINES, file) for file in (PIPELINES / "ci").glob("*.yaml")},
}
CHARTS = (
    Exemption("pod-networkpolicy", ".*-test", "the pod of `helm test` lives for seconds and listens on nothing"),
    Exemption("pod-networkpolicy", ".*-operator", "external.values.yaml turns policies off, to render that as well"),
    Exemption(
        "pod-topology-spread-constraints",
        ".*-operator",
        "everything.values.yaml gives a short constraint of a user's own",
    ),
    Exemption(
        "pod-probes-identical",
        ".*-nats",
        "NATS has one health check; liveness asks it with more patience than readiness",
    ),
)
Check = Callable[[str], tuple[int, str]]


@pytest.fixture(scope="session")
def kubeconform(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Over a text; its exit code, and what it says of each object that is wrong or unknown."""
    location = write_schemas(server, tmp_path_factory.mktemp("schemas"))

    def check(text: str) -> tuple[int, str]:
        command = [
            str(server.binary("kubeconform")),
            "-strict",
            "-summary",
            "-output=json",
            "-schema-location",
            location,
        ]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    return check


@pytest.fixture(scope="session")
def helm(server: Server) -> Helm:
    """The one beside the other binaries."""
    return Helm(str(server.binary("helm")))


def children(spec: Spec, cluster: ClusterSettings = CLUSTER_SETTINGS) -> list[Manifest]:
    """Of a pipeline that a server might have."""
    body = pipeline("serving", spec)
    return rendered({**body, "metadata": {**body["metadata"], "uid": UID, "generation": 1}}, cluster)


def valid(answer: tuple[int, str], number: int) -> None:
    """All of them, and none was left out for want of a schema."""
    code, said = answer
    assert code == 0, said
    assert json.loads(said)["summary"] == {"valid": number, "invalid": 0, "errors": 0, "skipped": 0}


@pytest.mark.parametrize(("name", "spec"), CASES, ids=[name for name, _ in CASES])
def test_children_conform(kubeconform: Check, name: str, spec: Spec) -> None:
    """To the schemas of every kind that is written."""
    found = children(spec)
    valid(kubeconform(to_yaml(found)), len(found))


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_charts_conform(kubeconform: Check, helm: Helm, name: str) -> None:
    """Every way to install them; the pipelines of the second chart to our own schema."""
    chart, values = INSTALLATIONS[name]
    known = [m for m in helm.render(chart, values) if m["apiVersion"] != "monitoring.coreos.com/v1"]
    assert known
    valid(kubeconform(to_yaml(known)), len(known))


def test_examples_conform(kubeconform: Check) -> None:
    """What we show."""
    for file in sorted((ROOT / "examples").glob("**/*.yaml")):
        text = file.read_text("utf-8")
        valid(kubeconform(text), sum(1 for one in yaml.safe_load_all(text) if one))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"replicaz": 2}, "replicaz"),
        ({"replicas": "two"}, "replicas"),
        ({"template": {"spec": {"containers": [{"name": "a", "imagePullpolicy": "Always"}]}}}, "imagePullpolicy"),
    ],
)
def test_mistakes_would_be_seen(kubeconform: Check, change: Spec, said: str) -> None:
    """A field that doesn't exist, and a value of another type."""
    deployment = next(m for m in children({"components": [{"engine": "mocker"}]}) if m["kind"] == "Deployment")
    code, text = kubeconform(to_yaml([{**deployment, "spec": {**deployment["spec"], **change}}]))
    assert code == 1
    assert said in text


@pytest.mark.parametrize(("name", "spec"), CASES, ids=[name for name, _ in CASES])
def test_children_have_no_criticals(server: Server, name: str, spec: Spec) -> None:
    """kube-score finds nothing critical but what is exempted, with a reason."""
    found, _ = criticals(server.binary("kube-score"), to_yaml(children(spec)), EXEMPTIONS)
    assert found == []


@pytest.mark.parametrize("name", [n for n, (chart, _) in INSTALLATIONS.items() if chart == PLATFORM])
def test_the_platform_has_no_criticals(server: Server, helm: Helm, name: str) -> None:
    """The same for what the chart installs."""
    found, _ = criticals(server.binary("kube-score"), helm.text(*INSTALLATIONS[name]), (*EXEMPTIONS, *CHARTS))
    assert found == []


def test_exemptions_are_needed(server: Server, helm: Helm) -> None:
    """One that nothing falls under any more goes."""
    texts = [to_yaml(children(spec)) for _, spec in CASES]
    texts += [helm.text(chart, values) for chart, values in INSTALLATIONS.values() if chart == PLATFORM]
    used = [criticals(server.binary("kube-score"), text, (*EXEMPTIONS, *CHARTS))[1] for text in texts]
    assert set().union(*used) == {*EXEMPTIONS, *CHARTS}


@pytest.mark.parametrize(("name", "spec"), CASES, ids=[name for name, _ in CASES])
def test_every_container_asks_for_something(name: str, spec: Spec) -> None:
    """So that the scheduler counts it, and it isn't the first to be evicted; or its limit says so."""
    for template in templates(children(spec, PLAIN)):
        for container in (*template["spec"].get("initContainers", []), *template["spec"]["containers"]):
            resources = container["resources"]
            for amount in ("cpu", "memory"):
                assert amount in resources.get("requests", {}) or amount in resources.get("limits", {}), container[
                    "name"
                ]
