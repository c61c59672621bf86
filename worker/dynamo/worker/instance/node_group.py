"""A group of nodes as one worker: who is there, and what its engine and its endpoint are told of it.

Each node serves an endpoint of its own beside that of the requests, which takes none: its record says what
`node_group_state.py` decides by, and it answers pings. So leases, an etcd that is lost or emptied, and absence without
a goodbye are dealt with as for any instance. Nobody but the group's nodes looks at these records, since they have no
card.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from dynamo.runtime.discovery.membership import Instance
from dynamo.runtime.endpoint import Served
from dynamo.runtime.errors import CannotConnect, EngineError, InvalidArgument
from dynamo.runtime.names import InstanceKey
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.runtime.request_plane.server import Incoming
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engine import Nodes, OverNodes
from dynamo.worker.instance.node_group_state import Follower, Leader, NodeRecord, node_record
from dynamo.worker.settings import WorkerSettings, leader_address

log = logging.getLogger(__name__)
SUFFIX: Final = "_node"
"""What the nodes' endpoint is called beside that of the requests."""
PING_SECONDS: Final = 1.0
_OWNER: Final = "nodes"
T = TypeVar("T")


def host_of_this_node() -> str:
    """Return where the other nodes reach this one.

    A pod's address where Kubernetes says it, else the machine's name.
    """
    return os.environ.get("POD_IP") or socket.getfqdn()


