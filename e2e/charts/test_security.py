"""What the platform may do and how it is locked down, in every way to install it."""

from __future__ import annotations

import pytest
from e2e.charts.helm import Helm, Manifest, containers, of_kind, pods
from e2e.charts.test_rendering import namespaces_nats
from tests.charts.documents import PLATFORM, ROOT

from dynamo.operator.kube.resources import CHILDREN, ROUTES
from dynamo.operator.manifests import nats

GOLDEN = ROOT / "tests/charts/golden"
READ = {"get", "list", "watch"}


@pytest.fixture(params=["default", "everything", "external", "per-namespace", "ha"])
def rendered(request: pytest.FixtureRequest, helm: Helm) -> list[Manifest]:
    """The platform with each set of values."""
    return helm.render(PLATFORM, GOLDEN / f"{request.param}.values.yaml")


def rights(role: Manifest) -> dict[tuple[str, str], set[str]]:
    """Verbs by group and resource."""
    results: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                results.setdefault((group, resource), set()).update(rule["verbs"])
    return results


def test_pods_pass_the_restricted_standard(rendered: list[Manifest]) -> None:
    """Every field that the Pod Security Standard asks for, said rather than inherited."""
    for name, _, spec in pods(rendered):
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert all({"hostPath"}.isdisjoint(volume) for volume in spec.get("volumes", [])), name
    for name, container in containers(rendered):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, name
        assert context["capabilities"] == {"drop": ["ALL"]}, name
        assert context["readOnlyRootFilesystem"] is True, name
        assert context["runAsNonRoot"] is True, name


def test_the_nats_of_a_namespace_is_as_locked_down(helm: Helm) -> None:
    """What the operator makes of it; its pod has no token either."""
    made = list(namespaces_nats(helm.render(PLATFORM, GOLDEN / "per-namespace.values.yaml")).values())
    test_pods_pass_the_restricted_standard(made)
    test_containers_ask_for_resources(made)
    assert [spec["automountServiceAccountToken"] for _, _, spec in pods(made)] == [False]


def test_a_nats_per_namespace_needs_hardly_a_new_right(helm: Helm) -> None:
    """The operator makes its objects with the rights that it has for pipelines; at home it has fewer.

    Where owners are guarded, who adds one to the Secret must have the right to delete it: to that one name.
    """
    first, second = (helm.render(PLATFORM, None, nats__perNamespace=value) for value in ("false", "true"))
    roles = [of_kind(part, "ClusterRole")["dynamo-demo-dynamo-platform-operator"]["rules"] for part in (first, second)]
    added = [rule for rule in roles[1] if rule not in roles[0]]
    named = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [nats.NAME], "verbs": ["delete"]}
    assert added == [named]
    assert [rule for rule in roles[0] if rule not in roles[1]] == []
    home = [of_kind(part, "Role")["demo-dynamo-platform-operator"]["rules"] for part in (first, second)]
    assert [r.get("resourceNames") for r in home[1] if "secrets" in r["resources"]] == [
        ["demo-dynamo-platform-etcd-auth"],
        None,
    ]
    alone = helm.render(PLATFORM, None, nats__perNamespace="true", etcd__auth__enabled="false")
    (cluster,) = [m for m in alone if m["kind"] == "ClusterRole" and "user-roles" not in str(m["metadata"])]
    assert rights(cluster)["", "secrets"] == {"get", "create", "patch", "delete"}
    assert ("", "secrets") not in rights(of_kind(alone, "Role")["demo-dynamo-platform-operator"])


def test_containers_ask_for_resources(rendered: list[Manifest]) -> None:
    """Requests for the scheduler, a memory limit for the neighbours."""
    for name, container in containers(rendered):
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}, name
        assert "memory" in container["resources"]["limits"], name


def test_only_the_operator_has_a_token(rendered: list[Manifest]) -> None:
    """Servers and the test need nothing from the API server."""
    with_token = [name for name, _, spec in pods(rendered) if spec["automountServiceAccountToken"]]
    assert [name.rpartition("-")[2] for name in with_token] == ["operator"]


def test_no_right_is_a_wildcard(rendered: list[Manifest]) -> None:
    """Nothing is granted that isn't named."""
    for kind in ("Role", "ClusterRole"):
        for name, role in of_kind(rendered, kind).items():
            for rule in role["rules"]:
                assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]), name


def test_the_operator_may_do_what_it_does_and_no_more(helm: Helm) -> None:
    """Its kinds, with the verbs that server-side apply and pruning need; claims are never deleted, pods only read."""
    may = rights(of_kind(helm.render(PLATFORM), "ClusterRole")["dynamo-demo-dynamo-platform-operator"])
    wanted = {(r.group, r.plural): READ | {"create", "patch", "delete"} for r in CHILDREN}
    wanted["", "persistentvolumeclaims"] = READ | {"create", "patch"}
    wanted[ROUTES.group, ROUTES.plural] = {"get", "list", "create", "patch", "delete"}
    wanted |= {
        ("", "pods"): READ,
        ("", "events"): {"create", "patch"},
        ("", "secrets"): {"get", "create", "patch", "delete"},  # what its pipelines sign in with; delete: of one name
        ("coordination.k8s.io", "leases"): {"get"},
        ("dynamo.dev", "dynamopipelines"): READ,
        ("dynamo.dev", "dynamopipelines/status"): {"patch"},
        ("dynamo.dev", "dynamopipelines/finalizers"): {"update"},
    }
    assert may == wanted


