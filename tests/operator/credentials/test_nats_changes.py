"""What is written of a namespace's own NATS, and whom it trusts: pure functions of what is there."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
from tests.operator.pipelines import SMALLEST, pipeline

from dynamo.operator.cluster.writes import Apply, Conflict
from dynamo.operator.credentials import nats_keys
from dynamo.operator.credentials.nats_changes import is_ours, needed, owner, owners_in
from dynamo.operator.credentials.nats_keys import NatsIssuer
from dynamo.operator.credentials.nats_trust import trust_of
from dynamo.operator.manifests import nats
from dynamo.operator.manifests.context import Manifest
from dynamo.operator.manifests.nats import NatsServer, manifests

SERVER = NatsServer("max_payload: 1048576\n", {"spec": {"containers": [{"name": "nats", "image": "nats:1"}]}})
ONE = owner(pipeline(SMALLEST), "uid-1")
OTHER = owner(pipeline(SMALLEST, "other"), "uid-2")
KINDS = ["Secret", "Service", "NetworkPolicy", "Deployment"]
_numbers = itertools.count(1)


def draw() -> bytes:
    return next(_numbers).to_bytes(32, "big")


DATA = trust_of({}, SERVER.config, draw, 1).data
WANTED = manifests(SERVER, "serving", DATA)


def written(live: list[Manifest] | None = None, *owners: Any, wanted: list[Manifest] = WANTED) -> list[Any]:
    return list(needed(wanted, live or [], owners or (ONE,)))


def there(*owners: Any) -> list[Manifest]:
    """As the API server has it once all is written."""
    results = []
    for change in written([], *owners):
        copy_of_it = copy.deepcopy(change.manifest)
        copy_of_it["metadata"] |= {"uid": f"uid-{copy_of_it['kind']}", "resourceVersion": "7"}
        results.append(copy_of_it)
    return results


def test_what_is_missing_is_made_the_secret_first() -> None:
    """Each belongs to the pipeline, which controls none of them."""
    files = written()
    assert [change.manifest["kind"] for change in files] == KINDS
    for change in files:
        assert change.uid is None
        assert change.manifest["metadata"]["ownerReferences"] == [ONE]
        assert "controller" not in ONE


def test_at_rest_nothing_is_written() -> None:
    """Whoever of the owners looks."""
    assert written(there(ONE, OTHER)) == written(there(ONE, OTHER), OTHER) == []


def test_another_pipeline_becomes_an_owner_and_none_is_taken_out() -> None:
    """By server-side apply, which would drop what isn't named; each write is for the very object that was read."""
    files = written(there(ONE), OTHER)
    assert [change.manifest["kind"] for change in files] == KINDS
    for change in files:
        assert change.manifest["metadata"]["ownerReferences"] == [ONE, OTHER]
        assert (change.uid, change.version) == (f"uid-{change.manifest['kind']}", "7")
        assert change.because == ("metadata.ownerReferences[uid-2]",)


def test_pipelines_that_are_being_deleted_are_no_owners() -> None:
    """Kubernetes would collect what is theirs alone."""
    heads = [
        {"metadata": {"name": "a", "uid": "1"}},
        {"metadata": {"name": "b", "uid": "2", "deletionTimestamp": "2026-11-21T00:00:00Z"}},
    ]
    assert [owner["name"] for owner in owners_in(heads)] == ["a"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_somebody_changed_is_put_right(kind: str) -> None:
    """Labels, contents, or all of it."""
    live = there(ONE)
    live_object = next(o for o in live if o["kind"] == kind)
    live_object["metadata"]["labels"] = {"mine": "now"}
    assert [change.manifest["kind"] for change in written(live)] == [kind]
    assert [change.manifest["kind"] for change in written([o for o in live if o is not live_object])] == [kind]
    live_object["metadata"]["labels"] = nats.labels()
    live_object["metadata"]["ownerReferences"] = []
    (change,) = written(live)
    assert change.manifest["metadata"]["ownerReferences"] == [ONE]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_somebody_elses_is_left_alone(kind: str) -> None:
    """With other labels, or controlled by somebody; what is about to go is waited for."""
    live = there(ONE)
    metadata = next(o for o in live if o["kind"] == kind)["metadata"]
    metadata["ownerReferences"] = [{**ONE, "controller": True}]
    conflict = Conflict(kind, nats.NAME, "delete it, because the NATS of this namespace needs the name")
    assert written(live) == [conflict]
    metadata |= {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}], "labels": {}}
    assert written(live) == [conflict]
    metadata |= {"labels": nats.labels(), "deletionTimestamp": "2026-11-21T00:00:00Z"}
    assert written(live) == []


