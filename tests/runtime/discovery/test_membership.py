"""The rules of membership, as tables and as properties; time is an argument."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.discovery.membership import (
    Changed,
    ClientRecord,
    Effect,
    Instance,
    Joined,
    Left,
    Malformed,
    Membership,
    Replaced,
    decode_instance,
    encode_instance,
)
from dynamo.runtime.discovery.store import Change, Entry
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.names import EndpointPath, InstanceKey, instance_key
from dynamo.runtime.transport.bus import Verdict

PATH = EndpointPath("ns", "backend", "generate")


def record(id: int = 1, nonce: str = "n", **more: object) -> Instance:  # noqa: A002
    return Instance(namespace="ns", component="backend", endpoint="generate", id=id, nonce=nonce, **more)  # type: ignore[arg-type]


def key(id: int = 1) -> InstanceKey:  # noqa: A002
    return InstanceKey(PATH, id)


def entry(instance: Instance, revision: int = 1) -> Entry:
    return Entry(instance_key(instance.key), encode_instance(instance), revision)


def wrote(instance: Instance, revision: int = 2) -> Change:
    return Change(instance_key(instance.key), encode_instance(instance), revision)


def removed(id: int = 1, revision: int = 3) -> Change:  # noqa: A002
    return Change(instance_key(key(id)), None, revision)


def started(*instances: Instance) -> Membership:
    """A view that has listed `instances` at revision 1 of epoch e."""
    known = Membership()
    known.snapshot("e", 1, [entry(i) for i in instances], 0.0)
    return known


def test_listed_instances_join() -> None:
    """The first list brings its instances into routing, and the acknowledgement says up to where."""
    known = Membership()
    assert known.snapshot("e", 7, [entry(record())], 0.0) == [Joined(record())]
    assert known.routable(PATH) == [key()]
    assert known.acknowledgement("frontend") == ClientRecord(kind="frontend", epoch="e", revision=7)


def test_changes_join_change_and_leave() -> None:
    """A new record joins, other contents are a change, `draining` leaves routing at once."""
    known = started()
    assert known.change([wrote(record())], 0.0) == [Joined(record())]
    assert known.change([wrote(record())], 0.0) == []
    busy = record(figures={"slots": 4})
    assert known.change([wrote(busy, 3)], 0.0) == [Changed(busy)]
    assert known.change([wrote(record(draining=True), 4)], 0.0) == [Left(key())]
    assert known.routable(PATH) == []
    assert known.instances == {}
    assert known.revision == 4


def test_goodbye_needs_no_ping() -> None:
    """A draining record that disappears is gone without a question."""
    known = started(record())
    known.change([wrote(record(draining=True))], 0.0)
    assert known.change([removed()], 0.0) == []
    assert known.due_pings(0.0) == []


def test_rejoining_after_leaving() -> None:
    """A record that is no longer draining is routed to again."""
    known = started(record(draining=True))
    assert known.routable(PATH) == []
    assert known.change([wrote(record())], 0.0) == [Joined(record())]
    assert known.routable(PATH) == [key()]


def test_a_vanished_record_is_asked_about() -> None:
    """Absence without goodbye is no death: the instance stays in routing and is pinged."""
    known = started(record())
    assert known.change([removed()], 10.0) == []
    assert known.routable(PATH) == [key()]
    assert known.next_ping() == 10.0
    assert known.due_pings(10.0) == [key()]
    assert known.due_pings(10.5) == []


@pytest.mark.parametrize(
    ("verdicts", "left_at"),
    [
        ([(0.1, Verdict.DEAD)], 0.1),
        ([(1.0, Verdict.SILENT), (3.0, Verdict.SILENT), (6.0, Verdict.SILENT)], 6.0),
        ([(1.0, Verdict.SILENT), (3.0, Verdict.ALIVE), (6.5, Verdict.SILENT), (8.0, Verdict.SILENT)], None),
        ([(1.0, None), (30.0, None), (59.0, None)], None),
        ([(1.0, Verdict.ALIVE), (59.9, Verdict.ALIVE)], None),
        ([(1.0, Verdict.ALIVE), (60.0, Verdict.ALIVE)], 60.0),
        ([(1.0, None), (60.0, None)], 60.0),
        ([(1.0, Verdict.ALIVE), (2.0, Verdict.DEAD)], 2.0),
    ],
    ids=["nobody-listens", "silence", "answered-in-between", "could-not-ask", "alive", "a-minute", "unknown", "later"],
)
def test_answers_decide(verdicts: list[tuple[float, Verdict | None]], left_at: float | None) -> None:
    """What the answers to the pings make of a record that vanished at second 0."""
    known = started(record())
    known.change([removed()], 0.0)
    for at, verdict in verdicts:
        effects = known.verdict(key(), verdict, at)
        assert effects == ([Left(key())] if at == left_at else [])
    assert (key() not in known.instances) == (left_at is not None)


def test_registering_again_ends_the_question() -> None:
    """A record that comes back (same process) is a member again, without a change for anybody."""
    known = started(record())
    known.change([removed()], 0.0)
    known.verdict(key(), Verdict.SILENT, 1.0)
    assert known.change([wrote(record(), 4)], 2.0) == []
    assert known.next_ping() is None
    assert known.routable(PATH) == [key()]


def test_another_process_under_the_same_id() -> None:
    """A record with another nonce is another process: the old one left, the new one joined."""
    known = started(record(nonce="old"))
    new = record(nonce="new")
    assert known.change([wrote(new)], 0.0) == [Left(key()), Joined(new)]


@pytest.mark.parametrize(("epoch", "revision"), [("other", 50), ("e", 3)], ids=["epoch", "revision"])
def test_a_replaced_store_is_noticed_and_nothing_forgotten(epoch: str, revision: int) -> None:
    """Another epoch, or a smaller revision: everybody registers again, and routing goes on meanwhile."""
    known = Membership()
    known.snapshot("e", 10, [entry(record())], 0.0)
    assert known.snapshot(epoch, revision, [], 1.0) == [Replaced()]
    assert known.routable(PATH) == [key()]
    assert known.due_pings(1.0) == [key()]
    assert (known.epoch, known.revision) == (epoch, revision)


def test_a_list_of_the_same_store_is_no_alarm() -> None:
    """Listing again after compaction says nothing where nothing happened."""
    known = started(record())
    assert known.snapshot("e", 9, [entry(record())], 1.0) == []


def test_an_unreadable_record_is_left_out() -> None:
    """A record of another version, or one that lies about its key, disturbs nobody else."""
    known = Membership()
    bad = Entry(instance_key(key(2)), b"{", 1)
    lies = Entry(instance_key(key(3)), encode_instance(record(4)), 1)
    effects = known.snapshot("e", 1, [bad, lies, entry(record())], 0.0)
    assert [type(e) for e in effects] == [Malformed, Malformed, Joined]
    assert known.routable(PATH) == [key()]


def test_unknown_fields_are_ignored() -> None:
    """A newer version's record is read."""
    fields = {**msgspec.json.decode(encode_instance(record())), "news": 1}
    assert decode_instance(instance_key(key()), msgspec.json.encode(fields)) == record()


