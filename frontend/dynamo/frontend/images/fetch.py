"""Images by http and https, from public addresses only.

A host is resolved here, all of its addresses are looked at, and the connection goes to one of those: nobody resolves it
again. Each redirect is looked at like the first URL. Size and time are bounded; what comes is read as far as they go.
Proxies of the environment aren't used: they would resolve the host by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

import httptools

from dynamo.frontend.images.addresses import is_public

REDIRECTS: Final = 3
AT_ONCE: Final = 128
"""Fetches of a process at once; more wait, for as long as their request may."""
LONGEST_URL: Final = 4096
_RESOLVING: Final = 8
"""Names that are looked up at once, in threads: some resolvers take half a minute."""
_TRIED: Final = 3
"""Addresses of one host."""
_MOST_HEADERS: Final = 64 << 10
_READ: Final = 16 << 10
"""Bytes that are read at once: chunks of one byte each take their time."""
_PORTS: Final = {"http": 80, "https": 443}
_OPEN_FROM: Final = 1024
"""Below that only the two: others are no web servers, and some do what they are sent."""
_REDIRECT: Final = frozenset((301, 302, 303, 307, 308))
_PRINTABLE: Final = re.compile(r"[!-~]+")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")

Resolve = Callable[[str, int], Awaitable[list[str]]]


class FetchError(Exception):
    """Why an image can't be fetched, in words for its client."""


class TooLargeError(FetchError):
    """It has more bytes than are left."""


class Target(NamedTuple):
    """One URL, taken apart."""

    secure: bool
    host: str
    port: int
    path: str
    authority: str


class ByteRoom:
    """Bytes that the images of one request may still have."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        """Take some; raises `TooLargeError` where there are none left."""
        self.left -= count
        if self.left < 0:
            raise TooLargeError("it is too large")


def target_of(url: str) -> Target:
    """Return what a URL names; `FetchError` for one that isn't asked."""
    if len(url) > LONGEST_URL or not _PRINTABLE.fullmatch(url):
        raise FetchError(f"its URL has more than {LONGEST_URL} characters, or others than ASCII's printable ones")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise FetchError("its URL can't be read") from None
    scheme, host = parts.scheme.lower(), parts.hostname or ""
    if scheme not in _PORTS:
        raise FetchError("its URL is none of http:, https: and data:")
    if "@" in parts.netloc or not _HOST.fullmatch(host):
        raise FetchError("its URL has a user, or no host in ASCII")
    port = _PORTS[scheme] if port is None else port
    if port not in _PORTS.values() and port < _OPEN_FROM:
        raise FetchError(f"its URL names port {port}: 80, 443 and those from {_OPEN_FROM} are asked")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    name = f"[{host}]" if ":" in host else host
    return Target(scheme == "https", host, port, path, name if port == _PORTS[scheme] else f"{name}:{port}")


