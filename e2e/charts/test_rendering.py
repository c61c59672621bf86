"""What helm makes of the charts."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.charts.helm import Helm, Manifest, RefusedError, containers, of_kind, pods
from tests.charts.documents import CHARTS, PIPELINE, PLATFORM, ROOT, golden
from tests.operator import kubernetes_schemas

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.codegen.crd import crd
from dynamo.operator.credentials.nats_keys import SERVER_CONF
from dynamo.operator.credentials.nats_trust import trust_of
from dynamo.operator.credentials.platform import new_nats_keys
from dynamo.operator.manifests import nats
from dynamo.operator.settings import Settings, SignIn

GOLDEN = ROOT / "tests/charts/golden"
CASES = ["default", "everything", "external", "per-namespace", "ha"]
STANDARD = {f"app.kubernetes.io/{n}" for n in ("name", "instance", "component", "part-of", "managed-by", "version")}
CRD = "CustomResourceDefinition"


@pytest.fixture(params=CASES)
def rendered(request: pytest.FixtureRequest, helm: Helm) -> list[Manifest]:
    """The platform with each set of values."""
    return helm.render(PLATFORM, GOLDEN / f"{request.param}.values.yaml")


@pytest.mark.parametrize("path", CHARTS, ids=lambda p: str(p.name))
def test_lint(path: Path, helm: Helm) -> None:
    """Helm finds nothing to say."""
    values = [f"--values={file}" for file in sorted((path / "ci").glob("*.yaml"))]
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(path), *values)


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, helm: Helm) -> None:
    """What is installed changes only where somebody looks; GOLDEN=write writes it anew."""
    manifests = [m for m in helm.render(PLATFORM, GOLDEN / f"{case}.values.yaml") if m["kind"] != CRD]
    assert golden(case).holds(yaml.safe_dump_all(manifests, width=110))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"etcd__enabled": "false"}, "no etcd: set etcd.enabled=true"),
        ({"nats__enabled": "false"}, "no NATS: set nats.enabled=true"),
        ({"etcd__external__endpoints": "{http://e:2379}"}, "exclude each other: set etcd.enabled=false"),
        ({"nats__external__url": "nats://n:4222"}, "exclude each other: set nats.enabled=false"),
        ({"operator__replicaCount": "2", "operator__leaderElection__enabled": "false"}, "leaderElection.enabled=true"),
        ({"pipelines__images__workers__default": "null"}, "pipelines.images.workers.default is missing"),
        (
            {"nats__auth__existingSecret": "a", "nats__auth__enabled": "false"},
            "nats.auth.enabled is not: set it to true",
        ),
        (
            {"etcd__auth__existingSecret": "a", "etcd__auth__enabled": "false"},
            "etcd.auth.enabled is not: set it to true",
        ),
        (
            {"nats__enabled": "false", "nats__external__url": "nats://n:4222"},
            "in nats.auth.existingSecret, or set nats.auth.enabled=false",
        ),
        (
            {"etcd__enabled": "false", "etcd__external__endpoints": "{http://e:2379}"},
            "in etcd.auth.existingSecret, or set etcd.auth.enabled=false",
        ),
        (
            {"nats__perNamespace": "true", "nats__enabled": "false", "nats__external__url": "nats://n:4222"},
            "nats.perNamespace and nats.external.url exclude each other: set nats.enabled=true without a url",
        ),
        (
            {"nats__perNamespace": "true", "nats__auth__enabled": "false"},
            "nats.perNamespace keeps tenants apart only where NATS asks who comes: set nats.auth.enabled=true",
        ),
        (
            {"nats__perNamespace": "true", "nats__auth__existingSecret": "a"},
            "nats.perNamespace and nats.auth.existingSecret exclude each other",
        ),
        (
            {"nats__perNamespace": "true", "pipelines__shareDynamoNamespaces": "true"},
            "nats.perNamespace and pipelines.shareDynamoNamespaces exclude each other",
        ),
        ({"operator__replicas": "2"}, "'replicas' not allowed"),
        ({"operater__replicaCount": "2"}, "'operater' not allowed"),
        ({"operator__rbac__scope": "all"}, "must be one of 'cluster', 'namespace'"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, str], sentence: str, helm: Helm) -> None:
    """Before anything is installed, with what to do."""
    with pytest.raises(RefusedError, match=re.escape(sentence)):
        helm.render(PLATFORM, None, **values)


def test_the_crd_survives_the_template(helm: Helm) -> None:
    """Nothing but labels and annotations is added: no number changes its form on the way."""
    (made,) = of_kind(helm.render(PLATFORM), CRD).values()
    assert {**made, "metadata": {"name": made["metadata"]["name"]}} == crd()
    assert made["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_crd_can_be_left_out_or_removed(helm: Helm) -> None:
    """Both are the user's choice, and annotations too."""
    assert of_kind(helm.render(PLATFORM, None, crds__install="false"), CRD) == {}
    (made,) = of_kind(helm.render(PLATFORM, None, crds__keep="false"), CRD).values()
    assert "annotations" not in made["metadata"]
    (made,) = of_kind(helm.render(PLATFORM, GOLDEN / "everything.values.yaml"), CRD).values()
    assert set(made["metadata"]["annotations"]) == {"helm.sh/resource-policy", "argocd.argoproj.io/sync-options"}