class NodeGroup:
    """One node's place in its group. `start` once; `stop` ends it, and may be called twice."""

    def __init__(self, runtime: DistributedRuntime, settings: WorkerSettings) -> None:
        """Join a group; raises `InvalidArgument` for a leader's address that is none."""
        self._leader_address = leader_address(settings.leader_addr)
        record = NodeRecord(
            group=settings.leader_addr, rank=settings.node_rank, nodes=settings.num_nodes, host=host_of_this_node()
        )
        self._runtime, self._path = runtime, settings.path()
        self._nodes = self._path._replace(endpoint=self._path.endpoint + SUFFIX)
        self._place: Leader | Follower = (Follower if record.rank else Leader)(record, runtime.id)
        self._told = record
        self._engine: object = None
        self._served: Served | None = None
        self._away = False
        self._waits = ""
        self._news, self._turned = asyncio.Event(), asyncio.Event()
        self._lost: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._background = TaskOwner(log)
        self._unlisten: Callable[[], None] = lambda: None
        self.record: Served | None = None

    # -- for who serves

    async def start(self) -> None:
        """Be known to the others; returns when this node is registered."""
        await self._runtime.caller.listen(self._nodes.namespace)
        view = await self._runtime.registry.watch(self._nodes.namespace)
        await view.wait_synced()
        self.record = await self._runtime.endpoint(self._nodes).start(_refuse, figures=_figures(self._told))
        self._hold()
        self._unlisten = view.listen(self)
        self._background.start(self._watch(), f"nodes of {self._place.own.group}")

    async def whole(self) -> Nodes:
        """Wait until the group is."""
        while not self._place.whole:
            self._turned.clear()
            await self._turned.wait()
        hosts = self._place.hosts() if isinstance(self._place, Leader) else ()
        return Nodes(self._leader_address, hosts)

    async def start_engine(self, engine: object, start: Callable[[Nodes], Awaitable[T]]) -> T:
        """Start an engine, or its part here, once the group is whole; returns when both are.

        It is told of losses from now on if it is `OverNodes`; else a loss is its end, and raises `EngineError`.
        """
        nodes = await self.whole()
        self._engine = engine
        starting, lost = asyncio.ensure_future(start(nodes)), asyncio.ensure_future(self.failed())
        try:
            await asyncio.wait((starting, lost), return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise lost.result()
            await self.whole()
            return starting.result()
        finally:
            for task in (starting, lost):
                task.cancel()
            await asyncio.gather(starting, lost, return_exceptions=True)

    def route(self, served: Served) -> None:
        """Have this endpoint leave routing whenever the group isn't whole."""
        self._served = served
        self._news.set()

    async def failed(self) -> BaseException:
        """Wait until a node is lost that the engine can't go on without."""
        return await asyncio.shield(self._lost)

    async def leave(self, grace: float) -> None:
        """Have the leader leave routing, as a follower, and wait until its streams have ended."""
        if isinstance(self._place, Leader) or not self._place.whole:
            return
        self._place.leaves()
        self._news.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self._place.whole:
                    self._turned.clear()
                    await self._turned.wait()

    async def stop(self) -> None:
        self._unlisten()
        self._unlisten = lambda: None
        self._background.cancel()
        await self._background.ended()
        record, self.record = self.record, None
        if record is not None:
            await record.stop()

    # -- an InstanceListener

    def joined(self, instance: Instance) -> None:
        if instance.key.path != self._nodes:
            return
        record = node_record(instance.figures)
        if record is None:
            log.warning("the record of node %x can't be read; it is left out", instance.id)
        else:
            self._place.seen(instance.id, record)
            self._news.set()

    def changed(self, instance: Instance) -> None:
        self.joined(instance)

    def left(self, key: InstanceKey) -> None:
        if key.path == self._nodes:
            self._place.left(key.id)
            self._news.set()

    # -- the task

    async def _watch(self) -> None:
        while True:
            self._news.clear()
            await asyncio.gather(*(self._ask(node) for node in self._place.watched()))
            await self._act()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_SECONDS):
                    await self._news.wait()

    async def _ask(self, node: int) -> None:
        if not self._runtime.bus.connected:
            return  # nothing can be learned of anybody
        key = InstanceKey(self._nodes, node)
        with contextlib.suppress(CannotConnect):
            verdict = await self._runtime.caller.ping(key, timeout=PING_SECONDS)
            self._place.answered(node, verdict, asyncio.get_running_loop().time())

    async def _act(self) -> None:
        why = self._place.step()
        if why:
            self._broken(why)
        elif why is not None:
            self._made_whole()
        self._hold()
        await self._publish()
        await self._in_routing()
        if isinstance(self._place, Leader) and self._place.leaving():
            await self._let_go(self._place)

    def _broken(self, why: str) -> None:
        log.warning("%s", why)
        if isinstance(self._engine, OverNodes):
            self._engine.broken(why)
        elif self._engine is not None and not self._lost.done():
            self._lost.set_result(EngineError(f"{why}: this node starts anew with them"))
        self._turned.set()

    def _made_whole(self) -> None:
        log.info("the group at %s is whole: %d nodes", self._place.own.group, self._place.own.nodes)
        if isinstance(self._engine, OverNodes):
            self._engine.whole()
        self._turned.set()

    def _hold(self) -> None:
        """Have `/health` say what is waited for, and the log where it is something new."""
        why = self._place.waits_for()
        if why and why != self._waits:
            log.info("%s (%s)", why, self._path)
        self._waits = why
        if self.record is not None:
            self.record.hold(_OWNER, why)

    async def _publish(self) -> None:
        if self.record is not None and self._told != self._place.own:
            self._told = self._place.own
            await self.record.update(figures=_figures(self._told))

    async def _in_routing(self) -> None:
        """Leave or take the endpoint's place in routing."""
        why = self._place.waits_for() or (self._place.leaving() if isinstance(self._place, Leader) else "")
        if self._served is None or self._away == bool(why):
            return
        self._away = bool(why)
        if why:
            await self._served.leave(why, by=_OWNER)
            await self._served.known_to_all(PING_SECONDS)
        else:
            await self._served.rejoin(by=_OWNER)

    async def _let_go(self, leader: Leader) -> None:
        """Let the group end once its streams are over: a node of it was told to end."""
        if self._runtime.server.active:
            return  # seen again in a second
        why = leader.leaving()
        leader.dissolve()
        self._broken(why)
        await self._publish()


def _figures(record: NodeRecord) -> dict[str, object]:
    made: dict[str, object] = msgspec.to_builtins(record)
    return made


def _refuse(incoming: Incoming) -> None:
    raise InvalidArgument("this endpoint is for the nodes of a group; requests go to the one without _node")
