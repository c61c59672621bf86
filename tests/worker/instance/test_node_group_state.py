"""When nodes are a group: what leader and followers decide from what they see."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import msgspec
import pytest

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.shutdown import ShutdownSignal
from dynamo.runtime.transport.bus import Verdict
from dynamo.worker.instance.node_group_state import SILENCE_SECONDS, Follower, Leader, NodeRecord, node_record
from dynamo.worker.main import _meeting
from dynamo.worker.settings import leader_address

HERE = "leader:29500"
LEADER, ONE, TWO, OTHER = 100, 101, 102, 103


def record(rank: int, *, nodes: int = 3, group: str = HERE, **more: object) -> NodeRecord:
    return msgspec.convert({"group": group, "rank": rank, "nodes": nodes, "host": f"host-{rank}", **more}, NodeRecord)


def leader(**nodes: NodeRecord) -> Leader:
    """A leader that sees these nodes answer, by id (`n101`)."""
    made = Leader(record(0), LEADER)
    for name, node in nodes.items():
        made.seen(int(name[1:]), node)
        made.answered(int(name[1:]), Verdict.ALIVE, 0.0)
    return made


def whole() -> Leader:
    made = leader(n101=record(1, follows=LEADER), n102=record(2, follows=LEADER))
    assert made.step() == ""
    return made


def test_a_group_is_whole_when_all_ranks_follow_and_answer() -> None:
    """Then the leader names its nodes, by rank, and says where they are."""
    made = Leader(record(0), LEADER)
    for node, rank in ((ONE, 1), (TWO, 2)):
        assert made.step() is None
        made.seen(node, record(rank, follows=LEADER))
        assert made.step() is None, "a record may be older than its process"
        made.answered(node, Verdict.ALIVE, 0.0)
    assert made.step() == ""
    assert made.own.formation == (LEADER, ONE, TWO)
    assert made.hosts() == ["host-0", "host-1", "host-2"]
    assert (made.waits_for(), made.step()) == ("", None)


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (record(1), "waits for node 1 of the group at leader:29500"),
        (record(1, follows=OTHER), "waits for node 1 of the group at leader:29500"),
        (record(1, group="elsewhere:1", follows=LEADER), "waits for node 1 of the group at leader:29500"),
        (record(2, follows=LEADER), "waits for node 1 of the group at leader:29500"),
        (record(1, follows=LEADER, leaving=True), "waits for node 1 of the group at leader:29500"),
        (
            record(1, nodes=2, follows=LEADER),
            "waits for node 1 of the group at leader:29500"
            " (the node of rank 1 was started with --num-nodes 2, this one with 3)",
        ),
    ],
)
def test_who_does_not_count(one: NodeRecord, says: str) -> None:
    """Nodes that follow nobody or another, of another group, rank or size, or that leave."""
    made = leader(n101=one, n102=record(2, follows=LEADER))
    assert made.step() is None
    assert made.waits_for() == says


def test_all_that_lack_are_named() -> None:
    """With one sentence."""
    assert leader().waits_for() == "waits for nodes 1, 2 of the group at leader:29500"


@pytest.mark.parametrize(
    "loss",
    [
        lambda made: made.left(ONE),
        lambda made: made.answered(ONE, Verdict.DEAD, 1.0),
        lambda made: [made.answered(ONE, Verdict.SILENT, at) for at in (1.0, 1.0 + SILENCE_SECONDS)],
        lambda made: made.seen(ONE, record(1, follows=0)),
        lambda made: made.seen(ONE, record(1, follows=LEADER, nodes=2)),
    ],
)
def test_a_lost_node_breaks_the_group(loss: object) -> None:
    """Its record went, nobody listens, it is silent for long, or it follows nobody any more."""
    made = whole()
    loss(made)  # type: ignore[operator] # one of those above
    assert made.step() == "node 1 of the group at leader:29500 lost"
    assert (made.whole, made.own.formation, made.step()) == (False, (), None)


def test_a_short_silence_is_none() -> None:
    """Neither is one that was interrupted by an answer."""
    made = whole()
    for at, verdict in ((1.0, Verdict.SILENT), (5.5, Verdict.SILENT), (5.6, Verdict.ALIVE), (9.0, Verdict.SILENT)):
        made.answered(ONE, verdict, at)
    assert made.step() is None


def test_a_node_that_starts_anew_is_another_member() -> None:
    """Its old record may still be there: a group with the new one is another, and comes after a loss."""
    made = whole()
    made.seen(OTHER, record(1, follows=LEADER))
    made.answered(OTHER, Verdict.ALIVE, 1.0)
    assert made.step() is None, "a second node of a rank is no reason to break what is whole"
    made.answered(ONE, Verdict.DEAD, 1.0)
    assert made.step() == "node 1 of the group at leader:29500 lost"
    assert made.step() == ""
    assert made.own.formation == (LEADER, OTHER, TWO)


def test_a_node_that_leaves_is_waited_for() -> None:
    """The leader hears of it while all are there; dissolved, the group isn't formed with it again."""
    made = whole()
    made.seen(TWO, record(2, follows=LEADER, leaving=True))
    assert made.step() is None
    assert made.leaving() == "node 2 of the group at leader:29500 leaving"
    made.dissolve()
    assert (made.step(), made.whole, made.leaving()) == (None, False, "")