def test_every_object_has_the_labels(rendered: list[Manifest]) -> None:
    """The recommended ones, everywhere."""
    bare = [m["metadata"]["name"] for m in rendered if not set(m["metadata"]["labels"]) >= STANDARD]
    assert bare == []


def test_common_labels_are_everywhere(helm: Helm) -> None:
    """On pods too, so that costs can be told apart."""
    manifests = helm.render(PLATFORM, GOLDEN / "everything.values.yaml")
    assert [m["metadata"]["name"] for m in manifests if m["metadata"]["labels"].get("team") != "serving"] == []
    assert [name for name, labels, _ in pods(manifests) if labels.get("team") != "serving"] == []


def selects(selector: dict[str, str], labels: Any) -> bool:
    return selector.items() <= dict(labels).items()


def test_selectors_find_their_pods_and_never_change(rendered: list[Manifest]) -> None:
    """A selector is immutable, so it must not hold a version; each finds the pods that it means, and only those."""
    running = list(pods(rendered))
    for manifest in rendered:
        value = (
            manifest.get("spec", {}).get("selector")
            if manifest["kind"] in ("Service", "Deployment", "StatefulSet")
            else None
        )
        if not value:
            continue
        labels = value.get("matchLabels", value)
        assert set(labels) == {f"app.kubernetes.io/{n}" for n in ("name", "instance", "component")}
        assert len([name for name, own, _ in running if selects(labels, own)]) == 1


def test_named_ports_exist(rendered: list[Manifest]) -> None:
    """Services, network policies and probes name ports that the pods have."""
    names = {p["name"] for _, c in containers(rendered) for p in c.get("ports", [])}
    asked = {p["targetPort"] for s in of_kind(rendered, "Service").values() for p in s["spec"]["ports"]}
    for policy in of_kind(rendered, "NetworkPolicy").values():
        asked |= {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]}
    for _, container in containers(rendered):
        asked |= {container[p]["httpGet"]["port"] for p in container if p.endswith("Probe")}
    assert asked <= names


def test_probes_have_time(rendered: list[Manifest]) -> None:
    """A busy node must not kill what is alive."""
    short = [
        f"{name} {p}"
        for name, c in containers(rendered)
        for p in c
        if p.endswith("Probe") and c[p]["timeoutSeconds"] < 5
    ]
    assert short == []


def test_the_global_registry_holds_for_every_image(helm: Helm) -> None:
    """A cluster without a way out needs one value."""
    manifests = helm.render(PLATFORM, GOLDEN / "everything.values.yaml")
    images = [c["image"] for _, c in containers(manifests)]
    cluster = settings(manifests).cluster
    images += [cluster.frontend_image, *cluster.worker_images.values()]
    assert len(images) == 8
    assert [image for image in images if not image.startswith("registry.example/")] == []


def test_a_digest_wins_over_the_tag(helm: Helm) -> None:
    """What is pinned is what runs."""
    manifests = helm.render(PLATFORM, GOLDEN / "external.values.yaml")
    assert [c["image"].partition("@")[2][:9] for _, c in containers(manifests)] == ["sha256:01"]


def settings(manifests: list[Manifest]) -> Settings:
    """As the operator reads them."""
    (operator,) = of_kind(manifests, "Deployment").values()
    pod = operator["spec"]["template"]["spec"]
    (file,) = re.findall(r"--config=/etc/dynamo-operator/(.+)", "\n".join(pod["containers"][0]["args"]))
    text = of_kind(manifests, "ConfigMap")[operator["metadata"]["name"]]["data"][file]
    return Settings.of(text, {"POD_NAMESPACE": "dynamo", "POD_NAME": "demo"})