def test_the_release_namespace_holds_the_lease(helm: Helm) -> None:
    """One Lease by name; creating can't be limited to a name."""
    (role,) = of_kind(helm.render(PLATFORM), "Role").values()
    assert rights(role) == {
        ("coordination.k8s.io", "leases"): {"create", "get", "update"},
        ("", "events"): {"create", "patch"},
        ("", "secrets"): {"get", "create"},
    }
    leases = [r.get("resourceNames") for r in role["rules"] if "leases" in r["resources"]]
    assert leases == [None, ["demo-dynamo-platform-operator"]]


def test_secrets_are_touched_only_with_sign_in(helm: Helm) -> None:
    """Without credentials there is no right to Secrets; with them, nowhere one to list them."""
    bare = helm.render(PLATFORM, None, etcd__auth__enabled="false", nats__auth__enabled="false")
    plain = [r for m in bare if m["kind"] in ("Role", "ClusterRole") for r in m["rules"]]
    assert [rule for rule in plain if "secrets" in rule["resources"]] == []
    secured = helm.render(PLATFORM, GOLDEN / "everything.values.yaml")
    results = [r for m in secured if m["kind"] == "Role" for r in m["rules"] if "secrets" in r["resources"]]
    assert [(r["verbs"], r.get("resourceNames")) for r in results] == [
        (["get", "create", "patch"], None),
        (["get", "create", "patch"], None),
        (["get"], ["etcd-login", "etcd-tls", "nats-login", "nats-tls"]),
    ]
    for one_for_all, nats_too in ((None, []), ("false", ["demo-dynamo-platform-nats-auth"])):
        values = {} if one_for_all is None else {"nats__perNamespace": one_for_all}
        made = of_kind(helm.render(PLATFORM, None, **values), "Role")["demo-dynamo-platform-operator"]
        assert [(r["verbs"], r.get("resourceNames")) for r in made["rules"] if "secrets" in r["resources"]] == [
            (["get"], ["demo-dynamo-platform-etcd-auth", *nats_too]),
            (["create"], None),
        ]


def test_a_namespaced_operator_needs_no_cluster_rights(helm: Helm) -> None:
    """Somebody who only owns namespaces can install it."""
    manifests = helm.render(PLATFORM, GOLDEN / "external.values.yaml")
    assert [m for m in manifests if m["kind"].startswith("Cluster") or m["kind"] == "CustomResourceDefinition"] == []
    assert all(m["metadata"]["namespace"] == "dynamo" for m in manifests)


def test_roles_are_bound_to_the_operator(rendered: list[Manifest]) -> None:
    """Every role but those that aggregate has a binding, to the account that the Deployment uses."""
    (operator,) = of_kind(rendered, "Deployment").values()
    account = operator["spec"]["template"]["spec"]["serviceAccountName"]
    assert account in of_kind(rendered, "ServiceAccount")
    bindings = [m for m in rendered if m["kind"].endswith("RoleBinding")]
    roles = [m for m in rendered if m["kind"] in ("Role", "ClusterRole") and "user-roles" not in str(m["metadata"])]
    assert len(bindings) == len(roles)
    for binding in bindings:
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "dynamo"}]


def test_users_get_pipelines_with_the_roles_they_have(helm: Helm) -> None:
    """view reads, edit and admin write; nobody gets status or finalizers to write."""
    roles = of_kind(helm.render(PLATFORM), "ClusterRole")
    view, edit = (rights(roles[f"dynamo-demo-dynamo-platform-operator-{name}"]) for name in ("view", "edit"))
    assert view["dynamo.dev", "dynamopipelines"] == READ
    assert {"create", "update", "patch", "delete"} < edit["dynamo.dev", "dynamopipelines"]
    assert view["dynamo.dev", "dynamopipelines/status"] == edit["dynamo.dev", "dynamopipelines/status"] == {"get"}


def test_the_servers_are_closed_to_others(helm: Helm) -> None:
    """Clients' ports of etcd and NATS are open to pods of the platform and of pipelines only."""
    assert len(of_kind(helm.render(PLATFORM), "NetworkPolicy")) == 2
    policies = of_kind(helm.render(PLATFORM, None, nats__perNamespace="false"), "NetworkPolicy")
    assert len(policies) == 3
    for server in ("etcd", "nats"):
        rules = policies[f"demo-dynamo-platform-{server}"]["spec"]["ingress"]
        (clients,) = [rule for rule in rules if rule["ports"][0]["port"] == "client"]
        assert clients["from"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/part-of": "dynamo"}}


def test_two_operators_share_the_nodes(helm: Helm) -> None:
    """More than one: a budget, and different nodes where there are some; with one neither."""
    two = helm.render(PLATFORM, None, operator__replicaCount="2")
    (operator,) = of_kind(two, "Deployment").values()
    assert "podAntiAffinity" in operator["spec"]["template"]["spec"]["affinity"]
    assert len(of_kind(two, "PodDisruptionBudget")) == 1
    assert of_kind(helm.render(PLATFORM), "PodDisruptionBudget") == {}
