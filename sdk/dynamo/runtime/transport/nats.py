"""The bus over a NATS server.

`NatsBus` keeps one connection for ever: it dials the configured and the discovered
servers in turn, reads the credential files anew each time, subscribes again, and says
so to who listens. nats-py does the handshake (TLS, user, token, nkey, credentials);
afterwards `nats_protocol` reads and writes. Nothing is buffered across an outage:
publishing while disconnected raises, since the layer above must know what was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client

from dynamo.runtime.config import NatsConfig
from dynamo.runtime.errors import CannotConnect, InvalidArgument
from dynamo.runtime.process.backoff import Backoff
from dynamo.runtime.process.event_loop import raise_if_cancelled
from dynamo.runtime.transport.bus import OnMessage
from dynamo.runtime.transport.nats_dialling import (
    Refused,
    collector,
    dial_options,
    dial_order,
    discard,
    failure,
    full_url,
    plain_address,
    take_over,
)
from dynamo.runtime.transport.nats_protocol import NatsProtocol

_log = logging.getLogger(__name__)

DIAL: Final = 5.0
"""Seconds that one server may take to answer."""
HURRY: Final = 1.0
"""Of a dial, and between pings, while there is another server: a lost node's doesn't refuse, it is silent."""
FLUSH: Final = 10.0
KEEP_ALIVE: Final = 5.0
"""Seconds between two pings of the only server; one that takes twice as long ends the connection."""
BACKOFF: Final = Backoff(0.1, 2.0, jitter=0.3)
SAY_EVERY: Final = 10.0
DEFAULT_MAX_PAYLOAD: Final = 1024 * 1024


class NatsSubscription:
    """One subject that this process listens to, through all reconnects."""

    def __init__(self, bus: NatsBus, number: int, subject: str, on_loss: Callable[[], None]) -> None:
        self._bus = bus
        self.number = number
        self.subject = subject
        self.on_loss = on_loss

    async def unsubscribe(self) -> None:
        await self._bus.unsubscribe(self)


class NatsBus:
    """Send and receive over NATS; the port is `dynamo.runtime.transport.bus.Bus`."""

    def __init__(self, config: NatsConfig, *, name: str = "dynamo") -> None:
        self._config = config
        self._name = name
        self._protocol: NatsProtocol | None = None
        self._client: Client | None = None
        self._max_payload = DEFAULT_MAX_PAYLOAD
        self._handlers: dict[int, OnMessage] = {}
        self._subscriptions: dict[int, NatsSubscription] = {}
        self._last_number = 0
        self._listeners: list[Callable[[bool], None]] = []
        self._discovered: list[str] = []
        self._server = ""
        """Address of the server that is connected, or was last."""
        self._keeper: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._refused = ""
        """What the server said last against a subscription."""
        self._said: dict[str, float] = {}
        self.errors = 0
        """Complaints of the server."""

    @property
    def max_payload(self) -> int:
        return self._max_payload

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    @property
    def _where(self) -> str:
        """Name the configured servers without their passwords."""
        return ", ".join(map(plain_address, self._config.servers))

    def _not_connected(self) -> CannotConnect:
        return CannotConnect(f"Not connected to NATS at {self._where}; retrying. Check NATS_SERVER.")

    # -- life

    async def connect(self) -> None:
        """Connect, waiting for a server that isn't there yet; `CannotConnect` after the start limit."""
        if self._keeper is not None:
            return
        try:
            async with asyncio.timeout(self._config.start_limit):
                connection = await self._dial_until_there(first=True)
        except TimeoutError:
            limit = f"{self._config.start_limit:g} s"
            raise CannotConnect(f"no NATS server at {self._where} within {limit}; check NATS_SERVER") from None
        self._keeper = asyncio.get_running_loop().create_task(self._keep(connection), name="nats")

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        protocol = self._protocol
        if protocol is not None:
            protocol.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await asyncio.shield(protocol.closed)
            protocol.abort()
        self._down()

    async def _keep(self, protocol: NatsProtocol) -> None:
        """Watch over the connection, and make another whenever it ends."""
        while True:
            await self._until_closed(protocol)
            self._down()
            _log.warning("Lost the connection to NATS at %s; reconnecting.", self._where)
            protocol = await self._dial_until_there(first=False)

    async def _until_closed(self, protocol: NatsProtocol) -> None:
        while not protocol.closed.done():
            every = HURRY if len(self._servers()) > 1 else KEEP_ALIVE
            await asyncio.wait((protocol.closed,), timeout=every)
            if protocol.closed.done():
                return
            pong = protocol.ping() if protocol.open else protocol.closed
            await asyncio.wait((pong, protocol.closed), timeout=2 * every)
            if not pong.done():
                _log.warning("NATS at %s does not answer pings; reconnecting.", self._where)
                protocol.abort()
                await asyncio.wait((protocol.closed,), timeout=KEEP_ALIVE)

    async def _dial_until_there(self, *, first: bool) -> NatsProtocol:
        """Try all servers, again and again."""
        failures = 0
        while True:
            servers = dial_order(self._servers(), self._server, random.random())
            for server in servers:
                hurried = failures == 0 and server != servers[-1]
                try:
                    protocol = await self._dial(server, HURRY if hurried else DIAL)
                    await self._bring_up(protocol, first)
                except (CannotConnect, OSError) as error:
                    if first and isinstance(error, Refused):
                        raise
                    self._say(f"waiting for NATS at {plain_address(server)}: {error}")
                else:
                    return protocol
            raise_if_cancelled()  # nats-py may have lost it
            failures += 1
            await asyncio.sleep(BACKOFF.delay(failures, random.random()))

    def _servers(self) -> list[str]:
        return [*self._config.servers, *self._discovered]

    async def _dial(self, server: str, limit: float = DIAL) -> NatsProtocol:
        """Connect to one server, authenticated."""
        client = Client()
        failures: list[Exception] = []
        options = dial_options(self._config, server)
        try:
            async with asyncio.timeout(limit):
                await client.connect(
                    servers=[server], name=self._name, error_cb=collector(failures), allow_reconnect=False,
                    max_reconnect_attempts=1, reconnect_time_wait=0, connect_timeout=int(limit), **options,
                )  # fmt: skip
        except Exception as error:  # nats-py, nkeys and ssl raise many kinds; each means that this dial failed
            await discard(client)
            cause = failures[-1] if failures and isinstance(error, nats.errors.NoServersError) else error
            raise failure(cause, server) from error
        except BaseException:
            await discard(client)
            raise
        if "tls" in options and not client._server_info.get("tls_required"):
            await discard(client)
            raise Refused(
                f"NATS at {plain_address(server)} does not speak TLS, which the address or NATS_TLS_* asks for"
            )
        self._max_payload, self._server = client.max_payload, server
        self._client = client  # it owns the stream objects around the transport
        protocol = NatsProtocol(self._handlers, self._on_error, self._on_info)
        take_over(client, protocol)
        return protocol

    async def _bring_up(self, protocol: NatsProtocol, first: bool) -> None:
        """Subscribe to everything, and tell who listens once the server has it."""
        for subscription in self._subscriptions.values():
            protocol.subscribe(subscription.subject, subscription.number)
        try:
            async with asyncio.timeout(DIAL):
                await protocol.ping()
        except (TimeoutError, CannotConnect):
            protocol.abort()
            raise CannotConnect("the server accepted the connection and then fell silent") from None
        self._protocol = protocol
        self._said.clear()
        self._up.set()
        if not first:
            _log.warning("Reconnected to NATS.")
            for subscription in tuple(self._subscriptions.values()):
                subscription.on_loss()
        for listener in tuple(self._listeners):
            listener(True)

    def _down(self) -> None:
        self._protocol = None
        self._client = None
        if self._up.is_set():
            self._up.clear()
            for listener in tuple(self._listeners):
                listener(False)

    # -- messages

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if (protocol := self._protocol) is None:
            raise self._not_connected()
        if len(data) > self._max_payload:
            raise InvalidArgument(f"a message of {len(data)} bytes is over the bus's limit of {self._max_payload}")
        protocol.publish(subject, data, reply)

    async def flush(self) -> None:
        if self._protocol is None:
            raise self._not_connected()
        try:
            async with asyncio.timeout(FLUSH):
                await self._protocol.ping()
        except TimeoutError:
            raise CannotConnect(f"NATS did not answer within {FLUSH:g} s") from None

    async def subscribe(self, subject: str, on_message: OnMessage, on_loss: Callable[[], None]) -> NatsSubscription:
        self._last_number += 1
        subscription = NatsSubscription(self, self._last_number, subject, on_loss)
        self._handlers[subscription.number] = on_message
        self._subscriptions[subscription.number] = subscription
        try:
            await self._activate(subscription)
        except BaseException:
            self._forget(subscription)
            if self._protocol is not None:
                self._protocol.unsubscribe(subscription.number)  # it may have got so far
            raise
        return subscription

    async def _activate(self, subscription: NatsSubscription) -> None:
        """Make the server send, as soon as there is one."""
        self._refused = ""
        try:
            async with asyncio.timeout(FLUSH):
                await self._up.wait()
        except TimeoutError:
            raise self._not_connected() from None
        if self._protocol is not None:
            # A second time where the return has just done it; the server ignores that.
            self._protocol.subscribe(subscription.subject, subscription.number)
        await self.flush()
        if f'"{subscription.subject}"' in self._refused:
            raise CannotConnect(f"NATS refuses: {self._refused}")

    async def unsubscribe(self, subscription: NatsSubscription) -> None:
        if subscription.number not in self._subscriptions:
            return
        if self._protocol is None:
            self._forget(subscription)
            return
        self._protocol.unsubscribe(subscription.number)
        try:
            await self.flush()  # what was on its way still arrives
        finally:
            self._forget(subscription)  # or a reconnect would bring it back

    def _forget(self, subscription: NatsSubscription) -> None:
        self._subscriptions.pop(subscription.number, None)
        self._handlers.pop(subscription.number, None)

    def on_state(self, listener: Callable[[bool], None]) -> None:
        self._listeners.append(listener)

    # -- what the server says

    def _on_error(self, text: str) -> None:
        self.errors += 1
        if "permissions violation for subscription" in text.lower():
            self._refused = text
        self._say(f"NATS reports: {text}")

    def _on_info(self, info: dict[str, Any]) -> None:
        known = {urlsplit(full_url(url)).netloc.rpartition("@")[2] for url in self._config.servers}
        scheme = urlsplit(full_url(self._config.servers[0])).scheme
        urls = [url for url in info.get("connect_urls") or [] if url not in known]
        self._discovered = [f"{scheme}://{url}" for url in urls]
        self._max_payload = int(info.get("max_payload", self._max_payload))

    def _say(self, text: str) -> None:
        """Log, but the same line only now and then."""
        now = time.monotonic()
        if now - self._said.get(text, -SAY_EVERY) >= SAY_EVERY:
            self._said[text] = now
            _log.warning("%s", text)
