"""The programs that read our status, and the files that we give them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.apiserver.client import PLAIN
from e2e.kind.binaries import ARGO_CD, GO_ENVIRONMENT, build_kstatus, folder_of
from e2e.kind.places import REPOSITORY, Places
from e2e.manifests.server import Server
from tests.gitops.cases import FOLDER
from tests.gitops.kstatus import compute

from dynamo.operator.api import rules
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.kube.resources import PIPELINES, Resource

GITOPS = REPOSITORY / "gitops"
KEY = "resource.customizations.health.dynamo.dev_DynamoPipeline"
APPLICATIONS = Resource("argoproj.io/v1alpha1", "Application", "applications")
SETS = Resource("argoproj.io/v1alpha1", "ApplicationSet", "applicationsets")
PARENT = """
namespace: argocd
resources: [argocd-cm.yaml]
components: [health]
"""
# As in Argo CD's own install.yaml.
SETTINGS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: argocd-cm}
data: {timeout.reconciliation: 10s}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With pipelines and Argo CD's kinds."""
    found = Server(Places.of(os.environ).bin, tmp_path_factory.mktemp("server"))
    try:
        found.start()
        found.install_ours()
        for resource, file in ((APPLICATIONS, "application-crd.yaml"), (SETS, "applicationset-crd.yaml")):
            definition = yaml.safe_load((folder_of(ARGO_CD) / "manifests/crds" / file).read_text("utf-8"))
            found.install(definition, resource)
        yield found
    finally:
        found.stop()


def test_kstatus_itself_says_what_our_rules_say() -> None:
    """Of every state in the test data."""
    paths = sorted((FOLDER / "testdata").iterdir())
    program = build_kstatus(Places.of(os.environ))
    done = subprocess.run([program, *paths], capture_output=True, text=True, timeout=60, check=True)
    said = dict(line.split() for line in done.stdout.splitlines())
    assert said == {str(path): compute(yaml.safe_load(path.read_text())) for path in paths}


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_argo_cds_own_test_passes(tmp_path: Path) -> None:
    """`TestLuaHealthScript` of its source, with our folder beside its own; built as `fetch_for_tests` has built it."""
    source = tmp_path / "argo-cd"
    shutil.copytree(folder_of(ARGO_CD), source, copy_function=_writable)
    ours = source / "resource_customizations/dynamo.dev/DynamoPipeline"
    shutil.copytree(FOLDER, ours)
    # No vet, which would read all that it is built of.
    command = ["go", "test", "-trimpath", "-vet=off", "-v", "-run", "^TestLuaHealthScript$", "./util/lua"]
    env = {**os.environ, **GO_ENVIRONMENT}
    done = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for path in (FOLDER / "testdata").iterdir():
        assert f"--- PASS: TestLuaHealthScript/testdata/{path.name}" in done.stdout


def _writable(one: str, other: str) -> None:
    """The module cache is read-only."""
    shutil.copyfile(one, other)


def test_the_samples_are_taken(server: Server) -> None:
    """Argo CD's definitions know every field; and the sample's folder is a pipeline that the CRD and the rules take."""
    for resource, name in ((APPLICATIONS, "application.yaml"), (SETS, "applicationset.yaml")):
        sample = yaml.safe_load((GITOPS / "argocd" / name).read_text())
        path = f"{resource.path('default')}?dryRun=All&fieldValidation=Strict"
        server.admin.ask("POST", path, sample | {"metadata": {"name": "sample", "namespace": "default"}}, PLAIN)
    for folder in sorted((GITOPS / "pipelines").iterdir()):
        (found,) = kustomized(server, folder)
        assert rules.check(DynamoPipeline.model_validate(found, strict=False)) == []
        path = f"{PIPELINES.path('default')}?dryRun=All&fieldValidation=Strict"
        made = server.admin.ask("POST", path, found, PLAIN)
        assert [component["name"] for component in made["spec"]["components"]] == [
            component.get("name") for component in found["spec"]["components"]
        ], "a name that the server fills in would differ from git"


def test_the_component_adds_the_health_check(server: Server, tmp_path: Path) -> None:
    """To the ConfigMap of the kustomization that uses it, and nothing else changes there."""
    (tmp_path / "kustomization.yaml").write_text(PARENT)
    (tmp_path / "argocd-cm.yaml").write_text(SETTINGS)
    shutil.copytree(GITOPS / "argocd", tmp_path / "health")
    (found,) = kustomized(server, tmp_path)
    assert found["metadata"] == {"name": "argocd-cm", "namespace": "argocd"}
    assert found["data"] == {"timeout.reconciliation": "10s", KEY: (FOLDER / "health.lua").read_text()}


def test_flux_has_its_two_objects(server: Server) -> None:
    """Their definitions are in no Go module, so only kustomize and the reference are checked."""
    source, folder = sorted(kustomized(server, GITOPS / "flux"), key=lambda one: str(one["kind"]))
    assert folder["spec"]["sourceRef"] == {"kind": source["kind"], "name": source["metadata"]["name"]}
    assert (REPOSITORY / folder["spec"]["path"]).is_dir()
    assert folder["spec"]["wait"] is True


def kustomized(server: Server, folder: Path) -> list[dict[str, Any]]:
    """What `kubectl kustomize` makes of a folder."""
    code, text = server.try_kubectl("kustomize", str(folder))
    assert code == 0, text
    return list(yaml.safe_load_all(text))
