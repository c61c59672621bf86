"""The one bounded HTTP protocol, over uvicorn's: requests as RFC 9112 wants them, within bounds of size.

uvicorn answers requests without `Host` or with two of them, and loses the body of one that offers `Upgrade`, since its
parser stops there. Whoever offers an upgrade is answered in HTTP/1.1, which the offer allows. uvicorn also bounds
nothing, and resets connections whose client still sends. The frontend's connections (`dynamo.frontend.http.connection`)
and the system servers' (`server.py`) are made of this; nothing else of ours touches what uvicorn keeps to itself.
Its rules for a host, a target and a version are functions at the end.
"""

from __future__ import annotations

import asyncio
import logging
import re
import select
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple
from typing import Protocol as Interface

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

TRAILERS: Final = 256
"""Headers that may follow a body; nobody reads them."""
_HOST: Final = re.compile(
    rb"(?:\[[0-9A-Za-z:.%_~-]{2,64}\]|[0-9A-Za-z._~!$&'()*+,;=%-]{0,255})(?::[0-9]{0,5})?"
)  # fmt: skip
_ABSOLUTE: Final = re.compile(rb"(?i)https?://([^/?#]*)(.*)", re.DOTALL)
_REQUEST_LINE: Final = re.compile(rb"(?:\r\n)*([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}) ([!-~]+) HTTP/1\.[01]\r?\n")
_OFFERS: Final = frozenset({b"upgrade", b"http2-settings"})
VERSIONS: Final = ("1.1", "1.0")
Fields = Sequence[tuple[bytes, bytes]]

log = logging.getLogger(__name__)


class Phase(Enum):
    """Which part of a request is being received; IDLE: none."""

    IDLE = auto()
    HEADERS = auto()
    BODY = auto()


class Fault(Enum):
    """Fault of a request that is refused before it is whole; the value is the status of its answer."""

    UNREADABLE = 400
    UNKNOWN_METHOD = 501
    URL_TOO_LONG = 414
    HEADERS_TOO_LARGE = 431
    TOO_LARGE = 413


class ByteBounds(Interface):
    """Bounds of what one request may send, in bytes."""

    @property
    def head(self) -> int:
        """Bound its headers, and what one read brings beyond them."""

    @property
    def whole(self) -> int | None:
        """Bound all of it: headers, body, trailers and the frames of its chunks; None: any number."""


class BoundedProtocol(HttpToolsProtocol):
    """Receive the requests of one connection.

    Subclasses say what they wait for and how long (`watch`), and how a request is refused (`refuse`). Its requests
    begin in `begin_request` and end in `end_request`.
    """

    def __init__(self, bounds: ByteBounds, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.bounds, self.url = bounds, b""
        self.phase, self.received = Phase.HEADERS, 0
        """`received`: bytes of the request that is being received."""
        self.deaf = False
        """Whatever comes is thrown away."""
        self.fault = ""
        """What was wrong with the request that couldn't be read."""
        self.timer: asyncio.TimerHandle | None = None
        """Ends what is waited for."""

    def watch(self) -> None:
        """Look after the time limits: something has come."""

    def refuse(self, fault: Fault) -> None:
        """Answer the request that is being received with an error, and close."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        if self.phase is not Phase.IDLE:
            self.received += len(data)
        self._unset_keepalive_if_required()
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                self._go_on(memoryview(data)[offer.args[0] :])
        except httptools.HttpParserInvalidMethodError:  # which it also says of what is no request at all
            if (url := url_of_unknown_method(data)) is None:
                self.send_400_response(self.fault)
            else:
                self.url = url
                self.refuse(Fault.UNKNOWN_METHOD)
        except Exception:  # httptools lets what its callbacks raise (a URL that can't be split) through
            log.debug("unreadable request", exc_info=True)
            self.send_400_response(self.fault)
        if not self.deaf and not self.transport.is_closing():
            self.watch()
            if self.phase is not Phase.IDLE:
                self._measure()

    def send_400_response(self, msg: str) -> None:
        self.fault = msg
        self.refuse(Fault.UNREADABLE)

    def on_message_begin(self) -> None:
        if self.phase is not Phase.HEADERS:
            self.phase, self.received = Phase.HEADERS, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.url) >= self.bounds.head:  # one read may bring more of a head than `_measure` lets come
            self.refuse(Fault.URL_TOO_LONG)
            raise BadRequestError("The request's URL is too long.")
        try:
            self._check()
        except BadRequestError as bad:
            self.fault = str(bad)
            raise
        if not self.parser.should_upgrade():  # else `_go_on` gives the request to another parser, without its offer
            self.begin_request()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self.end_request()

    def begin_request(self) -> None:
        """Serve a request whose headers are here."""
        super().on_headers_complete()
        self.phase = Phase.BODY
        self.headers = []  # trailers would become headers of the request, after whoever is in front of us set them

    def end_request(self) -> None:
        """Know that all of the request is here."""
        self.phase, self.url = Phase.IDLE, b""
        super().on_message_complete()

    def expect(self, seconds: float, late: Callable[[], None]) -> None:
        """Call `late` in so many seconds, instead of what was waited for."""
        self.expect_nothing()
        self.timer = self.loop.call_later(seconds, late)

    def expect_nothing(self) -> None:
        """Wait for nothing any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def write_refusal(self, status: int, body: bytes, fields: bytes = b"") -> None:
        """Write a whole answer that ends the connection, past whatever would have been answered; `body` is JSON."""
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + fields + head + b"\r\n" + body)

    def linger(self, seconds: float, end: Callable[[], None]) -> None:
        """Read on before `end`: closing with unread input would reset the connection and take the answer with it."""
        self.deaf = True
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        self.flow.resume_reading()
        if self.transport.can_write_eof():  # not on TLS, which has no half of a connection
            self.transport.write_eof()
        self.expect(seconds, end)

    @property
    def unread(self) -> bool:
        """Tell whether something has come that nobody has read: closing now would reset the connection."""
        sock = self.transport.get_extra_info("socket")
        if sock is None or (number := sock.fileno()) < 0:
            return False
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(0))

    def _measure(self) -> None:
        """Refuse a request that doesn't end. What the route reads of a body has a bound of its own."""
        if self.phase is Phase.HEADERS:
            if self.received > self.bounds.head:
                most = 2 * len(self.url) > self.received
                self.refuse(Fault.URL_TOO_LONG if most else Fault.HEADERS_TOO_LARGE)
        elif len(self.headers) > TRAILERS or (self.bounds.whole is not None and self.received > self.bounds.whole):
            self.refuse(Fault.TOO_LARGE)

    def _go_on(self, rest: memoryview) -> None:
        """Parse a request that offers an upgrade without its offer, and what follows it; raises as the parser does."""
        while True:
            self._parse_again()
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]

    def _parse_again(self) -> None:
        """Have another parser take the head without its offer; the first one takes nothing more."""
        version = self.parser.get_http_version()
        try:
            head = plain_head(self.parser.get_method(), self.url, version, self.headers)
        except BadRequestError as bad:
            self.fault = str(bad)
            raise
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(head)

    def _check(self) -> None:
        version = self.parser.get_http_version()
        check_version(version)
        check_host(version, self.headers)
        if self.url[:1] == b"/":
            return
        self.url, authority = target_of(self.parser.get_method(), self.url)
        if authority is not None:
            self.headers[:] = [field for field in self.headers if field[0] != b"host"] + [(b"host", authority)]


