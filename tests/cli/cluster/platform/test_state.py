"""Before, during and after an installation: what is there, how far it is, what stays."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.cli.cluster.pipelines.progress import Part, PipelinePhase
from dynamo.cli.cluster.platform.helm import said, version_of
from dynamo.cli.cluster.platform.permissions import Access, for_helm, for_objects, for_roles, missing_sentence
from dynamo.cli.cluster.platform.state import (
    FIRST_PIPELINE,
    ReleaseName,
    adoption,
    new_sign_in,
    next_command,
    owner,
    platform_progress,
    selector,
    too_old,
    warnings,
    what_stays,
    workload_part,
)
from dynamo.operator.api.load import load_pipelines
from dynamo.operator.kube.resources import Resource

ONE: dict[str, Any] = {"replicas": 1, "readyReplicas": 1}
TWO: dict[str, Any] = {"replicas": 2, "readyReplicas": 2}
SAME: dict[str, Any] = {"currentRevision": "a", "updateRevision": "a"}
OTHER: dict[str, Any] = {"currentRevision": "a", "updateRevision": "b"}
DEPLOYMENT = {"kind": "Deployment", "metadata": {"name": "operator"}}


def live(kind: str = "Deployment", generation: int = 1, wanted: int = 1, **status: Any) -> dict[str, Any]:
    metadata = {"name": "operator", "generation": generation}
    return {"kind": kind, "metadata": metadata, "spec": {"replicas": wanted}, "status": status}


def test_a_crd_belongs_to_a_release_or_to_nobody() -> None:
    """By helm's own marks; both are needed."""
    place = ReleaseName("dynamo", "platform")
    marked = {"metadata": {"name": "crd", **adoption(place)["metadata"]}}
    assert owner(marked) == place
    assert owner({"metadata": {"annotations": marked["metadata"]["annotations"]}}) is None
    assert owner({"metadata": {"labels": marked["metadata"]["labels"]}}) is None


@pytest.mark.parametrize(
    ("server", "wanted", "old"),
    [
        ("v1.29.9", ">=1.30.0-0", True),
        ("v1.30.0", ">=1.30.0-0", False),
        ("v1.34.4-eks-1", ">=1.30.0-0", False),
        ("v2.0.0", ">=1.30.0-0", False),
        ("?", ">=1.30.0-0", False),
        ("v1.20.0", "<2 || >3", False),
        ("v1.20.0", "", False),
    ],
)
def test_old_servers_are_told_from_new_ones(server: str, wanted: str, old: bool) -> None:
    """What isn't understood is left to helm."""
    assert too_old(server, wanted) is old


@pytest.mark.parametrize(
    ("workload", "part"),
    [
        (None, Part("operator", False, "isn't there yet")),
        (live(), Part("operator", False, "0 of 1 ready")),
        (live(observedGeneration=1, **ONE, updatedReplicas=1), Part("operator", True, "1 of 1 ready")),
        (live(generation=2, observedGeneration=1, **ONE, updatedReplicas=1), Part("operator", False, "1 of 1 ready")),
        (live(observedGeneration=1, **TWO, updatedReplicas=1), Part("operator", False, "1 of 1 ready")),
        (live("StatefulSet", observedGeneration=1, **ONE, **SAME), Part("operator", True, "1 of 1 ready")),
        (live("StatefulSet", observedGeneration=1, **ONE, **OTHER), Part("operator", False, "1 of 1 ready")),
        (live(wanted=0, observedGeneration=1), Part("operator", True, "0 of 0 ready")),
    ],
)
def test_workloads_are_done_when_their_controller_says_so_of_this_generation(
    workload: dict[str, Any] | None, part: Part
) -> None:
    """Old pods don't count."""
    assert workload_part(DEPLOYMENT, workload, []) == part


