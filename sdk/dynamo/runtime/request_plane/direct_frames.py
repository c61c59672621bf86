"""Frames that go from a worker to a client directly, where both are processes of one user on one machine.

A client that listens says so in its requests (`Request.offer`): the name of its socket and a secret for this worker.
Only who reads the worker's requests on the bus learns it. The worker connects and both prove that they know it; from
then on frames and heartbeats go there, and all else over the bus. Where anything fails, and when the stream ends,
frames go over the bus again: their numbers are counted per worker and client, whatever the way. `early_frames` puts
them in order while both ways are in use.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import secrets
from collections.abc import Callable
from typing import Final

from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.runtime.request_plane.inbox import Inbox
from dynamo.runtime.request_plane.peer import Peer
from dynamo.runtime.request_plane.wire import UNREADABLE, VERSION, Hello, decode_hello, encoder
from dynamo.runtime.transport.local_stream import AVAILABLE, FrameStream, Listener, ReadingTime, connect

_log = logging.getLogger(__name__)

MOST_LINKS: Final = 256
"""Streams of one process; further workers or clients use the bus."""
MOST_GREETING: Final = 32
"""Connections that haven't proved yet whose they are."""
READING: Final = 0.002
"""Seconds of one turn of the loop in which frames are handled, whoever sent them."""
GREETING: Final = 1.0
"""Seconds that the proofs may take."""
VALID: Final = 10.0
"""Seconds for which an offer holds."""
AGAIN: Final = 30.0
"""Seconds between two offers to one worker, and between two attempts of a worker that failed."""
MAX_UNSENT: Final = 64 * 1024 * 1024
"""Bytes that all clients of a worker together may leave unread: what NATS keeps for one of them."""
_SECRET: Final = 16
_OFFER: Final = 2 * _SECRET
_GREETING_BYTES: Final = 256


def worker_proof(secret: bytes, worker: int, sent: int) -> bytes:
    """Return what shows that a worker was told `secret`."""
    return hmac.digest(secret, b"worker %d %d" % (worker, sent), "sha256")


def client_proof(secret: bytes) -> bytes:
    """Return what shows that a client made `secret`."""
    return hmac.digest(secret, b"client", "sha256")