def test_a_field_that_was_dropped_is_noticed() -> None:
    """By the digest, which says nothing of what is secret."""
    plain = manifests(NatsServer(SERVER.config, {"spec": {"containers": [{"name": "nats"}]}}), "serving", DATA)
    assert [change.manifest["kind"] for change in written(there(ONE), wanted=plain)] == ["Deployment"]
    other = manifests(SERVER, "serving", {**DATA, nats_keys.SIGNING: b"another"})
    assert other[0]["metadata"]["annotations"] == WANTED[0]["metadata"]["annotations"]


def pod_digest(server: NatsServer, data: dict[str, bytes], certificate: bytes = b"") -> str:
    deployment = manifests(server, "serving", data, certificate)[-1]
    text: str = deployment["spec"]["template"]["metadata"]["annotations"][nats.CONFIG_DIGEST]
    return text


def test_the_pod_is_another_one_only_for_what_it_reads() -> None:
    """Configuration, trust, certificate; not the seeds, which it never sees."""
    data = dict(DATA)
    same = pod_digest(SERVER, {**data, nats_keys.SIGNING: b"x"})
    others = [
        pod_digest(SERVER, {**data, nats.CONFIG: b"x"}),
        pod_digest(SERVER, {**data, nats_keys.SERVER_CONF: b"x"}),
        pod_digest(SERVER, data, b"certificate"),
    ]
    assert same == pod_digest(SERVER, data)
    assert len({same, *others}) == 4


def test_nothing_secret_is_outside_of_the_secret() -> None:
    """In no template, annotation or label."""
    shown = repr(WANTED[1:])
    for key, value in DATA.items():
        if key.endswith(".nk"):
            assert value.decode() not in shown
    assert "Trust(issuer=NatsIssuer(A" in repr(trust_of(DATA, "", draw, 1))
    assert DATA[nats_keys.SIGNING].decode() not in repr(trust_of(DATA, "", draw, 1))


def test_two_pods_never_serve_at_once() -> None:
    """Clients of two servers would not meet."""
    spec = WANTED[-1]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_only_pipelines_of_the_namespace_reach_it() -> None:
    """Other than the shared one's, whose policy asks for a label alone; the monitor answers the namespace."""
    policy = next(manifest for manifest in WANTED if manifest["kind"] == "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == nats.selector()
    assert all("namespaceSelector" not in peer for rule in policy["ingress"] for peer in rule["from"])
    assert [rule["ports"][0]["port"] for rule in policy["ingress"]] == [4222, 8222]
    without = manifests(NatsServer("", {}, network_policy=False), "serving", DATA)
    assert [manifest["kind"] for manifest in without] == ["Secret", "Service", "Deployment"]


def test_keys_are_made_once() -> None:
    """What the Secret holds is kept, and what else lies in it is not ours."""
    again = trust_of({**DATA, "theirs": b"x"}, "max_payload: 2\n", draw, 2)
    assert again.data == {**DATA, nats.CONFIG: b"max_payload: 2\n"}
    assert again.issuer == NatsIssuer.of(DATA)


@pytest.mark.parametrize(
    "broken",
    [
        {nats_keys.SIGNING: b""},
        {nats_keys.SIGNING: b"SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"},
        {nats_keys.ACCOUNT: b"\xff"},
        {nats_keys.ACCOUNT: b"ADIFFERENTONE"},
        {nats_keys.SERVER_CONF: b"port: 1"},
    ],
    ids=["no seed", "a user's", "no text", "another account", "a server that trusts nobody"],
)
def test_keys_that_nobody_can_use_are_made_anew(broken: dict[str, bytes]) -> None:
    """All of them: half of one trust and half of another would let nobody in."""
    trust = trust_of({**DATA, **broken}, SERVER.config, draw, 1)
    kept = {key for key, value in trust.data.items() if DATA[key] == value}
    assert kept == {nats.CONFIG}
    assert trust.issuer == NatsIssuer.of(trust.data)


def test_the_file_of_each_is_its_own() -> None:
    """Two namespaces have nothing in common but the configuration."""
    other = trust_of({}, SERVER.config, draw, 1).data
    assert [key for key in other if other[key] == DATA[key]] == [nats.CONFIG]


def test_a_label_alone_makes_it_ours() -> None:
    """The admission policy of the chart judges the same way."""
    assert is_ours({"kind": "Service", "metadata": {"labels": nats.labels()}})
    assert not is_ours({"kind": "Service", "metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}})
    assert [type(change) for change in written()] == [Apply] * 4
