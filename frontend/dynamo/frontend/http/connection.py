"""One client connection: uvicorn's protocol with time limits, bounds and endings that lose no answer.

uvicorn parses and frames; what it lacks is here: clients that send half a header or stop in the middle of a body are
answered 408 and closed, a refused body is not reset under the client's feet, and a connection is closed in two steps:
else the kernel resets it, and with it an answer under way, for bytes that nobody has read. `server.py` makes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from dynamo.frontend.errors import ApiError, overloaded
from dynamo.frontend.http.chunked_answer import ChunkWriter, LingeringTransport, opener, unframe
from dynamo.frontend.http.connection_shares import ENDED, State
from dynamo.frontend.http.cors import Headers
from dynamo.frontend.http.requests import TOO_MUCH_AROUND, Scope, refusal_of
from dynamo.runtime.http.protocol import BadRequestError, BoundedProtocol, Fault, Phase

log = logging.getLogger(__name__)

CONNECTION: Final = "dynamo.connection"
"""Key of the ASGI scope under which a route finds its `Connection`."""
LINGER_SECONDS: Final = 2.0
_LINGERING: Final = 64
"""Connections that were turned away, or made room, and are told so; more are cut without a word."""
_PAUSE_SECONDS: Final = 1.0
_SPARED: Final = 3
"""Times that a late request gets a pause, since the kernel has something of it that nobody has read."""
_SMALL_CHUNKS: Final = 512
_CHUNK_BYTES: Final = 64
"""A body may have so many chunks, and one more for so many bytes that came: each is a call of the parser."""
_INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_QUESTIONS: Final = 3
_PATIENCE_SECONDS: Final = 0.2
_ANSWER_SECONDS: Final = 0.05
"""Between questions to a client that may have left, each of which costs two packets."""
CONNECTIONS_FULL: Final = "connections"
CLIENT_VANISHED: Final = "client_vanished"


class Connection(BoundedProtocol):
    """One client connection; `private`: on a socket of this machine that only its supervisor knows."""

    server_state: State

    def __init__(self, config: Config, state: State, *, private: bool = False) -> None:
        super().__init__(state.limits, config, state, {})
        self.private = private
        self._begun = False
        """A request has begun to come, and isn't whole."""
        self._body_began, self._body_chunks, self._spared = 0.0, 0, 0
        self._chunks: ChunkWriter | None = None
        """Of the answer that was begun last."""
        self._running: RequestResponseCycle | None = None
        self._over: tuple[RequestResponseCycle, asyncio.Future[None]] | None = None
        self._lingering = False
        """It has said all, and waits for the client to go."""
        self._counts_as_lingering = False
        self._last_word: ApiError | None = None
        """What ends the connection, after the answers to requests that came before."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._gentle = LingeringTransport(transport, self.close_gently)
        # Head and first bytes of an answer leave in one segment: one system call, and no wait for an acknowledgement.
        self.hold, self.release = self._gentle.hold, self._gentle.release
        crowd = self.server_state.crowd
        if not self.private and crowd.enter(self, self.client[0] if self.client else "") and not self._find_room():
            self._turn_away()
        else:
            self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.expect_nothing()
        self._linger_no_more()
        self.server_state.crowd.leave(self)
        if isinstance(exc, TimeoutError):  # what the kernel calls the end of its patience
            self.server_state.metrics.hit(CLIENT_VANISHED)
        if self._running is not None:  # uvicorn tells only the last of several that were sent at once
            self._gone(self._running)
        super().connection_lost(exc)
        self._look_again()
        self._let_go()

    def _let_go(self) -> None:
        """Let go of what leads back here, so that all of it goes with its last user: else the garbage collector, which
        looks rarely at what has lived for long, would find ten thousand ended streams at once.
        """
        self._is_over()
        self._unset_keepalive_if_required()  # which uvicorn does where the client has not reset the connection
        self.pipeline.clear()
        self.cycle, self._running, self.scope, self._chunks = ENDED, None, ENDED.scope, None
        self._gentle.forget()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that has said all, and may still listen; True keeps the connection until then.

        One that has left looks alike. An interim answer, which any client of HTTP/1.1 passes over, has its kernel say
        so; what is written after that fails, and ends the connection.
        """
        cycle = self.cycle
        if self.deaf or self.phase is not Phase.IDLE or cycle is None or cycle.response_started or self.pipeline:
            return False
        if self.scope["http_version"] != "1.1" or not self.transport.can_write_eof():  # TLS has no half of a connection
            return False
        cycle.keep_alive = False
        self.loop.call_later(_PATIENCE_SECONDS, self._ask_for_life, cycle, _QUESTIONS)  # most answers come sooner
        return True

    def _ask_for_life(self, cycle: RequestResponseCycle, times: int) -> None:
        if times and not cycle.response_started and not self.transport.is_closing():
            self.transport.write(_INTERIM)
            self.loop.call_later(_ANSWER_SECONDS, self._ask_for_life, cycle, times - 1)

    def on_message_begin(self) -> None:
        self._begun, self._spared = True, 0
        super().on_message_begin()

    def begin_request(self) -> None:
        self.expect_nothing()
        self._body_began, self._body_chunks = self.loop.time(), 0
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        super().begin_request()
        self.cycle.transport = cast("asyncio.Transport", self._gentle)
        if self.scope["http_version"] == "1.0":
            unframe(self.cycle)
        if self.server_state.draining:
            self.cycle.keep_alive = False
            if self.scope["method"] == "POST":
                self.server_state.asked = self.loop.time()

    def on_chunk_header(self) -> None:
        self._body_chunks += 1
        if self._body_chunks > _SMALL_CHUNKS + self.received // _CHUNK_BYTES:
            self.refuse(Fault.TOO_LARGE)
            raise BadRequestError(TOO_MUCH_AROUND)

    def end_request(self) -> None:
        self.expect_nothing()
        self._begun = False
        if not self.cycle.response_complete:
            self.server_state.crowd.works(self)
        super().end_request()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running, starts = cycle, self.server_state.starts
        if starts.admit():
            super()._start_asgi_task(cycle, app)
        else:
            starts.defer(partial(super()._start_asgi_task, cycle, app))

    def on_response_complete(self) -> None:
        self._is_over()
        self._look_again()
        if self._lingering:
            return
        if self._gentle.ends:  # as this answer has said: those that were sent behind it are for another connection
            self.pipeline.clear()
            self._last_word = None
        more = bool(self.pipeline)
        super().on_response_complete()
        if more or self.transport.is_closing():
            return
        self.server_state.crowd.waits(self)
        if self._last_word is not None:
            self._gentle.when_written(partial(self._say, self._last_word))

    def refuse(self, fault: Fault) -> None:
        self._refuse(refusal_of(fault, self.fault, self.bounds.head))

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless a request has come that a busy loop has had no time to read."""
        if self.unread:
            self.timeout_keep_alive_task = self.loop.call_later(_PAUSE_SECONDS, self.timeout_keep_alive_handler)
        elif not self.transport.is_closing():
            self._linger()

    def whole_body(self, scope: Any) -> bytes | None:
        """Return the body of a request that has come as a whole, as `receive` would, without a coroutine.

        None: ask `receive`. Only for bodies of announced size, which the parser keeps to.
        """
        cycle = self.cycle
        if cycle.more_body or cycle.scope is not scope or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()  # it tells of the body; the next event is the client's leaving
        return body

    def over(self, scope: Any) -> asyncio.Future[None] | None:
        """Return what is done once this request's answer has left, or its client has; None: ask `receive`.

        A future costs a third of uvicorn's event and coroutine.
        """
        cycle, over = self.cycle, self.loop.create_future()
        if cycle.scope is not scope or cycle.disconnected or cycle.response_complete:
            return None
        self._over = cycle, over
        return over

    def _is_over(self) -> None:
        waited, self._over = self._over, None
        if waited is not None and not waited[1].done():
            waited[1].set_result(None)

    def opener(self, send: Any) -> Callable[[int, Headers, bytes, bool], bool]:
        return opener(send.__self__, self.flow)

    def writer(self, send: Any) -> Callable[..., bool]:
        self._chunks = ChunkWriter(send.__self__, self.flow, self.transport.write)
        return self._chunks.write

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_again()

    def _look_again(self) -> None:
        if self._chunks is not None:
            self._chunks.look_again()

    def abort(self) -> None:
        """Cut the connection now, whatever is still unsent."""
        self.transport.abort()

    def close_gently(self) -> None:
        """Close once the client has had a chance to read the answer."""
        if self._lingering or self.transport.is_closing():
            return
        if not self.cycle.more_body and not self.transport.can_write_eof():  # TLS waits by itself for the other side
            self.transport.close()
        else:
            self._linger()

    def shutdown(self) -> None:
        """Leave: at once where nothing is asked, else with the answer."""
        if self.halfway:
            return
        if self.cycle is None or self.cycle.response_complete:
            self._linger()
        else:
            self.cycle.keep_alive = False

    @property
    def halfway(self) -> bool:
        """Tell whether a request is coming, or has come and waits in the kernel.

        It is answered before the connection ends.
        """
        if self.deaf or self.transport.is_closing():
            return False
        return (self.phase is Phase.HEADERS and self._begun) or (not self.flow.read_paused and self.unread)

    def make_room(self) -> None:
        """Go, since somebody else needs the place; whose request has begun to come is told so."""
        self.server_state.crowd.leave(self)
        self.server_state.metrics.rejected(CONNECTIONS_FULL)
        if self._begun and not self.deaf and not self.transport.is_closing():
            self._told_to_go("all connections are taken, and yours has waited longest")
        else:
            self.transport.close()

    def _find_room(self) -> bool:
        """Have another connection go; one with a request that nobody has read yet only where there is no better one."""
        candidates = list(self.server_state.crowd.candidates(self))
        chosen = next((other for other in candidates if not other.unread), candidates[0] if candidates else None)
        if chosen is not None:
            chosen.make_room()
        return chosen is not None

    def _turn_away(self) -> None:
        """Turn one connection too many away: tell it so, whatever it would ask."""
        self.server_state.crowd.leave(self)
        self.server_state.metrics.rejected(CONNECTIONS_FULL)
        self._told_to_go(f"this frontend has {self.server_state.limits.connections} connections already")

    def _told_to_go(self, why: str) -> None:
        state, answer = self.server_state, self._running
        begun = answer is not None and answer.response_started and not answer.response_complete
        if begun or state.lingering >= _LINGERING:
            self.transport.abort()
            return
        state.lingering += 1
        self._counts_as_lingering = True
        self._say(self._in_words(overloaded(f"{why}; try again in a moment.", CONNECTIONS_FULL)))

    def _linger_no_more(self) -> None:
        if self._counts_as_lingering:
            self._counts_as_lingering = False
            self.server_state.lingering -= 1

    def _linger(self) -> None:
        """Read on for a while, then cut."""
        self._lingering = True
        self.linger(LINGER_SECONDS, self.transport.abort)

    def watch(self) -> None:
        """Keep a timer while a request is only half there; whole requests never make one."""
        limits = self.server_state.limits
        if self.phase is Phase.IDLE and self.cycle.response_complete:
            self.phase, self.received = Phase.HEADERS, 0  # empty lines: they come before a request, which is begun
        if self.phase is Phase.HEADERS:
            if self.timer is None:
                self.expect(limits.headers, self._look_at_headers)
        elif self.phase is Phase.BODY:
            if self.timer is None:
                self.expect(limits.body, self._look_at_body)
        else:
            self.expect_nothing()

    def _look_at_headers(self) -> None:
        if self._not_its_fault():
            self.expect(_PAUSE_SECONDS, self._look_at_headers)
        else:
            self._late("headers")

    def _not_its_fault(self) -> bool:
        """Tell whether what is late may be here.

        Nobody reads it, since requests before it come first, or the loop stood still.
        """
        if self.flow.read_paused:
            return True
        self._spared += 1
        return self._spared <= _SPARED and self.unread

    def _look_at_body(self) -> None:
        """Give a body as long as what has come of it earns; time in which nobody reads it is not the client's."""
        limits, now = self.server_state.limits, self.loop.time()
        end = self._body_began + limits.body + self.received / limits.body_rate
        if now < end and not self.cycle.response_complete:
            self.expect(end - now, self._look_at_body)
        elif self._not_its_fault():
            self._body_began += _PAUSE_SECONDS
            self.expect(_PAUSE_SECONDS, self._look_at_body)
        else:
            self._late("body")

    def _late(self, what: str) -> None:
        self.timer = None
        self.server_state.metrics.hit(what)
        self._refuse(ApiError(408, f"The request's {what} did not arrive in time.", code="request_timeout"))

    def _in_words(self, error: ApiError) -> ApiError:
        """Return an error in the shape of the API that is asked, with the id of the request that is being received."""
        scope: Scope = {"path": "", "headers": []}
        if self.phase is Phase.BODY:
            scope = {**self.cycle.scope}  # the id is the one of the log, where its route has begun
        elif self._begun:
            scope = {"path": self.url.partition(b"?")[0].decode("latin-1"), "headers": self.headers}
        return self.server_state.in_words(scope, error)

    def _refuse(self, error: ApiError) -> None:
        """Answer the request that is being received with `error`, after those before it, and close."""
        if self.deaf or self.transport.is_closing():
            return
        error = self._in_words(error)
        whose = self.cycle if self.phase is Phase.BODY else None
        if whose is not None and self.pipeline and self.pipeline[0][0] is whose:
            self.pipeline.popleft()  # it hasn't begun, and won't
            whose, before = None, True
        else:
            before = whose is None and self.cycle is not None and not self.cycle.response_complete
        if before:
            self.deaf, self._last_word = True, error
            self.expect_nothing()
        elif whose is not None and whose.response_complete:
            self._linger()
        elif whose is not None and whose.response_started:
            self.transport.abort()  # an answer is on its way, which ours would be taken for
        else:
            self._say(error)

    def _say(self, error: ApiError) -> None:
        """Answer with `error` and close; whoever works for the request it belongs to sees a client that is gone."""
        level = logging.DEBUG if error.code == CONNECTIONS_FULL else logging.INFO
        log.log(level, "[%s] %d %s", dict(error.headers)["x-request-id"], error.status, error.message)
        fields = b"".join(b"%s: %s\r\n" % (name.encode(), value.encode()) for name, value in error.headers)
        self.write_refusal(error.status, error.body(), fields)
        if self.cycle is not None and not self.cycle.response_complete:
            self._gone(self.cycle)
        self._linger()

    def _gone(self, cycle: RequestResponseCycle) -> None:
        """Tell the route of a request that its client is gone, unless it is done."""
        if not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self._look_again()
            if self._over is not None and self._over[0] is cycle:
                self._is_over()
