"""Who of a group of nodes is there, and when all of them together are one worker. Pure; `node_group.py` is the shell.

Every node of a group publishes a record of itself. A follower names the leader that it follows; a leader counts the
followers that name it and answer, and once it has one of each rank it names them: the group is whole. So two leaders
at one address never share a follower, and a node that was restarted, which is another instance, is taken anew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from dynamo.runtime.transport.bus import Verdict

SILENCE_SECONDS: Final = 5.0
"""Without an answer for so long a node is lost; the same as for any instance."""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Record that a node keeps of itself among its instance's figures."""

    group: str
    """The leader's address, as every node of the group was given it."""
    rank: int
    nodes: int
    host: str = ""
    """Where it runs, for engines that are started there by the leader."""
    follows: int = 0
    """A follower: the instance that it takes for its leader; 0 while there is none."""
    formation: tuple[int, ...] = ()
    """The leader: the instances that are the group, by rank; empty while it isn't whole."""
    leaving: bool = False
    """It was told to end, and waits until the group's streams have ended."""


def node_record(figures: Mapping[str, Any]) -> NodeRecord | None:
    """Return the record among an instance's figures; None where there is none that can be read."""
    try:
        return msgspec.convert(dict(figures), NodeRecord)
    except msgspec.ValidationError:
        return None


class _Other:
    """Another node, and whether it answers."""

    def __init__(self, record: NodeRecord) -> None:
        self.record = record
        self.answers = False
        self.silent_since: float | None = None


class _Watch(ABC):
    """Watch of a group's nodes, which leader and follower have in common."""

    def __init__(self, own: NodeRecord, own_id: int) -> None:
        self.own, self._id = own, own_id
        self._others: dict[int, _Other] = {}

    def seen(self, node: int, record: NodeRecord) -> None:
        """Note that a node is registered, or says something new."""
        if node == self._id or record.group != self.own.group or not self._concerns(record):
            self._others.pop(node, None)
            return
        other = self._others.get(node)
        if other is None:
            self._others[node] = _Other(record)
        else:
            other.record = record

    def left(self, node: int) -> None:
        """Note that its record went, and it is known not to live."""
        self._others.pop(node, None)

    def answered(self, node: int, verdict: Verdict, now: float) -> None:
        """Note what a ping said."""
        other = self._others.get(node)
        if other is None:
            return
        if verdict is Verdict.ALIVE:
            other.answers, other.silent_since = True, None
        elif verdict is Verdict.DEAD:
            other.answers, other.silent_since = False, None
        elif other.silent_since is None:
            other.silent_since = now
        elif now - other.silent_since >= SILENCE_SECONDS:
            other.answers = False

    def watched(self) -> list[int]:
        """Return the instances to ping."""
        return list(self._others)

    @abstractmethod
    def _concerns(self, record: NodeRecord) -> bool:
        """Tell whether this node has to do with one of that rank."""

    def _answering(self, rank: int) -> Iterator[int]:
        for node, other in self._others.items():
            if other.record.rank == rank and other.record.nodes == self.own.nodes and other.answers:
                yield node

    def _misfits(self) -> str:
        """Say what other nodes were started with that can't be; empty where nothing is."""
        wrong = [other.record for other in self._others.values() if other.record.nodes != self.own.nodes]
        return "; ".join(
            f"the node of rank {node.rank} was started with --num-nodes {node.nodes}, this one with {self.own.nodes}"
            for node in wrong
        )


class Leader(_Watch):
    """The node of rank 0."""

    def _concerns(self, record: NodeRecord) -> bool:
        return record.rank != 0

    @property
    def whole(self) -> bool:
        return bool(self.own.formation)

    def step(self) -> str | None:
        """Act on what has been seen: why a whole group is no longer, "" where it is now; None: nothing new."""
        if self.whole:
            lost = [rank for rank, node in enumerate(self.own.formation) if rank and node not in self._following(rank)]
            if not lost:
                return None
            self.dissolve()
            return f"{_ranks(lost)} of the group at {self.own.group} lost"
        ids = [next(iter(self._staying(rank)), 0) for rank in range(1, self.own.nodes)]
        if not all(ids):
            return None
        self.own = msgspec.structs.replace(self.own, formation=(self._id, *ids))
        return ""

    def dissolve(self) -> None:
        """Note that it isn't whole any more."""
        self.own = msgspec.structs.replace(self.own, formation=())

    def leaving(self) -> str:
        """Say which of a whole group's nodes wait for its streams to end; empty: none."""
        gone = [
            self._others[node].record.rank
            for node in self.own.formation[1:]
            if node in self._others and self._others[node].record.leaving
        ]
        return f"{_ranks(gone)} of the group at {self.own.group} leaving" if gone else ""

    def waits_for(self) -> str:
        """Say why it isn't whole; empty where it is."""
        if self.whole:
            return ""
        missing = [rank for rank in range(1, self.own.nodes) if not list(self._staying(rank))]
        if not missing:
            return f"the group at {self.own.group} is about to be whole"
        misfits = self._misfits()
        return f"waits for {_ranks(missing)} of the group at {self.own.group}" + (f" ({misfits})" if misfits else "")

    def hosts(self) -> list[str]:
        """Return where the nodes of a whole group run, by rank."""
        return [self.own.host, *(self._others[node].record.host for node in self.own.formation[1:])]

    def _following(self, rank: int) -> list[int]:
        return [node for node in self._answering(rank) if self._others[node].record.follows == self._id]

    def _staying(self, rank: int) -> Iterator[int]:
        """Yield the node that stays.

        Of several of a rank (one was restarted before its old record went) it is the one that answers.
        """
        return (node for node in self._following(rank) if not self._others[node].record.leaving)


class Follower(_Watch):
    """A node of another rank."""

    def _concerns(self, record: NodeRecord) -> bool:
        return record.rank == 0

    @property
    def whole(self) -> bool:
        """Tell whether its leader counts it."""
        leader = self._others.get(self.own.follows)
        if leader is None or not leader.answers or len(leader.record.formation) <= self.own.rank:
            return False
        return leader.record.formation[self.own.rank] == self._id

    def __init__(self, own: NodeRecord, own_id: int) -> None:
        super().__init__(own, own_id)
        self._was_whole = False

    def step(self) -> str | None:
        """Decide as a leader does, and choose whom to follow."""
        there = list(self._answering(0))
        if self.own.follows not in there:
            self.own = msgspec.structs.replace(self.own, follows=there[0] if there else 0)
        was, self._was_whole = self._was_whole, self.whole
        if was and not self.whole:
            return self.waits_for()
        return "" if self.whole and not was else None

    def leaves(self) -> None:
        """Note that it was told to end."""
        self.own = msgspec.structs.replace(self.own, leaving=True)

    def waits_for(self) -> str:
        """Say why it is of no use; empty where it is."""
        if self.whole:
            return ""
        if self.own.follows:
            return f"waits until the leader at {self.own.group} has all its nodes"
        misfits = self._misfits()
        return f"waits for the leader at {self.own.group}" + (f" ({misfits})" if misfits else "")


def _ranks(ranks: list[int]) -> str:
    """Say `node 1` or `nodes 1, 2`."""
    return f"node{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