def test_a_record_under_a_foreign_key() -> None:
    """What is no instance key is refused."""
    with pytest.raises(InvalidArgument):
        decode_instance("dynamo/instances/ns/backend/1", b"{}")


def test_traffic_suspends_and_answers_restore() -> None:
    """A registered instance that traffic calls dead or silent isn't picked until it answers; it stays a member."""
    known = started(record(1), record(2))
    assert known.verdict(key(1), Verdict.DEAD, 5.0) == []
    assert known.routable(PATH) == [key(2)]
    assert set(known.instances) == {key(1), key(2)}
    assert known.due_pings(6.0) == [key(1)]
    known.verdict(key(1), None, 6.5)
    assert known.routable(PATH) == [key(2)]
    known.verdict(key(1), Verdict.ALIVE, 7.0)
    assert known.routable(PATH) == [key(1), key(2)]
    assert known.next_ping() is None


def test_pending_and_failed_are_published_until_the_instance_leaves() -> None:
    """What this client is loading, or failed to load, is in its acknowledgement, and goes with the instance."""
    known = started(record(1), record(2))
    known.pending.add(key(1))
    known.failed[key(2)] = "no tokenizer"
    said = known.acknowledgement("frontend")
    assert (said.pending, said.failed) == ([1], {2: "no tokenizer"})
    known.change([wrote(record(1, draining=True)), removed(1), wrote(record(2, draining=True)), removed(2)], 0.0)
    known.change([wrote(record(1), 5), wrote(record(2), 6)], 1.0)
    said = known.acknowledgement("frontend")
    assert (said.pending, said.failed) == ([], {}), "nothing of it is left when the id comes back"


