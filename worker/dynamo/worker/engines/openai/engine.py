"""Engine `openai`: requests go on to a server that runs already, and its answers come back through our routing.

With a model path (its tokenizer is enough) the worker takes tokens and asks by token ids, so KV routing, exact usage
and migration work; without, it takes text. A server that is gone before an answer began ends the request so that
another worker is tried; one that is lost within an answer, so that it is continued elsewhere, where tokens are known.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from dynamo.llm.protocols import EOS, PreprocessedRequest, TextRequest
from dynamo.runtime.errors import (
    CapacityExceeded,
    Disconnected,
    DynamoException,
    EngineError,
    InvalidArgument,
)
from dynamo.runtime.process.extras import install_hint
from dynamo.worker.engine import Abort, EngineFacts, EngineLoad, Sink, nothing_wanted
from dynamo.worker.engines.openai import text_requests
from dynamo.worker.engines.openai.arguments import PLAIN, Upstream, upstream
from dynamo.worker.engines.openai.dialects import DIALECTS, Call, Dialect, fault
from dynamo.worker.engines.openai.events import DONE, EventReader
from dynamo.worker.engines.support.open_requests import OpenRequests
from dynamo.worker.engines.support.request_checks import check_open, room_for

if TYPE_CHECKING:
    import aiohttp

    from dynamo.llm import LocalModel
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)
_NO_LIMIT: Final = 1 << 31
_MOST_ERROR_BYTES: Final = 64 << 10
_CONNECT_SECONDS: Final = 5.0
_STOP_SECONDS: Final = 5.0


class OpenAiServer:
    """Ask an OpenAI-compatible server.

    Engine arguments: `url`, `api` (`auto`, `openai`, `vllm`, `sglang`, `llamacpp`), `server_model` (its name there),
    `api_key_env` (variable with the key), `max_requests`, `ready_secs`, `silence_secs`.
    """

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        self._server: Upstream = upstream(settings.arguments())
        self._headers = self._server.headers()
        self._text = not settings.model_path
        self._model, self._own_context = model, settings.context_length
        self._open: OpenRequests[asyncio.Task[None]] = OpenRequests()
        self._dialect: Dialect | None = None
        self._sessions: list[aiohttp.ClientSession] = []
        """One that keeps connections, and one that opens a new one for each request."""

    async def start(self) -> EngineFacts:
        try:
            import aiohttp

            from dynamo.worker.engines.openai.discovery import discover
        except ImportError as error:
            raise InvalidArgument(f"engine openai can't be loaded ({error}): {install_hint('openai')}") from error
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=self._server.silence_secs)
        most = self._server.max_requests + 2
        for connector in (aiohttp.TCPConnector(limit=most), aiohttp.TCPConnector(limit=most, force_close=True)):
            # Proxies of the environment and cookies have no say: the address is the one that was named.
            self._sessions.append(
                aiohttp.ClientSession(
                    headers=self._headers, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), connector=connector
                )
            )
        facts = await discover(self._sessions[0], self._server)
        self._name = facts.model
        contexts = [n for n in (facts.context_length, self._own_context) if n is not None]
        context = min(contexts) if contexts else None
        if self._text:
            log.info("%s serves %s, asked in text", self._server.root, facts.model)
            return EngineFacts(context_length=context, tool_call_parser=text_requests.TOOL_PARSER,
                               reasoning_parser=text_requests.REASONING_PARSER)  # fmt: skip
        if facts.api == PLAIN:
            raise InvalidArgument(
                f"{self._server.root} is none of {', '.join(DIALECTS)}, which name token ids: leave --model-path away"
            )
        self._dialect = DIALECTS[facts.api]
        self._context = context or self._model.card.context_length or _NO_LIMIT
        log.info("%s serves %s, asked by token ids as %s", self._server.root, facts.model, facts.api)
        return EngineFacts(
            context_length=self._context if self._context < _NO_LIMIT else None, guided=self._dialect.guided
        )

    async def failed(self) -> BaseException:
        """Wait for ever: a server that is gone is waited for, and its requests go to other workers meanwhile."""
        never: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        return await never

    async def stop(self) -> None:
        tasks = self._open.end_all()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        for session in self._sessions:
            await session.close()

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self._open))

    def submit(self, request: PreprocessedRequest | TextRequest, sink: Sink) -> Abort:
        self._open.check_closed()
        check_open(len(self._open), self._server.max_requests)
        if isinstance(request, TextRequest):
            if 0 in (request.body.get("max_tokens"), request.body.get("max_completion_tokens")):
                return nothing_wanted(sink)
            return self._begin(text_requests.call(request, self._name), _TextAnswer(self._open), sink)
        assert self._dialect is not None, "it has started"
        room = room_for(request, self._context)
        if request.stop_conditions.max_tokens == 0:
            return nothing_wanted(sink)
        call = self._dialect.call(request, self._name, room)
        return self._begin(call, _TokensAnswer(self._open, self._dialect, request, room), sink)

    def _begin(self, call: Call, answer: _TextAnswer | _TokensAnswer, sink: Sink) -> Abort:
        task = asyncio.get_running_loop().create_task(self._run(call, answer), name="openai request")
        self._open.add(task, sink)

        def abort() -> None:
            if self._open.drop(task):
                task.cancel()

        return abort

    async def _run(self, call: Call, answer: _TextAnswer | _TokensAnswer) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            going_on: Call | None = call
            while going_on is not None and not await self._stream(going_on, answer, task):
                going_on = answer.end(task)
        except DynamoException as error:
            self._open.fail(task, error)
        except Exception as error:  # whatever it is, it is this request's answer
            self._open.fail(task, self._meaning(error, answer))

    def _meaning(self, error: Exception, answer: _TextAnswer | _TokensAnswer) -> DynamoException:
        """Return a broken connection as what lets the frontend try another worker, or go on there."""
        import aiohttp

        if isinstance(error, (aiohttp.ClientError, TimeoutError, OSError)):
            # Clients aren't told where the server is.
            log.warning("%s: %s %s", self._server.root, type(error).__name__, error)
            if answer.begun:
                return Disconnected("the server behind this worker was lost")
            return CapacityExceeded("The server behind this worker does not answer. Retry later.")
        if isinstance(error, msgspec.MsgspecError):
            return EngineError(f"the server sent what could not be read: {error}")
        return EngineError(f"{type(error).__name__}: {error}")

    async def _stream(self, call: Call, answer: _TextAnswer | _TokensAnswer, task: asyncio.Task[None]) -> bool:
        """Hand on what one call streams; False where it was over before the answer was."""
        async with await self._post(call) as response:
            if response.status != 200:
                raise refusal(response.status, await response.content.read(_MOST_ERROR_BYTES))
            events = EventReader()
            async for chunk in response.content.iter_any():
                for event in events.feed(chunk):
                    if event == DONE:
                        break
                    if answer.take(task, event):
                        return True
        return False

    async def _post(self, call: Call) -> aiohttp.ClientResponse:
        """Return the answer's head. A kept connection may be one that the server closes just now: then a new one."""
        import aiohttp

        kept, fresh = self._sessions
        body, url = msgspec.json.encode(call.body), self._server.root + call.path
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        try:
            return await kept.post(url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await fresh.post(url, data=body, headers=headers, allow_redirects=False)


class _TokensAnswer:
    """Hands one answer's tokens on."""

    def __init__(
        self, open_requests: OpenRequests[asyncio.Task[None]], dialect: Dialect, request: PreprocessedRequest, room: int
    ) -> None:
        self._open, self._dialect, self._request, self._room = open_requests, dialect, request, room
        self._reader = dialect.reader(request)
        self._made: list[int] = []

    @property
    def begun(self) -> bool:
        """Tell whether there was output."""
        return bool(self._made)

    def take(self, task: asyncio.Task[None], event: bytes) -> bool:
        """Hand on what an event adds; True once the answer has ended."""
        piece = self._reader.read(event)
        if piece is None:
            return False
        self._made += piece.ids
        return self._open.hand(task, piece)

    def end(self, task: asyncio.Task[None]) -> Call:
        """Return the call that goes on; `Disconnected` where the server closed the stream without an end."""
        call = self._dialect.rest(self._request, self._made, self._room)
        if call is None:
            raise Disconnected("the server ended the stream without saying why")
        return call


class _TextAnswer:
    """Hands one answer's text on."""

    def __init__(self, open_requests: OpenRequests[asyncio.Task[None]]) -> None:
        self._open, self._reader = open_requests, text_requests.TextReader()
        self._counts: dict[str, int] = {}
        self.begun = False

    def take(self, task: asyncio.Task[None], event: bytes) -> bool:
        """Hand on what an event adds. The counts come after the end, so it is not over with that."""
        piece = self._reader.read(event)
        self._counts |= piece.counts or {}
        if piece.text:
            self.begun = True
            self._open.push(task, piece.text, None)
        return task not in self._open

    def end(self, task: asyncio.Task[None]) -> None:
        """End with what the server gave as reason; `Disconnected` where it gave none."""
        if self._reader.finish is None:
            raise Disconnected("the server ended the stream without saying why")
        self._open.finish(task, self._reader.finish or EOS, dict(self._counts) or None)


def refusal(status: int, body: bytes) -> DynamoException:
    """Return what an answer without a stream means to its client."""
    try:
        data = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        data = None
    told = fault(data) if isinstance(data, dict) else None
    text = str(told.message if told is not None else body[:300].decode("utf-8", "replace")) or "no reason given"
    if status in (400, 404, 413, 415, 422):
        return InvalidArgument(f"the server refuses the request ({status}): {text}")
    if status in (429, 503):
        return CapacityExceeded(f"the server is busy ({status}): {text}")
    return EngineError(f"the server answers {status}: {text}")