class ImageFetcher:
    """Fetches images, a bounded number at once."""

    def __init__(self, resolve: Resolve | None = None, allowed: Callable[[str], bool] = is_public) -> None:
        self._resolver = ThreadPoolExecutor(_RESOLVING, "resolve") if resolve is None else None
        self._resolve, self._allowed = resolve or self._lookup, allowed
        self._places = asyncio.Semaphore(AT_ONCE)
        self._tls: ssl.SSLContext | None = None

    def close(self) -> None:
        """Look up nothing more."""
        if self._resolver is not None:
            self._resolver.shutdown(wait=False, cancel_futures=True)

    async def fetch(self, url: str, room: ByteRoom) -> bytes:
        """Return what stands at `url`; raises `FetchError`. The caller bounds its time."""
        async with self._places:
            for _ in range(REDIRECTS + 1):
                target = target_of(url)
                answer = await self._ask(target, room)
                if answer.status not in _REDIRECT:
                    return _body(answer)
                if answer.location is None:
                    raise FetchError("it is redirected to nowhere")
                following = urljoin(url, answer.location)
                if target.secure and not following.lower().startswith("https:"):
                    raise FetchError("it is redirected from https to http")
                url = following
        raise FetchError(f"it is redirected more than {REDIRECTS} times")

    async def _ask(self, target: Target, room: ByteRoom) -> _Answer:
        async with self._connection(target) as (reader, writer):
            lines = (
                f"GET {target.path} HTTP/1.1", f"Host: {target.authority}", "User-Agent: dynamo-pipelines",
                "Accept: image/png, image/jpeg, image/webp, image/gif", "Accept-Encoding: identity",
                "Connection: close", "", "",
            )  # fmt: skip
            writer.write("\r\n".join(lines).encode("ascii"))
            answer = _Answer(room)
            parser = httptools.HttpResponseParser(answer)
            answer.status_of = parser.get_status_code
            try:
                while not answer.whole:
                    data = await reader.read(_READ)
                    if not data:
                        answer.ended()
                        break
                    answer.count(len(data))
                    parser.feed_data(data)
            except httptools.HttpParserError as error:
                cause = error.__context__
                raise (
                    cause if isinstance(cause, FetchError) else FetchError("its server's answer can't be read")
                ) from None
            except (OSError, ssl.SSLError):
                raise FetchError("its server ended the connection") from None
            return answer

    @contextlib.asynccontextmanager
    async def _connection(self, target: Target) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect to an address that was looked at."""
        addresses = await self._addresses(target)
        tls = await self._context() if target.secure else None
        for address in addresses[:_TRIED]:
            try:
                reader, writer = await asyncio.open_connection(
                    address, target.port, ssl=tls, server_hostname=target.host if tls else None, limit=2 * _READ
                )
            except (OSError, ssl.SSLError):
                continue
            try:
                yield reader, writer
            finally:
                writer.transport.abort()
            return
        raise FetchError("its server can't be reached")

    async def _addresses(self, target: Target) -> list[str]:
        """Return a host's addresses; one that isn't public spoils all, and says no more than an unknown host."""
        try:
            addresses = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError):
            addresses = []
        if not addresses or not all(map(self._allowed, addresses)):
            raise FetchError("its host has no public address")
        return addresses

    async def _lookup(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        entries = await loop.run_in_executor(self._resolver, _getaddrinfo, host, port)
        return list(dict.fromkeys(str(entry[4][0]) for entry in entries))

    async def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = await asyncio.to_thread(_trusting)  # reading the authorities takes some milliseconds
        return self._tls


class _Answer:
    """What a server has sent so far; httptools calls its methods."""

    def __init__(self, room: ByteRoom) -> None:
        self._room, self._head = room, 0
        self.status = 0
        self.status_of: Callable[[], int] = int
        self.location: str | None = None
        self.encoded = self.whole = self._begun = False
        self._close_ends = True
        self.body = bytearray()

    def count(self, size: int) -> None:
        """Bound what comes before the body."""
        if not self._begun:
            self._head += size
            if self._head > _MOST_HEADERS + _READ:
                raise FetchError("its server's answer has too many headers")

    def on_status(self, status: bytes) -> None:
        """Note that a status has come."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        match name.lower():
            case b"location":
                self.location = value.decode("latin-1")
            case b"content-encoding":
                self.encoded = value.strip().lower() not in (b"", b"identity")
            case b"content-length":
                self._close_ends = False
                if value.strip().isdigit() and int(value) > self._room.left:
                    raise TooLargeError("it is too large")
            case b"transfer-encoding":
                self._close_ends = False

    def on_headers_complete(self) -> None:
        """Note that the body begins."""
        self.status, self._begun = self.status_of(), True
        self.whole = self.status in _REDIRECT  # what else it says is of no use

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        self._room.take(len(data))
        self.body += data

    def on_message_complete(self) -> None:
        """Note that all of it is here."""
        self.whole = True

    def ended(self) -> None:
        """Note that the connection has ended; raises where that is too early."""
        if not self._begun or not self._close_ends:
            raise FetchError("its server ended the connection")
        self.whole = True


def _body(answer: _Answer) -> bytes:
    if answer.status != 200:
        raise FetchError(f"its server answers {answer.status}")
    if answer.encoded:
        raise FetchError("its server compresses what it was asked not to")
    return bytes(answer.body)


def _getaddrinfo(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _trusting() -> ssl.SSLContext:
    """Return the context for the authorities of this machine, and those that httpx brings."""
    context = ssl.create_default_context()
    with contextlib.suppress(ImportError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context