class BadRequestError(Exception):
    """A request that breaks a rule of HTTP/1.1; its text says which."""


class Target(NamedTuple):
    """Target of a request line."""

    path: bytes
    """With its query."""
    authority: bytes | None = None
    """From the absolute form, where it stands in for `Host`."""


def check_version(version: str) -> None:
    """Raise `BadRequestError` unless this version of HTTP is served."""
    if version not in VERSIONS:
        raise BadRequestError("The request names no version of HTTP that is served here: it takes HTTP/1.1.")


def check_host(version: str, fields: Fields) -> None:
    """Raise `BadRequestError` unless a request names its host as RFC 9112, section 3.2 wants it. Pure."""
    hosts = [value for name, value in fields if name == b"host"]
    if not hosts:
        if version == "1.1":
            raise BadRequestError("The request has no Host header; HTTP/1.1 asks for one.")
    elif len(hosts) > 1:
        raise BadRequestError(f"The request has {len(hosts)} Host headers; it may have one.")
    elif _HOST.fullmatch(hosts[0].strip(b" \t")) is None:
        raise BadRequestError("The request's Host header is no host name with an optional port.")


def url_of_unknown_method(data: bytes) -> bytes | None:
    """Return the URL of a request whose method no parser here knows; None where the bytes begin otherwise. Pure."""
    if (match := _REQUEST_LINE.match(data)) is None:
        return None
    method, url = match.groups()
    try:
        httptools.HttpRequestParser(object()).feed_data(method + b" / HTTP/1.1\r\n")
    except httptools.HttpParserInvalidMethodError:
        return url
    except httptools.HttpParserError:  # a method of another protocol
        pass
    return None


def target_of(method: bytes, url: bytes) -> Target:
    """Read a request target that doesn't begin with `/`; raise `BadRequestError` where it can't be served. Pure."""
    if (match := _ABSOLUTE.fullmatch(url)) is not None:
        authority, path = match.groups()
        if not authority or _HOST.fullmatch(authority) is None:
            raise BadRequestError("The request's URL has no usable host.")
        return Target(path if path.startswith(b"/") else b"/" + path, authority)
    if url == b"*" and method == b"OPTIONS":
        return Target(b"/")
    raise BadRequestError("The request's target is neither a path nor an http URL.")


def plain_head(method: bytes, url: bytes, version: str, fields: Fields) -> bytes:
    """Write the head of a request without its offer to change the protocol. Pure."""
    if method == b"CONNECT":
        raise BadRequestError("This is no proxy: CONNECT isn't served.")
    lines = [b"%s %s HTTP/%s" % (method, url, version.encode())]
    for name, value in fields:
        if b"\r" in value or b"\n" in value:
            raise BadRequestError("A header of the request has a line break.")
        if name == b"connection":
            kept = [token for token in value.split(b",") if token.strip().lower() not in _OFFERS]
            value = b",".join(kept)
        if name not in _OFFERS:
            lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join(lines) + b"\r\n\r\n"
