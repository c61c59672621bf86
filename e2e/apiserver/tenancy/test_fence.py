"""The chart's admission policies on a real API server: what the operator may write, and which of its replicas."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
import yaml
from e2e.apiserver.client import Client, Object, RefusedError, until
from e2e.apiserver.operators import ACCOUNT, ACCOUNTS, CONFIG, HOME, REPOSITORY
from e2e.apiserver.world import World

from dynamo.operator.kube.client import Api
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.leader_election import Fence, fenced
from dynamo.operator.kube.resources import EVENTS, LEASES, PIPELINES, PODS, Key, Resource, resource_of
from dynamo.operator.reconcile.reconciler import Reconciler
from dynamo.operator.settings import Settings

GROUP = "admissionregistration.k8s.io/v1"
POLICIES = Resource(GROUP, "ValidatingAdmissionPolicy", "validatingadmissionpolicies")
BINDINGS = Resource(GROUP, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings")
SERVICES, MAPS = resource_of("Service"), resource_of("ConfigMap")
OURS = {"app.kubernetes.io/managed-by": "dynamo-operator"}


def policies(world: World) -> list[Object]:
    """The chart's, as helm renders them for the account and the lease that the tests have."""
    text = world.plane.run_helm(
        "template", "x", str(REPOSITORY / "charts/dynamo-platform"), f"--namespace={HOME}", "--kube-version=1.34.0",
        f"--set=operator.serviceAccount.name={ACCOUNT}", "--set=operator.leaderPolicy=true",
        "--show-only=templates/admission.yaml",
    )  # fmt: skip
    found = [one for one in yaml.safe_load_all(text) if one]
    for one in found:
        if "paramRef" in one["spec"]:
            one["spec"]["paramRef"]["name"] = ACCOUNT
    return found


@pytest.fixture
def guarded(world: World) -> Iterator[World]:
    """The policies are in force; the lease says that pod `new` leads, and pods `old` and `new` have tokens."""
    made = policies(world)
    for name in ("old", "new"):
        pod = {"containers": [{"name": "c", "image": "x"}], "serviceAccountName": ACCOUNT}
        head = {"name": name, "namespace": HOME}
        world.admin.apply(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": pod})
    lead(world, "new")
    for one in made:
        world.admin.apply(BINDINGS if "policyName" in one["spec"] else POLICIES, one)
    try:
        until("the policies are in force", lambda: refused(lambda: make(world, token(world, "new"), "a", {}))
              and refused(lambda: make(world, token(world, "old"), "b", OURS)))  # fmt: skip
        yield world
    finally:
        for one in made:
            # A policy with a parameter is deleted once in an API server's life: `templates/admission.yaml` says why.
            if not one["metadata"]["name"].endswith("-leader"):
                world.admin.delete(BINDINGS if "policyName" in one["spec"] else POLICIES, None, one["metadata"]["name"])
        for name in ("old", "new"):
            world.admin.code("DELETE", f"{PODS.path(HOME, name)}?gracePeriodSeconds=0")
        until("they are in force no more", lambda: not refused(lambda: make(world, token_of(world), "free", {})))


def test_the_operator_writes_only_what_is_a_pipelines(guarded: World) -> None:
    """With its own rights: nothing without its label or in kube-system, no taking over, no removing of others'."""
    new = Client(guarded.admin.server, token(guarded, "new"))
    for namespace, labels, said in (
        (guarded.namespace, {}, "only objects with the label"),
        (guarded.namespace, {"app.kubernetes.io/managed-by": "Helm"}, "only objects with the label"),
        ("kube-system", OURS, "nothing in kube-system"),
    ):
        with pytest.raises(RefusedError, match=said):
            new.apply(MAPS, config_map(namespace, "mine", labels))
    guarded.admin.apply(MAPS, config_map(guarded.namespace, "theirs", {}))
    with pytest.raises(RefusedError, match="takes over no object"):
        new.apply(MAPS, config_map(guarded.namespace, "theirs", OURS))
    with pytest.raises(RefusedError, match="only objects with the label"):
        new.delete(MAPS, guarded.namespace, "theirs")
    new.apply(MAPS, config_map(guarded.namespace, "ours", OURS))
    new.delete(MAPS, guarded.namespace, "ours")
    guarded.admin.apply(MAPS, config_map(guarded.namespace, "anybody", {}))


def test_a_whole_pipeline_is_served_under_the_policies(guarded: World) -> None:
    """Nothing that the operator does of itself is refused: a creation, an edit, a label that somebody took away."""
    operator = guarded.operators.start()
    guarded.pipeline()
    guarded.until_ready()
    guarded.admin.merge(
        SERVICES, guarded.namespace, "llama-frontend", {"metadata": {"labels": {next(iter(OURS)): None}}}
    )
    until(
        "it is ours again",
        lambda: OURS.items() <= guarded.get(SERVICES, "llama-frontend")["metadata"]["labels"].items(),
    )
    guarded.pipeline(spec={"components": [{"engine": "mocker", "kvCacheBlockSize": 32}]})
    guarded.until_ready()
    assert operator.defects() == []
    assert "only objects with the label" not in operator.said()


def test_only_the_pod_that_leads_writes(guarded: World) -> None:
    """Creations, statuses and Events of the one before are refused at once; reading isn't, and it may lead again."""
    old = Client(guarded.admin.server, token(guarded, "old"))
    guarded.pipeline()
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "late", "namespace": guarded.namespace},
        "involvedObject": {"namespace": guarded.namespace}, "reason": "Late", "message": "late", "type": "Normal",
    }  # fmt: skip
    late: list[Callable[[], object]] = [
        lambda: old.apply(MAPS, config_map(guarded.namespace, "late", OURS)),
        lambda: old.ask("POST", EVENTS.path(guarded.namespace), event),
        lambda: old.merge(PIPELINES, guarded.namespace, "llama", {"status": {"model": "late"}}, "status"),
    ]
    for write in late:
        with pytest.raises(RefusedError, match="another replica of the operator leads"):
            write()
    assert old.get(PIPELINES, guarded.namespace, "llama")
    lead(guarded, "old")
    until("it may again", lambda: not refused(late[0]))


