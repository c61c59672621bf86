"""vLLM's and SGLang's ZMQ sockets, read: the thin shell around `engine_stream.py`.

A task of its own subscribes to one data-parallel rank's events, asks the replay socket for what is missing, and hands
on steps. pyzmq is loaded when the first one starts (the extra `zmq`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from dynamo.llm.kv.messages import KvStep
from dynamo.llm.kv_events.engine_stream import EngineStream
from dynamo.llm.kv_events.engine_wire import END_OF_REPLAY, UnreadableBatch, read_number, write_number
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.extras import install_hint
from dynamo.runtime.process.tasks import TaskOwner

if TYPE_CHECKING:
    import zmq.asyncio

log = logging.getLogger(__name__)

MOST_QUEUED: Final = 100_000
"""Messages that wait in the socket, as in the engines' own; what is over shows as a gap."""
MOST_BYTES: Final = 1 << 28
"""Of one message."""
REPLAY_SECONDS: Final = 5.0
"""Without a word from the replay socket."""
LINGER: Final = 0


class ZmqSource:
    """Read one rank's KV events from an engine's sockets; `on_step` is called on the loop.

    `endpoint` and `replay_endpoint` are those of rank 0, as the engine was given them: `*` becomes this machine, and a
    rank's port is that many higher.
    """

    def __init__(
        self, endpoint: str, on_step: Callable[[KvStep], None], block_size: int, *, dp_rank: int = 0, topic: str = "",
        replay_endpoint: str | None = None, capacity: int | None = None,
    ) -> None:  # fmt: skip
        self._endpoint = rank_endpoint(endpoint, dp_rank)
        self._replay_endpoint = None if replay_endpoint is None else rank_endpoint(replay_endpoint, dp_rank)
        self._on_step, self._topic = on_step, topic
        self.stream = EngineStream(block_size, dp_rank, capacity, replays=replay_endpoint is not None)
        self.unanswered = 0
        """Replays that never ended."""
        self._tasks = TaskOwner(log)
        self._said: set[str] = set()

    def start(self) -> None:
        """Begin; raises `InvalidArgument` where pyzmq is missing."""
        try:
            import zmq.asyncio  # noqa: F401
        except ModuleNotFoundError as error:
            raise InvalidArgument(f"reading an engine's ZMQ events needs pyzmq: {install_hint('zmq')}") from error
        self._tasks.start(self._run(), f"KV events of {self._endpoint}")

    def stop(self) -> None:
        """End; `ended` waits for it."""
        self._tasks.cancel()

    async def ended(self) -> None:
        """Return once the sockets are closed."""
        await self._tasks.ended()

    async def _run(self) -> None:
        import zmq.asyncio

        context = zmq.asyncio.Context()
        try:
            events = self._connected(context, zmq.SUB, self._endpoint)
            events.setsockopt_string(zmq.SUBSCRIBE, self._topic)
            await self._catch_up(context)
            while True:
                self._live(await events.recv_multipart())
                await self._catch_up(context)
        finally:
            context.destroy(linger=LINGER)

    @staticmethod
    def _connected(context: zmq.asyncio.Context, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        import zmq

        socket = context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, MOST_QUEUED)
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        socket.setsockopt(zmq.LINGER, LINGER)
        socket.setsockopt(zmq.IPV6, 1)
        socket.connect(endpoint)
        return socket

    def _live(self, frames: Sequence[bytes]) -> None:
        try:
            if len(frames) != 3:
                raise UnreadableBatch(f"a message has three frames, not {len(frames)}")
            number = read_number(frames[1])
        except UnreadableBatch as error:
            self._say("unreadable", f"something that is no KV event: {error}")
            return
        before = self.stream.gaps, self.stream.restarts
        self._tell(self.stream.live(number, frames[2]))
        if self.stream.restarts > before[1]:
            log.info("the engine behind %s numbers from the start again: its cache is empty", self._endpoint)

    async def _catch_up(self, context: zmq.asyncio.Context) -> None:
        """Ask for what is missing, as often as something is."""
        while self._replay_endpoint is not None and (first := self.stream.ask()) is not None:
            try:
                await self._replay(context, self._replay_endpoint, first)
            finally:
                self._tell(self.stream.replay_over())

    async def _replay(self, context: zmq.asyncio.Context, endpoint: str, first: int) -> None:
        import zmq

        socket = self._connected(context, zmq.DEALER, endpoint)
        try:
            async with asyncio.timeout(REPLAY_SECONDS) as patience:
                await socket.send_multipart([b"", write_number(first)])
                while True:
                    # [empty, number, batch]; newer vLLM puts the topic before the number
                    *_, number_bytes, payload = await socket.recv_multipart()
                    if (number := read_number(number_bytes)) == END_OF_REPLAY:
                        return
                    self._tell(self.stream.replayed(number, payload))
                    patience.reschedule(asyncio.get_running_loop().time() + REPLAY_SECONDS)
        except (TimeoutError, UnreadableBatch, ValueError) as error:
            self.unanswered += 1
            self._say("replay", f"no replay: {str(error) or f'nothing came for {REPLAY_SECONDS:g} s'}")
        finally:
            socket.close(linger=LINGER)

    def _tell(self, steps: list[KvStep]) -> None:
        for step in steps:
            self._on_step(step)
        stream = self.stream
        if stream.gaps:
            self._say("gap", "numbers with a gap: what it lost is not known, and old blocks count as cached")
        if stream.unreadable:
            self._say("unreadable", f"something that is no KV event: {stream.complaint}")
        if stream.misfits:
            self._say("size", "blocks of another size than ours; those are left out")

    def _say(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning("the engine behind %s sends %s (said once)", self._endpoint, text)


def rank_endpoint(endpoint: str, dp_rank: int) -> str:
    """Return where to connect for one data-parallel rank, from what the engine was told to bind.

    Its rule, and ours for `*`.

    Raises `InvalidArgument` for what is no ZMQ address.
    """
    kind, separator, address = endpoint.partition("://")
    several = "inproc" in address  # vLLM looks for the word anywhere, so a socket's name may have it
    if not separator or kind not in ("tcp", "ipc") or (kind == "ipc" and dp_rank and not several):
        raise InvalidArgument(f"{endpoint!r} is no ZMQ address such as tcp://127.0.0.1:5557")
    if kind == "ipc":
        return f"{endpoint}_dp{dp_rank}" if dp_rank else endpoint
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) + dp_rank < 1 << 16:
        raise InvalidArgument(f"{endpoint!r} needs a host and a port")
    host = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host)
    return f"tcp://{host}:{int(port) + dp_rank}"