def test_the_operator_understands_what_the_chart_says(rendered: list[Manifest]) -> None:
    """Its settings accept the file, and it may write the Lease that the file names."""
    flags = settings(rendered)
    assert flags.cluster.worker_images["default"].endswith("worker:0.1.0")
    rules = [rule for role in of_kind(rendered, "Role").values() for rule in role["rules"]]
    assert [flags.lease] in [rule.get("resourceNames") for rule in rules]


def test_the_operator_gets_lists_and_blanks_right(helm: Helm) -> None:
    """Namespaces, pull secrets, credentials and the missing group arrive as they are meant."""
    many = settings(helm.render(PLATFORM, GOLDEN / "everything.values.yaml"))
    assert (many.namespaces, many.cluster.pull_secrets, many.cluster.fs_group) == (
        ("serving", "research"),
        ("pull",),
        None,
    )
    assert many.etcd_sign_in == SignIn(secret="etcd-login", tls_secret="etcd-tls", own_server=True)
    assert many.nats_sign_in == SignIn(secret="nats-login", tls_secret="nats-tls", own_server=True)
    assert (many.share_namespaces, many.cluster.etcd_sign_in) == (False, True)
    made = settings(helm.render(PLATFORM))
    assert made.etcd_sign_in == SignIn(secret="demo-dynamo-platform-etcd-auth", make_secret=True, own_server=True)
    assert (made.nats_sign_in, made.cluster.etcd_sign_in, made.cluster.nats_sign_in) == (SignIn(), True, True)
    shared = settings(helm.render(PLATFORM, None, nats__perNamespace="false"))
    assert shared.nats_sign_in == SignIn(secret="demo-dynamo-platform-nats-auth", make_secret=True, own_server=True)
    assert (many.etcd[0][:8], many.nats[:6]) == ("https://", "tls://")
    outside = settings(helm.render(PLATFORM, GOLDEN / "external.values.yaml"))
    assert outside.etcd == ("https://etcd-0.example:2379", "https://etcd-1.example:2379")
    assert outside.namespaces == ("dynamo",)
    assert (outside.etcd_sign_in, bool(outside.nats_sign_in)) == (SignIn(tls_secret="etcd-client"), False)
    assert settings(helm.render(PLATFORM, None, pipelines__shareDynamoNamespaces="true")).share_namespaces
    assert settings(helm.render(PLATFORM, None, pipelines__fsGroup="1000680000")).cluster.fs_group == 1000680000


@pytest.mark.parametrize("sign_in", [False, True])
def test_nats_reads_its_configuration(sign_in: bool, helm: Helm, tmp_path: Path) -> None:
    """The real server accepts the file, without sign-in and with; of the Secret it gets nothing that is secret."""
    manifests = helm.render(PLATFORM, None, nats__auth__enabled=str(sign_in).lower(), nats__perNamespace="false")
    file = tmp_path / "nats.conf"
    file.write_text(of_kind(manifests, "ConfigMap")["demo-dynamo-platform-nats"]["data"]["nats.conf"])
    pod = of_kind(manifests, "StatefulSet")["demo-dynamo-platform-nats"]["spec"]["template"]["spec"]
    folders = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
    for volume in pod["volumes"]:
        for item in volume.get("secret", {}).get("items", []):
            assert item == {"key": SERVER_CONF, "path": SERVER_CONF}
            place = tmp_path / os.path.relpath(folders[volume["name"]], "/etc/nats")
            place.mkdir()
            (place / item["path"]).write_bytes(new_nats_keys()[item["key"]])
    answer = subprocess.run(["nats-server", "-t", "-c", str(file)], capture_output=True, text=True, timeout=20)
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "auth").exists() == sign_in


def namespaces_nats(manifests: list[Manifest], namespace: str = "serving") -> dict[str, Manifest]:
    """What the operator makes of what the chart tells it, by kind."""
    server = settings(manifests).nats_server
    assert server is not None
    trust = trust_of({}, server.config, lambda: bytes(range(32)), 1)
    return {manifest["kind"]: manifest for manifest in nats.manifests(server, namespace, trust.data)}