def test_endpoints_are_told_apart() -> None:
    """Only the instances of the endpoint that is asked for are candidates."""
    other = Instance(namespace="ns", component="backend", endpoint="clear", id=1, nonce="n")
    known = started(record(1), other)
    assert known.routable(PATH) == [key(1)]
    assert known.routable(other.path) == [other.key]


IDS = st.integers(1, 3)
STEPS = st.one_of(
    st.tuples(st.just("write"), IDS, st.booleans(), st.sampled_from(["n", "m"])),
    st.tuples(st.just("remove"), IDS),
    st.tuples(st.just("verdict"), IDS, st.sampled_from([*Verdict, None])),
    st.tuples(st.just("list"), st.sets(IDS), st.sampled_from(["e", "f"])),
)


def _apply(known: Membership, step: tuple[object, ...], records: dict[int, Instance], now: float) -> list[Effect]:
    match step:
        case ("write", int(id), bool(draining), str(nonce)):
            records[id] = record(id, nonce, draining=draining)
            return known.change([wrote(records[id], known.revision + 1)], now)
        case ("remove", int(id)):
            records.pop(id, None)
            return known.change([removed(id, known.revision + 1)], now)
        case ("verdict", int(id), verdict):
            assert verdict is None or isinstance(verdict, Verdict)
            return known.verdict(key(id), verdict, now)
        case ("list", set() as kept, str(epoch)):
            for id in set(records) - kept:  # noqa: A001
                del records[id]
            return known.snapshot(epoch, known.revision + 1, [entry(r) for r in records.values()], now)
    raise AssertionError(step)


@given(st.lists(st.tuples(STEPS, st.floats(0, 20)), max_size=40))
def test_listeners_see_what_routing_sees(steps: list[tuple[tuple[object, ...], float]]) -> None:
    """Whatever happens: the effects add up to `instances`, registered ones are always in it, and
    an instance that never said goodbye is only dropped for a reason (no answer, or a minute)."""
    known, records, verdicts, now = Membership(), {}, {}, 0.0  # type: ignore[var-annotated]
    known.snapshot("e", 1, [], 0.0)
    for step, passed in steps:
        now += passed
        said_goodbye = {i for i, r in records.items() if r.draining}
        before = {k.id: k for k in known.instances}
        for effect in _apply(known, step, records, now):
            match effect:
                case Joined(instance):
                    assert instance.key not in verdicts
                    verdicts[instance.key] = instance
                case Changed(instance):
                    assert instance.key in verdicts
                    verdicts[instance.key] = instance
                case Left(gone):
                    del verdicts[gone]
        assert verdicts == dict(known.instances)
        assert {r.key for r in records.values() if not r.draining} <= set(known.instances)
        assert set(known.routable(PATH)) <= set(known.instances)
        if step[0] in ("remove", "list"):
            lost = set(before) - {k.id for k in known.instances} - said_goodbye
            assert not lost, "a vanished record alone takes nobody out"