class DirectReceiver:
    """Client side: makes offers, and takes in the streams of workers that accepted one."""

    def __init__(
        self, on_frame: Callable[[Inbox, bytes], None], clock: Callable[[], float], max_frame: Callable[[], int]
    ) -> None:
        self._on_frame, self._clock, self._max_frame = on_frame, clock, max_frame
        self._name = secrets.token_bytes(_SECRET)
        self._listener: Listener | None = None
        self._offers: dict[Inbox, tuple[bytes, float]] = {}
        """The last offer to each worker, and when it was made; it is used up by an empty secret."""
        self._links: dict[Inbox, FrameStream] = {}
        self._greeting: dict[FrameStream, asyncio.TimerHandle] = {}
        self._reading = ReadingTime(READING, clock)

    def __len__(self) -> int:
        return len(self._links)

    async def start(self) -> None:
        """Listen from now on; without a socket all goes over the bus."""
        if self._listener is not None or not AVAILABLE:
            return
        try:
            self._listener = await Listener.at(self._name.hex(), _GREETING_BYTES, self._on_open)
        except CannotConnect as error:
            _log.info("Answers come over the bus only: %s", error)

    def offer(self, inbox: Inbox) -> bytes:
        """Return the offer that goes with a request; empty where there is none to make."""
        if self._listener is None or not inbox.linkable or len(self._links) >= MOST_LINKS:
            return b""
        now = self._clock()
        last = self._offers.get(inbox)
        if last is not None and now - last[1] < AGAIN:
            return b""
        secret = secrets.token_bytes(_SECRET)
        self._offers[inbox] = secret, now
        return self._name + secret

    def forget(self, inbox: Inbox) -> None:
        """Forget a worker."""
        self._offers.pop(inbox, None)
        self.hang_up(inbox)

    def hang_up(self, inbox: Inbox) -> None:
        """End a worker's stream, where it has one: it goes on over the bus."""
        if (stream := self._links.get(inbox)) is not None:
            stream.abort()

    def stop(self) -> None:
        """End all streams, and listen no longer."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for stream in [*self._greeting, *self._links.values()]:
            stream.abort()
        self._offers.clear()

    def _on_open(self, stream: FrameStream) -> None:
        if len(self._greeting) >= MOST_GREETING:
            stream.abort()
            return
        self._greeting[stream] = asyncio.get_running_loop().call_later(GREETING, stream.abort)
        stream.on_frame = functools.partial(self._on_hello, stream)
        stream.on_closed = functools.partial(self._greeted, stream)

    def _greeted(self, stream: FrameStream) -> None:
        if (timer := self._greeting.pop(stream, None)) is not None:
            timer.cancel()

    def _on_hello(self, stream: FrameStream, data: bytes) -> None:
        self._greeted(stream)
        try:
            hello = decode_hello(data)
        except UNREADABLE:
            stream.abort()
            return
        inbox = self._meant(hello)
        if inbox is None or len(self._links) >= MOST_LINKS:
            stream.abort()
            return
        secret, made = self._offers[inbox]
        self._offers[inbox] = b"", made
        stream.most = self._max_frame()
        stream.on_frame = functools.partial(self._on_frame, inbox)
        stream.reading = self._reading
        stream.on_closed = functools.partial(self._on_closed, inbox)
        self._links[inbox] = stream
        inbox.link(hello.sent, stream)
        stream.send(client_proof(secret))

    def _meant(self, hello: Hello) -> Inbox | None:
        """Return the inbox whose offer the worker proves to know, once for each offer."""
        oldest = self._clock() - VALID
        for inbox, (secret, made) in self._offers.items():
            if secret and made >= oldest and inbox.key.id == hello.worker and hello.version == VERSION:
                proof = worker_proof(secret, hello.worker, hello.sent)
                if hmac.compare_digest(proof, hello.proof) and inbox not in self._links:
                    return inbox
        return None

    def _on_closed(self, inbox: Inbox) -> None:
        self._links.pop(inbox, None)
        inbox.unlink(self._clock())


class DirectSender:
    """Worker side: takes clients' offers up."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tasks = TaskOwner(_log)
        self._links: set[FrameStream] = set()
        self._connecting: set[Peer] = set()

    def __len__(self) -> int:
        return len(self._links)

    def take_up(self, peer: Peer, offer: bytes) -> None:
        """Connect to a client that offers it, unless that failed a moment ago."""
        if len(offer) != _OFFER or not AVAILABLE or peer.link is not None or peer in self._connecting:
            return
        if self._clock() < peer.direct_after or len(self._links) + len(self._connecting) >= MOST_LINKS:
            return
        peer.direct_after = self._clock() + AGAIN / 2
        self._connecting.add(peer)
        self._tasks.start(self._connect(peer, offer, peer.outbox.seq), "connect for frames")

    async def _connect(self, peer: Peer, offer: bytes, sent: int) -> None:
        name, secret = offer[:_SECRET].hex(), offer[_SECRET:]
        try:
            stream = await connect(name, _GREETING_BYTES)
            try:
                await _greet(stream, peer.outbox.worker, sent, secret)
                self._use(peer, stream)
            except BaseException:
                stream.abort()
                raise
        except (CannotConnect, TimeoutError) as error:
            _log.debug("client %x gets its frames over the bus: %s", peer.client, error)
        finally:
            self._connecting.discard(peer)

    def _use(self, peer: Peer, stream: FrameStream) -> None:
        if peer.forgotten:  # it would be counted from 1 again
            raise CannotConnect("the client was forgotten meanwhile")
        peer.link = stream
        self._links.add(stream)
        self._share()
        stream.on_closed = functools.partial(self._on_closed, peer, stream)

    def _on_closed(self, peer: Peer, stream: FrameStream) -> None:
        self._links.discard(stream)
        self._share()
        if peer.link is stream:
            peer.link = None

    def _share(self) -> None:
        """Give each client its part of what may be unread."""
        for stream in self._links:
            stream.most_unsent = MAX_UNSENT // len(self._links)

    async def stop(self) -> None:
        """Hang up, once clients have taken what was sent."""
        self._tasks.cancel()
        await self._tasks.ended()
        for stream in tuple(self._links):
            stream.close()
        await asyncio.gather(*(stream.ended(GREETING) for stream in tuple(self._links)))


async def _greet(stream: FrameStream, worker: int, sent: int, secret: bytes) -> None:
    """Show the client that we know its secret, and have it show the same."""
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def settle(answer: bytes = b"") -> None:
        if not answered.done():
            answered.set_result(answer)

    stream.on_frame, stream.on_closed = settle, settle
    stream.send(encoder.encode(Hello(VERSION, worker, sent, worker_proof(secret, worker, sent))))
    async with asyncio.timeout(GREETING):
        answer = await answered
    if not stream.open or not hmac.compare_digest(answer, client_proof(secret)):
        raise CannotConnect("the client didn't answer as it should")