def follower() -> Follower:
    return Follower(record(1), ONE)


def test_a_follower_takes_the_leader_that_answers() -> None:
    """It is of use when that one counts it; the first of two stays its leader."""
    made = follower()
    made.seen(LEADER, record(0))
    assert (made.step(), made.own.follows) == (None, 0)
    assert made.waits_for() == "waits for the leader at leader:29500"
    made.answered(LEADER, Verdict.ALIVE, 0.0)
    assert (made.step(), made.own.follows) == (None, LEADER)
    assert made.waits_for() == "waits until the leader at leader:29500 has all its nodes"
    made.seen(OTHER, record(0))
    made.answered(OTHER, Verdict.ALIVE, 0.0)
    made.seen(LEADER, record(0, formation=(LEADER, ONE, TWO)))
    assert (made.step(), made.whole, made.own.follows, made.waits_for()) == ("", True, LEADER, "")


def test_a_follower_notices_that_its_group_is_broken() -> None:
    """By its leader's word, or its leader's end; then it takes the next."""
    made = follower()
    made.seen(LEADER, record(0, formation=(LEADER, ONE, TWO)))
    made.answered(LEADER, Verdict.ALIVE, 0.0)
    assert made.step() == ""
    made.seen(LEADER, record(0))
    assert made.step() == "waits until the leader at leader:29500 has all its nodes"
    made.seen(LEADER, record(0, formation=(LEADER, ONE, TWO)))
    assert made.step() == ""
    made.seen(OTHER, record(0))
    made.answered(OTHER, Verdict.ALIVE, 0.0)
    made.answered(LEADER, Verdict.DEAD, 1.0)
    assert made.step() == "waits until the leader at leader:29500 has all its nodes"
    assert made.own.follows == OTHER


def test_one_of_an_old_formation_is_not_in_the_new_one() -> None:
    """A formation names instances, not ranks."""
    made = follower()
    made.seen(LEADER, record(0, formation=(LEADER, OTHER, TWO)))
    made.answered(LEADER, Verdict.ALIVE, 0.0)
    assert (made.step(), made.whole) == (None, False)


def test_records_are_read_back() -> None:
    """What can't be read is none; what other versions say beside it does no harm."""
    made = record(0, formation=(LEADER, ONE, TWO), leaving=True)
    assert node_record({**msgspec.to_builtins(made), "new": 1}) == made
    assert node_record({"rank": "one"}) is None


@pytest.mark.parametrize(
    ("text", "address"),
    [("leader:29500", ("leader", 29500)), ("10.0.0.1:1", ("10.0.0.1", 1)), ("[fd00::1]:65535", ("fd00::1", 65535))],
)
def test_addresses_of_leaders(text: str, address: tuple[str, int]) -> None:
    """Names, IPv4 and IPv6."""
    assert leader_address(text) == address


@pytest.mark.parametrize("text", ["leader", "leader:", ":29500", "leader:0", "leader:65536", "fd00::1:5", "leader:x"])
def test_what_is_no_address(text: str) -> None:
    """The sentence names the flag and the form."""
    with pytest.raises(InvalidArgument, match="--leader-addr must be HOST:PORT"):
        leader_address(text)


async def test_a_signal_at_the_end_of_a_start_is_not_lost() -> None:
    """It comes when the group is whole, and nobody waits for it yet: who serves then finds that it came."""
    leaving = ShutdownSignal()

    async def start() -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return "the node"

    started: list[Any] = [*await _meeting(start(), leaving)]
    assert started in (["the node"], [])
    await asyncio.wait_for(leaving.asked.wait(), 10)
