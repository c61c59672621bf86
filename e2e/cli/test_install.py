"""`dynamo install` and `uninstall` with a real helm and a real API server."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from e2e.apiserver.plane import Plane
from e2e.cli.shell import Shell, install_crd
from e2e.cluster.cluster import program
from e2e.kind.places import REPOSITORY
from release.build import checksums
from release.charts import pack

from dynamo.cli.bundle.archive import SUMS
from dynamo.cli.cluster.platform.values import set_all

PIPELINE = """apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: NAME}
spec:
  components: [{engine: mocker}]
"""
CRD = "crd/dynamopipelines.dynamo.dev"
INSTALLER = """apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NAME}
rules:
  - {apiGroups: [""], resources: [namespaces, secrets, configmaps, services, serviceaccounts], verbs: ["*"]}
  - {apiGroups: [apps, policy, networking.k8s.io, apiextensions.k8s.io], resources: ["*"], verbs: ["*"]}
"""


@pytest.fixture
def fresh(bare: Plane) -> Shell:
    """Nothing of ours was ever there."""
    return Shell.fresh(bare)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """What a user gets: the wheel, unpacked, far from the source tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(tmp_path / "code")], check=True)
    return tmp_path / "code"


@pytest.mark.timeout(400)
def test_an_upgrade_asks_before_it_turns_sign_in_on(fresh: Shell, tmp_path: Path) -> None:
    """From a chart that had it off by default, as ours was; the word that the user gives is kept."""
    before = tmp_path / "before"
    shutil.copytree(REPOSITORY / "charts/dynamo-platform", before)
    values = (before / "values.yaml").read_text()
    on = "only.{}\n    enabled: true"
    for more in (" Needs etcd 3.6.14 or later.", ""):
        assert on.format(more) in values
        values = values.replace(on.format(more), "only.\n    enabled: false")
    (before / "values.yaml").write_text(values)
    first = fresh.run("install", "--no-wait", "--chart", str(before))
    assert first.returncode == 0, first.stderr
    assert "asks for no sign-in" in first.stderr
    refused = fresh.run("install", "--no-wait")
    assert refused.returncode == 1
    assert "Say --set etcd.auth.enabled=true --set nats.auth.enabled=true when that suits you" in refused.stderr
    choice = ("--set", "etcd.auth.enabled=true", "--set", "nats.auth.enabled=false")
    assert fresh.run("install", "--no-wait", *choice).returncode == 0
    assert fresh.run("install", "--no-wait").returncode == 0


@pytest.mark.timeout(400)
def test_the_life_of_an_installation(fresh: Shell) -> None:
    """Installed, upgraded with the values of the last time, uninstalled but for what stays, removed."""
    first = fresh.run("install", "--no-wait", "--set", "operator.logLevel=debug")
    assert first.returncode == 0, first.stderr
    assert "Kubernetes v1." in first.stderr
    assert "+ installs release dynamo in namespace dynamo\n" in first.stdout
    assert "WARNING: " in first.stderr
    assert "dynamo apply --wait - <<'EOF'\napiVersion: dynamo.dev/v1alpha1" in first.stdout

    pasted = first.stdout.split("<<'EOF'\n")[1].removesuffix("EOF\n")
    assert fresh.run("apply", "-", text=pasted).stdout == "dynamopipeline mocker created\n"

    again = fresh.run("install", "--no-wait", "--set", "operator.replicaCount=2")
    assert again.returncode == 0, again.stderr
    assert "keeps the values of revision 1: operator" in again.stderr
    assert "+ upgrades release dynamo in namespace dynamo (revision 1)" in again.stdout
    deployment = json.loads(
        fresh.kubectl("-n", "dynamo", "get", "deployment", "dynamo-dynamo-platform-operator", "-o", "json")
    )
    assert deployment["spec"]["replicas"] == 2
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "DYN_LOG", "value": "debug"} in variables
    assert fresh.run("install", "--no-wait", "--reset-values").returncode == 0

    gone = fresh.run("uninstall")
    assert gone.returncode == 0, gone.stderr
    assert "release dynamo in namespace dynamo is gone" in gone.stdout
    assert f"1 pipeline ({fresh.namespace}/mocker) and their pods" in gone.stdout
    assert "dynamo uninstall --crds removes it" in gone.stdout
    assert fresh.kubectl("get", "dp", "-o", "name") != ""
    assert "its CRD is still there" in fresh.run("uninstall").stderr

    unsure = fresh.run("uninstall", "--crds")
    assert unsure.returncode == 1
    assert "deletes the CRD and 1 pipeline of the cluster of context test: confirm with --yes" in unsure.stderr
    removed = fresh.run("uninstall", "--crds", "--yes")
    assert removed.stdout.startswith("dynamopipelines.dynamo.dev and 1 pipeline are gone\n")
    assert "dynamo install" in fresh.run("status").stderr