def test_each_namespace_gets_the_nats_that_one_would_be(helm: Helm) -> None:
    """The same pod, but for where it reads its configuration and whom it trusts; none for all is left."""
    manifests = helm.render(PLATFORM, None, nats__tls__existingSecret="nats-tls", nats__priorityClassName="high")
    per_namespace = helm.render(
        PLATFORM, None, nats__tls__existingSecret="nats-tls", nats__priorityClassName="high", nats__perNamespace="true"
    )
    shared = of_kind(manifests, "StatefulSet")["demo-dynamo-platform-nats"]["spec"]["template"]["spec"]
    apart = namespaces_nats(per_namespace)["Deployment"]["spec"]["template"]["spec"]
    assert [(each["tolerationSeconds"], each["effect"]) for each in apart.pop("tolerations")] == [(10, "NoExecute")] * 2
    assert {**shared, "volumes": []} == {**apart, "volumes": []}
    assert [v["name"] for v in shared["volumes"]] == [v["name"] for v in apart["volumes"]]
    secrets = [v["secret"] for v in apart["volumes"] if "secret" in v]
    assert {s["secretName"] for s in secrets} == {nats.NAME, "nats-tls"}
    read = [item["key"] for s in secrets for item in s.get("items", [])]
    assert read == [nats.CONFIG, SERVER_CONF]
    assert [m["metadata"]["name"] for m in per_namespace if "nats" in m["metadata"]["name"]] == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", 2),
        ('{"key": "gpu", "operator": "Exists"}', 2),
        ('{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 60}', 1),
        ('{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule", "operator": "Exists"}', 2),
        ('{"operator": "Exists"}', 0),
    ],
)
def test_a_namespaces_nats_leaves_a_lost_node_soon(given: str, kept: int, helm: Helm, tmp_path: Path) -> None:
    """Unless the user's tolerations match that taint: theirs come first, and are all kept."""
    values = tmp_path / "values.yaml"
    values.write_text(f"nats: {{tolerations: [{given}]}}")
    made = namespaces_nats(helm.render(PLATFORM, values))["Deployment"]["spec"]["template"]["spec"]["tolerations"]
    asked = [json.loads(given)] if given else []
    assert made[: len(asked)] == asked
    assert [each["tolerationSeconds"] for each in made[len(asked) :]] == [10] * kept


@pytest.mark.parametrize(
    ("values", "apart"),
    [
        ({}, True),
        ({"nats__perNamespace": "false"}, False),
        ({"nats__auth__enabled": "false"}, False),
        ({"nats__auth__existingSecret": "mine"}, False),
        ({"nats__tls__existingSecret": "mine"}, False),
        ({"pipelines__shareDynamoNamespaces": "true"}, False),
        ({"nats__perNamespace": "true", "nats__tls__existingSecret": "mine"}, True),
        ({"nats__enabled": "false", "nats__external__url": "nats://n:4222", "nats__auth__enabled": "false"}, False),
    ],
)
def test_each_namespace_has_its_nats_unless_one_is_asked_for(values: dict[str, str], apart: bool, helm: Helm) -> None:
    """Whatever needs one for all is as good as saying so: exactly one of the two is rendered, or an external one."""
    rendered = helm.render(PLATFORM, None, **values)
    flags = settings(rendered)
    assert (flags.nats_server is not None) == apart
    shared = [m for m in rendered if m["kind"] == "StatefulSet" and "nats" in m["metadata"]["name"]]
    assert bool(shared) == (not apart and "nats__enabled" not in values)
    assert bool(flags.nats_sign_in) == (bool(shared) and values.get("nats__auth__enabled") != "false")


def test_each_namespaces_nats_is_where_its_pipelines_look(helm: Helm) -> None:
    """With a certificate or without; what would be the platform's own is neither read nor made."""
    flags = settings(helm.render(PLATFORM, None, nats__perNamespace="true"))
    assert flags.environment("serving").nats == "nats://dynamo-nats.serving.svc:4222"
    assert (bool(flags.nats_sign_in), flags.cluster.nats_sign_in) == (False, True)
    assert "nats://dynamo-nats:4222" in flags.cluster.connections
    secure = settings(helm.render(PLATFORM, GOLDEN / "per-namespace.values.yaml"))
    assert secure.environment("research").nats == "tls://dynamo-nats.research.svc:4222"
    pod = namespaces_nats(helm.render(PLATFORM, GOLDEN / "per-namespace.values.yaml"))["Deployment"]["spec"]["template"]
    assert {"team": "serving", "g": "h"}.items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["annotations"]["e"] == "f"
    open_ = settings(helm.render(PLATFORM, None, nats__perNamespace="true", networkPolicy__enabled="false"))
    assert open_.nats_server is not None
    assert not open_.nats_server.network_policy
    assert settings(helm.render(PLATFORM)).nats_server == flags.nats_server


