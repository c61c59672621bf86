"""One connection to an etcd cluster: endpoints in turn, TLS, credentials, errors in our own terms.

aetcd brings etcd's messages and stubs; its client has one plain-text endpoint and a
watcher that can wait for ever, so the channel is made here. `etcd` puts the `Store`
port on top.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
from aetcd import rpc  # type: ignore[import-untyped]

from dynamo.runtime.config import EtcdConfig
from dynamo.runtime.discovery.store import LeaseLost
from dynamo.runtime.errors import CannotConnect, DynamoException, InvalidArgument
from dynamo.runtime.process.tasks import TaskOwner

T = TypeVar("T")

CALL_TIMEOUT: Final = 3.0
_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A stopped machine answers nothing and closes nothing: pings find it out.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_AWAY: Final = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}

_PREAMBLE: Final = re.compile(r"^(.*last error: )?((UNKNOWN|UNAVAILABLE): )?(ipv[46]:\S+: )?", re.DOTALL)

log = logging.getLogger(__name__)


class StaleToken(DynamoException):
    """etcd no longer takes the token that it gave: sign in again."""

    code = "stale_token"
    retryable = True


class Connection:
    """A channel to one endpoint, with the stubs on it."""

    def __init__(self, endpoint: str, config: EtcdConfig) -> None:
        self.endpoint = endpoint
        self.certificates = _certificates(config)
        self.channel = _channel(endpoint, self.certificates)
        self.kv = rpc.KVStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)
        self.auth = rpc.AuthStub(self.channel)
        self.user = config.username
        self.metadata: tuple[tuple[str, str], ...] | None = None if config.username else ()
        """None: sign in first."""


class Cluster:
    """The endpoints of one etcd, of which one is used at a time."""

    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._turn = 0
        self._connection: Connection | None = None
        self._signing_in = asyncio.Lock()
        self._closing = TaskOwner(log)

    @property
    def name(self) -> str:
        return ", ".join(self._config.endpoints)

    async def use(self) -> Connection:
        """Return the connection in use, signed in."""
        if self._connection is None:
            endpoint = self._config.endpoints[self._turn % len(self._config.endpoints)]
            self._connection = Connection(endpoint, self._config.with_files())
        connection = self._connection
        if connection.metadata is None:
            async with self._signing_in:
                if connection.metadata is None:
                    connection.metadata = await self._sign_in(connection)
        return connection

    async def call(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do `work` on the connection; a stale token is renewed once."""
        try:
            return await self._once(work)
        except StaleToken:
            return await self._once(work)

    def gone(self, connection: Connection) -> None:
        """Note that the connection failed.

        The next call takes the next endpoint (or the same one, where it is alone).
        """
        if connection is not self._connection:
            return
        if len(self._config.endpoints) > 1:
            self._drop()
            self._turn += 1
        elif connection.certificates != _certificates(self._config.with_files()):
            self._drop()  # gRPC dials again by itself, but with the certificates that it was given

    def silent(self, connection: Connection, what: str) -> NoReturn:
        """Raise that etcd `what`, and go on elsewhere."""
        if connection.user:
            connection.metadata = None  # as in `failed`
        self.gone(connection)
        raise CannotConnect(f"etcd at {connection.endpoint} {what}")

    async def close(self) -> None:
        self._drop()
        await self._closing.ended()

    async def _once(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        connection = await self.use()
        try:
            return await work(connection)
        except grpc.aio.AioRpcError as error:
            self.failed(connection, error)
        except asyncio.CancelledError:
            still_wanted()
            raise CannotConnect(f"etcd at {connection.endpoint}: the connection was closed") from None

    def failed(self, connection: Connection, error: grpc.aio.AioRpcError) -> NoReturn:
        """Raise what a failed call means."""
        meaning = translate(error, connection.endpoint, connection.user)
        if isinstance(meaning, StaleToken):
            connection.metadata = None
        elif isinstance(meaning, InvalidArgument) and not connection.user and connection is self._connection:
            self._drop()  # who we are may stand in a file by now
        elif isinstance(meaning, CannotConnect):
            if connection.user:
                # A token names a place in etcd's history; an etcd that lost its data would wait for it with every call.
                connection.metadata = None
            self.gone(connection)
        raise meaning from error

    async def _sign_in(self, connection: Connection) -> tuple[tuple[str, str], ...]:
        login = self._config.with_files()
        connection.user = login.username
        request = rpc.AuthenticateRequest(name=login.username, password=login.password)
        try:
            answer = await connection.auth.Authenticate(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                log.warning("etcd at %s asks for no password; ETCD_AUTH_USERNAME is not used", connection.endpoint)
                return ()
            self.failed(connection, error)
        return (("token", answer.token),)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._closing.start(connection.channel.close(), "close etcd channel")


def still_wanted() -> None:
    """Re-raise where the task itself was cancelled, and not the call by its channel's end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def translate(error: grpc.aio.AioRpcError, endpoint: str, user: str | None) -> DynamoException:
    """Return what a failed call of `user` means to us."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.NOT_FOUND and "lease" in details:
        return LeaseLost()
    if code is grpc.StatusCode.UNAUTHENTICATED or "revision of auth store is old" in details:
        return StaleToken()
    if "authentication failed" in details:
        return InvalidArgument(f"etcd at {endpoint} refuses user {user}: check ETCD_AUTH_PASSWORD")
    if "user name is empty" in details and user:
        return StaleToken()  # it asked for no password when we came
    if "user name is empty" in details:
        return InvalidArgument(f"etcd at {endpoint} asks who we are: set ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD")
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return InvalidArgument(f"etcd at {endpoint} does not let user {user} at keys under dynamo/")
    if code in _AWAY:
        return CannotConnect(f"etcd at {endpoint}: {_plain(details) or code.name.lower()}")
    return DynamoException(f"etcd at {endpoint}: {details or code.name.lower()}")


def _plain(details: str) -> str:
    """Return gRPC's sentence without its preamble; the endpoint is named already."""
    return _PREAMBLE.sub("", details)


Certificates = tuple[bytes | None, bytes | None, bytes | None]


def _certificates(config: EtcdConfig) -> Certificates:
    """Return authority, key and certificate, as gRPC wants them."""
    return (
        _read(config.ca, "ETCD_AUTH_CA"),
        _read(config.client_key, "ETCD_AUTH_CLIENT_KEY"),
        _read(config.client_cert, "ETCD_AUTH_CLIENT_CERT"),
    )


def _channel(endpoint: str, certificates: Certificates) -> Any:
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    target = f"{host}:{parts.port or 2379}"
    if parts.scheme != "https" and not any(certificates):
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(*certificates), options=_OPTIONS)


def _read(path: str | None, variable: str) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{variable}: {path} can't be read: {error.strerror}") from error