@pytest.mark.timeout(400)
def test_what_does_not_start_is_named(fresh: Shell) -> None:
    """There are no nodes here: the wait ends with each part and its count; exit code 1."""
    done = fresh.run("install", "--timeout", "6s")
    assert done.returncode == 1
    assert "Error: the platform doesn't run after 6 s: " in done.stderr
    assert "dynamo-dynamo-platform-operator: 0 of 1 ready" in done.stderr
    assert "dynamo-dynamo-platform-etcd: 0 of 1 ready" in done.stderr


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_crd_of_others_is_taken_over_or_left_alone(fresh: Shell) -> None:
    """One that kubectl applied becomes the release's; one of a living release is refused."""
    fresh.kubectl("apply", "-f", str(REPOSITORY / "crds"))
    done = fresh.run("install", "--no-wait")
    assert done.returncode == 0, done.stderr
    assert "takes over dynamopipelines.dynamo.dev, which another tool left" in done.stderr
    second = fresh.run("install", "--no-wait", "-n", "other")
    assert second.returncode == 1
    assert "already installed as release dynamo in namespace dynamo: upgrade it with" in second.stderr
    fresh.run("uninstall")
    third = fresh.run("install", "--no-wait", "-n", "other")
    assert "which a release that is gone left" in third.stderr
    assert third.returncode == 0, third.stderr
    owner = json.loads(fresh.kubectl("get", CRD, "-o", "json"))["metadata"]["annotations"]
    assert owner["meta.helm.sh/release-namespace"] == "other"


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_helm_that_was_killed_can_be_recovered_from(fresh: Shell) -> None:
    """Its last words are in a Secret."""
    assert fresh.run("install", "--no-wait").returncode == 0
    secret = json.loads(fresh.kubectl("-n", "dynamo", "get", "secret", "sh.helm.release.v1.dynamo.v1", "-o", "json"))
    _mark_pending(fresh, secret)
    stuck = fresh.run("install", "--no-wait")
    assert stuck.returncode == 1
    assert "release dynamo is pending-install: another helm is at work on it, or was killed" in stuck.stderr
    done = fresh.run("install", "--no-wait", "--recover")
    assert done.returncode == 0, done.stderr


def _mark_pending(shell: Shell, secret: dict[str, dict[str, str]]) -> None:
    """A release is JSON, gzipped, in base64, in a Secret's base64."""
    import base64
    import gzip

    release = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(secret["data"]["release"]))))
    release["info"]["status"] = "pending-install"
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode()))).decode()
    patch = {"data": {"release": packed}, "metadata": {"labels": {"status": "pending-install"}}}
    argv = ("patch", "secret", secret["metadata"]["name"], "--patch-file=/dev/stdin")  # longer than an argument may be
    shell.kubectl("-n", "dynamo", *argv, text=json.dumps(patch))