@pytest.mark.parametrize("version", ["1.31", "1.34"])
def test_each_namespaces_nats_is_what_kubernetes_reads(version: str, helm: Helm) -> None:
    """No field that the API server doesn't know."""
    for manifest in namespaces_nats(helm.render(PLATFORM, GOLDEN / "per-namespace.values.yaml")).values():
        kubernetes_schemas.validate(manifest, version)


def test_each_namespaces_nats_reads_its_configuration(helm: Helm, tmp_path: Path) -> None:
    """The real server, with its Secret as it is mounted."""
    namespaces = namespaces_nats(helm.render(PLATFORM, None, nats__perNamespace="true"))
    data, pod = namespaces["Secret"]["data"], namespaces["Deployment"]["spec"]["template"]["spec"]
    sources = {v["name"]: v["secret"]["items"][0] for v in pod["volumes"] if "secret" in v}
    for mount in pod["containers"][0]["volumeMounts"]:
        if mount["name"] in sources:
            item = sources[mount["name"]]
            path = (
                mount["mountPath"] if mount.get("subPath") == item["path"] else f"{mount['mountPath']}/{item['path']}"
            )
            file = tmp_path / os.path.relpath(path, "/etc/nats")
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(base64.b64decode(data[item["key"]]))
    command = [*pod["containers"][0]["command"][:-1], str(tmp_path / "nats.conf"), "-t"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert answer.returncode == 0, answer.stderr


def test_etcd_knows_its_flags(helm: Helm) -> None:
    """Every flag is one that etcd lists."""
    values = GOLDEN / "everything.values.yaml"
    command = of_kind(helm.render(PLATFORM, values), "StatefulSet")["demo-dynamo-platform-etcd"]["spec"]["template"]
    flags = {a.partition("=")[0] for a in command["spec"]["containers"][0]["command"][1:]}
    known = subprocess.run(["etcd", "--help"], capture_output=True, text=True, timeout=20)
    assert flags - set(re.findall(r"--[\w-]+", known.stdout + known.stderr)) == set()


def test_helm_test_says_who_does_not_answer(helm: Helm) -> None:
    """The script of the pod is run here: it reaches a port that is open and names one that is not."""
    command = of_kind(helm.render(PLATFORM), "Pod")["demo-dynamo-platform-test"]["spec"]["containers"][0]["command"]
    ast.parse(command[2])
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        good = subprocess.run([sys.executable, "-c", command[2], url], capture_output=True, text=True, timeout=30)
    bad = subprocess.run([sys.executable, "-c", command[2], url], capture_output=True, text=True, timeout=30)
    assert (good.returncode, good.stdout) == (0, f"{url} answers\n")
    assert bad.returncode == 1
    assert bad.stderr.startswith(f"{url} does not answer")


def test_pipelines_are_valid(helm: Helm, tmp_path: Path) -> None:
    """Rendered pipelines are what the API takes; large numbers stay whole, null entries are gone."""
    file = tmp_path / "values.yaml"
    spec = {"model": {"source": "/m", "contextLength": 2000000}, "components": [{"engine": "mocker"}]}
    file.write_text(yaml.safe_dump({"pipelines": {"big": {"spec": spec, "labels": {"a": "b"}}, "gone": None}}))
    (made,) = helm.render(PIPELINE, file)
    pipeline = DynamoPipeline.model_validate_json(json.dumps(made))
    assert pipeline.spec.model.context_length == 2000000
    assert made["metadata"]["labels"]["a"] == "b"


def test_a_pipeline_chart_without_pipelines_says_so(helm: Helm) -> None:
    """An empty release would look like success."""
    with pytest.raises(RefusedError, match="no pipeline: name at least one"):
        helm.render(PIPELINE)
    with pytest.raises(RefusedError, match="missing property 'components'"):
        helm.render(PIPELINE, None, pipelines__x__spec__restart="a")