def test_a_leader_overtaken_by_an_edit_makes_nothing_of_the_old_spec(guarded: World) -> None:
    """It was paused just after it had asked; meanwhile another one led and the spec was edited: its creations of the
    old revision bear no precondition that could tell, and the lease does."""
    lead(guarded, "old")
    guarded.pipeline()
    key = Key(guarded.namespace, "llama")

    def overtaken() -> bool:
        if not state:
            state.append(1)
            lead(guarded, "new")
            guarded.pipeline(spec={"components": [{"engine": "mocker", "kvCacheBlockSize": 32}]})
            until("everybody knows who leads", lambda: refused(lambda: make(guarded, token(guarded, "old"), "c", OURS)))
        return True

    state: list[int] = []
    mark = guarded.plane.mark()
    asyncio.run(reconcile(guarded, "old", key, overtaken))
    wrote = [w for w in guarded.writes(mark) if w.endswith((" 200", " 201"))]
    assert state, "it was asked"
    assert wrote == []
    asyncio.run(reconcile(guarded, "new", key, lambda: True))
    assert [write for write in guarded.writes(mark) if write.endswith(" 201")]


async def reconcile(world: World, pod: str, key: Key, may_write: Callable[[], bool]) -> None:
    """One reconcile of the replica in this pod."""
    context = ssl._create_unverified_context()
    connector = Fence(may_write, ssl=context)
    headers = {"Authorization": f"Bearer {token(world, pod)}"}
    settings = Settings.of(yaml.safe_dump(CONFIG), {"POD_NAME": pod, "POD_NAMESPACE": HOME})
    async with aiohttp.ClientSession(connector=connector, request_class=fenced(may_write)) as session:
        api = Api(session, world.admin.server, credentials=lambda refused=False: headers)
        try:
            await Reconciler(api, settings).reconcile(key)
        except ApiError:
            return


def lead(world: World, pod: str) -> None:
    """As the lease has it."""
    spec = {"holderIdentity": pod, "leaseDurationSeconds": 15}
    metadata = {"name": ACCOUNT, "namespace": HOME}
    world.admin.apply(
        LEASES, {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
    )


def token(world: World, pod: str) -> str:
    """As the kubelet gets one for a pod: the API server knows of which pod it is."""
    return asked(world, {"apiVersion": "v1", "kind": "Pod", "name": pod})


def token_of(world: World) -> str:
    """Of the account, in no pod."""
    return asked(world, None)


def asked(world: World, bound: Object | None) -> str:
    """A token request's answer."""
    spec: dict[str, Any] = {"expirationSeconds": 3600, "audiences": []} | ({"boundObjectRef": bound} if bound else {})
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    found = world.admin.ask("POST", ACCOUNTS.path(HOME, ACCOUNT, "token"), wanted)
    return str(found["status"]["token"])


def make(world: World, who: str, name: str, labels: Object) -> None:
    """A ConfigMap, by whoever has the token."""
    Client(world.admin.server, who).apply(MAPS, config_map(world.namespace, name, labels))


def config_map(namespace: str, name: str, labels: Object) -> Object:
    """The least that can be written."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
    }


def refused(write: Callable[[], object]) -> bool:
    """By a policy."""
    try:
        write()
    except RefusedError as error:
        return "ValidatingAdmissionPolicy" in str(error)
    return False