def test_a_dry_run_checks_all_and_changes_nothing(fresh: Shell) -> None:
    """The manifests on standard output, as they would be installed."""
    done = fresh.run("install", "--dry-run")
    assert done.returncode == 0, done.stderr
    kinds = {manifest["kind"] for manifest in yaml.safe_load_all(done.stdout)}
    assert {"Deployment", "StatefulSet", "CustomResourceDefinition", "ClusterRole"} <= kinds
    assert "dry run: nothing was changed" in done.stderr
    namespaces = fresh.kubectl("get", "namespaces", "-o", "name").split()
    assert "namespace/dynamo" not in namespaces


def test_mistakes_are_named_before_anything_is_changed(shell: Shell, tmp_path: Path) -> None:
    """Wrong values, a chart that isn't there, no helm, rights that are missing."""
    place = ("-n", shell.namespace)
    wrong = shell.run("install", *place, "--set", "operator.replicas=2")
    assert "additional properties 'replicas' not allowed" in wrong.stderr
    neither = shell.run("install", *place, "--set", "etcd.enabled=false")
    assert "no etcd: set etcd.enabled=true" in neither.stderr
    assert "there is no chart at" in shell.run("install", *place, "--chart", str(tmp_path)).stderr
    helpless = shell.run("install", *place, environment={"PATH": str(tmp_path)})
    assert "helm isn't on PATH" in helpless.stderr
    absent = shell.run("uninstall", *place)
    assert f"there is no release dynamo in namespace {shell.namespace}" in absent.stderr
    for done in (wrong, neither, helpless, absent):
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
    assert shell.kubectl("get", "deployments,statefulsets", "-o", "name") == ""


def test_missing_rights_are_named(shell: Shell) -> None:
    """First helm's own, then what the chart makes, then what its roles grant."""
    nobody, place = shell.as_nobody(), ("-n", shell.namespace)
    nothing = nobody.run("install", *place)
    assert f"get, list, create, update, delete secrets in namespace {shell.namespace}" in nothing.stderr
    user = f"system:serviceaccount:{shell.namespace}:nobody"
    shell.kubectl("apply", "-f", "-", text=INSTALLER.replace("NAME", shell.namespace))
    shell.kubectl("create", "clusterrolebinding", shell.namespace, f"--clusterrole={shell.namespace}", f"--user={user}")
    some = nobody.run("install", *place)
    assert some.returncode == 1
    assert "get, create, patch clusterroles.rbac.authorization.k8s.io" in some.stderr
    assert "ask an administrator" in some.stderr.lower()
    assert shell.kubectl("get", "deployments", "-o", "name") == ""


@pytest.mark.timeout(400)
def test_a_person_is_asked(fresh: Shell) -> None:
    """On a terminal; `n` removes nothing."""
    install_crd(fresh.plane)
    fresh.kubectl("apply", "-f", "-", text=PIPELINE.replace("NAME", "llama"))
    said, status = _on_a_terminal(fresh, ["uninstall", "--crds"], b"n\n")
    assert status == 1
    assert "This deletes the CRD and 1 pipeline of the cluster of context test:" in said
    assert f"{fresh.namespace}/llama" in said
    assert "not confirmed: nothing was removed" in said
    assert fresh.kubectl("get", "dp", "-o", "name") == "dynamopipeline.dynamo.dev/llama\n"
    said, status = _on_a_terminal(fresh, ["uninstall", "--crds"], b"y\n")
    assert status == 0, said


def _on_a_terminal(shell: Shell, words: list[str], answer: bytes) -> tuple[str, int]:
    """What is shown, and the exit code; the answer is typed when the question is there."""
    here, there = pty.openpty()
    command = [sys.executable, "-m", "dynamo.cli", *words]
    process = subprocess.Popen(
        command, env=shell.environment(), stdin=there, stdout=there, stderr=there, cwd=shell.home
    )
    os.close(there)
    said, answered, end = b"", False, time.monotonic() + 100
    while time.monotonic() < end:
        if select.select([here], [], [], 0.2)[0]:
            try:
                said += os.read(here, 65536)
            except OSError:
                break
        if b"Go on?" in said and not answered:
            os.write(here, answer)
            answered = True
    status = process.wait(30)
    os.close(here)
    return said.decode(), status