def test_a_pod_that_waits_says_why() -> None:
    """In Kubernetes' words."""
    waiting = {"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    pod = {"metadata": {"name": "operator-x"}, "status": {"containerStatuses": [waiting]}}
    part = workload_part(DEPLOYMENT, live(), [pod])
    assert part.text == "0 of 1 ready; pod operator-x ErrImagePull: not found"
    progress = platform_progress(ReleaseName("dynamo", "platform"), [part, Part("etcd", True, "1 of 1 ready")])
    assert (progress.phase, progress.message) == (PipelinePhase.WAITING, f"operator: {part.text}")
    assert platform_progress(ReleaseName("d", "p"), [Part("etcd", True, "")]).phase is PipelinePhase.READY


def test_pods_are_found_by_their_selector() -> None:
    """As a query wants it."""
    assert selector({"spec": {"selector": {"matchLabels": {"b": "2", "a": "1"}}}}) == "a=1,b=2"


def test_warnings_of_the_notes_are_kept() -> None:
    """The rest is said by us."""
    assert warnings("Next:\n\n  kubectl x\n\nWARNING: no\nsign-in.\n\nMore.\n") == ["WARNING: no sign-in."]


def test_the_first_pipeline_is_a_good_one() -> None:
    """It is pasted as it is printed."""
    assert load_pipelines(FIRST_PIPELINE)[0].name == "mocker"
    assert next_command(" --context a", "team").startswith("dynamo apply -n team --context a --wait - <<'EOF'\napi")


def test_what_stays_is_counted() -> None:
    """Pipelines, CRD, data; nothing where nothing is left."""
    pipelines = [{"metadata": {"namespace": "n", "name": str(i)}} for i in range(7)]
    text = what_stays(True, pipelines, [{"metadata": {"name": "data-etcd-0"}}])
    assert text[0].startswith("7 pipelines (n/0, n/1, n/2, n/3, n/4 and 2 more)")
    assert "dynamo uninstall --crds" in text[1]
    assert text[2] == "1 claim with etcd's data: kubectl delete pvc data-etcd-0"
    assert what_stays(False, [], []) == []


@pytest.mark.parametrize(
    ("stderr", "sentence"),
    [
        (b"WARNING: Kubernetes configuration file is group-readable\nError: UPGRADE FAILED: no\n", "helm: no"),
        (b"Error: INSTALLATION FAILED: Error: deep\n", "helm: deep"),
        (b"", "helm: helm failed without a word"),
        (b"Error: a\n- b\n\nUse --debug flag to render out invalid YAML\n", "helm: a - b"),
    ],
)
def test_what_helm_says_is_one_sentence(stderr: bytes, sentence: str) -> None:
    """Without its warnings and prefixes."""
    assert said(stderr) == sentence


@pytest.mark.parametrize(
    ("text", "version"), [("v3.19.2", "3.19.2"), ("v3.19", "3.19.0"), ("v4.0.0+gabc", "4.0.0"), ("", "3.0.0")]
)
def test_a_helm_from_source_has_a_version_too(text: str, version: str) -> None:
    """pyhelm3 alone refuses v3.19."""
    assert str(version_of(text)) == version


KNOWN = {
    "ClusterRole": (Resource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles"), False),
    "Role": (Resource("rbac.authorization.k8s.io/v1", "Role", "roles"), True),
    "Service": (Resource("v1", "Service", "services"), True),
}
ROLE: dict[str, Any] = {
    "kind": "ClusterRole",
    "metadata": {"name": "r"},
    "rules": [{"apiGroups": [""], "resources": ["pods", "services/proxy"], "verbs": ["get", "list"]}],
}


def test_what_a_chart_needs_comes_from_its_manifests() -> None:
    """Each kind once per place, in the namespace where it goes."""
    manifests: list[dict[str, Any]] = [
        {"kind": "Service", "metadata": {"name": "a"}},
        {"kind": "Service", "metadata": {"name": "b", "namespace": "platform"}},
        {"kind": "Service", "metadata": {"name": "c", "namespace": "other"}},
        ROLE,
    ]
    accesses = for_objects(manifests, lambda m: KNOWN[m["kind"]], "platform")
    assert [str(a) for a in accesses if a.verb == "create"] == [
        "create services in namespace platform",
        "create services in namespace other",
        "create clusterroles.rbac.authorization.k8s.io",
    ]
    assert {a.verb for a in for_helm("platform")} >= {"get", "list", "create", "delete"}


def test_who_grants_must_hold() -> None:
    """The API server refuses a role with more rights than its maker's."""
    role = {
        **ROLE,
        "kind": "Role",
        "rules": [{"apiGroups": ["x"], "resources": ["y"], "verbs": ["get"], "resourceNames": ["n"]}],
    }
    accesses = for_roles([ROLE, role, {"kind": "Service", "metadata": {}}], "platform")
    assert Access("list", "", "services/proxy") in accesses
    assert accesses[-1] == Access("get", "x", "y", "platform", "n")
    attributes = Access("list", "", "services/proxy").review()["spec"]["resourceAttributes"]
    assert attributes == {"verb": "list", "group": "", "resource": "services", "subresource": "proxy"}


def test_missing_rights_are_named_together() -> None:
    """Verbs of a kind in one breath, and not more than can be read."""
    missing = [Access(verb, "", "secrets", "p") for verb in ("get", "list")]
    missing += [Access("create", "g", f"r{i}") for i in range(9)]
    text = missing_sentence(missing, "the cluster")
    assert "you what the installation needs: get, list secrets in namespace p; create r0.g; " in text
    assert "; and 6 kinds more" in text


def auth(**servers: bool) -> dict[str, Any]:
    return {server: {"auth": {"enabled": enabled}} for server, enabled in servers.items()}


ON, OFF = auth(etcd=True, nats=True), auth(etcd=False, nats=False)


@pytest.mark.parametrize(
    ("before", "values", "defaults", "named"),
    [
        (OFF, {}, ON, "etcd and nats of"),
        (OFF, {"operator": {"replicaCount": 2}}, ON, "etcd and nats of"),
        (OFF, auth(etcd=True), ON, "nats of"),
        (OFF, OFF, ON, ""),
        (OFF, ON, ON, ""),
        (OFF, {}, OFF, ""),
        (ON, {}, ON, ""),
        ({}, {}, ON, ""),
        (OFF, {}, {}, ""),
        ({"etcd": None, "nats": {"auth": "x"}}, {"etcd": 3}, ON, ""),
    ],
)
def test_an_upgrade_turns_no_sign_in_on_unasked(
    before: dict[str, Any], values: dict[str, Any], defaults: dict[str, Any], named: str
) -> None:
    """Every pipeline would be replaced, and requests fail: the user says when, or that it stays as it is."""
    sentence = new_sign_in(before, values, defaults)
    assert sentence.startswith(named)
    assert bool(sentence) == bool(named)
    if named:
        assert "--set nats.auth.enabled=true when that suits you, or =false" in sentence