def test_the_wheel_brings_the_chart(shell: Shell, code: Path) -> None:
    """Who has no source tree installs the same."""
    from_wheel = replace(shell, code=(code,))
    place = ("-n", shell.namespace, "--dry-run")
    theirs, ours = from_wheel.run("install", *place), shell.run("install", *place)
    assert theirs.returncode == 0, theirs.stderr
    assert yaml.safe_load_all(theirs.stdout)
    assert theirs.stdout == ours.stdout
    nowhere = from_wheel.run("version")
    assert nowhere.returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "a=b", "a.b.c=1", "a=1,b=true,c=false,d=null", "a={x,y}", "a={}", "a={1,true,x}", "a[1].b=c", "a[0][1]=c",
        "a=b=c", "a=", r"a=b\,c", r"a\.b/c=d", "a=007", "a=1.5", "a=-3", "a=0", "a=1e3", "a=True", "a.b=1,a.c={2}",
        "a=12345678901234567890", "a= b", "a=+5", "a=-0", "a=NULL", "a[0]=1,a[2]=3", "a=x{y}",
    ],
)  # fmt: skip
def test_set_means_what_helm_means(text: str, tmp_path: Path) -> None:
    """Every assignment gives the same value as helm's own --set."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: probe\nversion: 0.1.0\n")
    (tmp_path / "templates" / "values.yaml").write_text("found: {{ .Values | toJson | quote }}\n")
    for flag, as_text in (("--set", False), ("--set-string", True)):
        command = [program("helm"), "template", "x", str(tmp_path), flag, text]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        theirs = json.loads(yaml.safe_load(done.stdout)["found"])
        ours = {key: value for key, value in set_all({}, [(text, as_text)]).items() if value is not None}
        theirs = {key: value for key, value in theirs.items() if key != "global" and value is not None}
        assert ours == theirs, flag


@pytest.mark.timeout(400)
def test_a_bundle_brings_the_chart(fresh: Shell, tmp_path: Path) -> None:
    """Damaged, or without a registry, it changes nothing; with one, every image comes from there, and upgrades too."""
    release = tmp_path / "release"
    release.mkdir()
    pack(REPOSITORY / "charts/dynamo-platform", release, 0)
    (release / SUMS).write_text(checksums(release.iterdir()))
    bundle = tmp_path / "b.tar"
    assert fresh.run("bundle", "make", str(bundle), "--release", str(release), "--partial").returncode == 0
    nowhere = fresh.run("install", "--no-wait", "--bundle", str(bundle))
    assert (nowhere.returncode, "--set global.imageRegistry=REGISTRY" in nowhere.stderr) == (1, True), nowhere.stderr
    words = ("install", "--no-wait", "--bundle", str(bundle), "--set", "global.imageRegistry=registry.example.com/a")
    whole = bundle.read_bytes()
    bundle.write_bytes(whole[:600] + bytes([whole[600] ^ 1]) + whole[601:])
    damaged = fresh.run(*words)
    assert (damaged.returncode, "isn't what SHA256SUMS says" in damaged.stderr) == (1, True), damaged.stderr
    assert "dynamo" not in fresh.plane.kubectl("get", "namespaces", "-o", "name")
    bundle.write_bytes(whole)
    done = fresh.run(*words)
    assert done.returncode == 0, done.stderr
    parts = "{.items[*].spec.template.spec.containers[*].image}"
    images = fresh.plane.kubectl("-n", "dynamo", "get", "deploy,sts", "-o", f"jsonpath={parts}").split()
    assert images
    assert all(image.startswith("registry.example.com/a/") for image in images), images
    again = fresh.run("install", "--no-wait", "--bundle", str(bundle))
    assert (again.returncode, "keeps the values of revision 1" in again.stderr) == (0, True), again.stderr
