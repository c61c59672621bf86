"""Engine `openai`: requests go on to a server that runs already, and its answers come back through our routing.

With a model path (its tokenizer is enough) the worker takes tokens and asks by token ids, so KV routing, exact usage
and migration work; without, it takes text. A server that is gone before an answer began ends the request so that
another worker is tried; one that is lost within an answer, so that it is continued elsewhere, where tokens are known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from dynamo.llm.model_card import ImageTraits
from dynamo.llm.protocols import PreprocessedRequest, SamplingOptions, StopConditions, TextRequest
from dynamo.runtime.errors import (
    CapacityExceeded,
    Disconnected,
    DynamoException,
    EngineError,
    InvalidArgument,
)
from dynamo.runtime.process.extras import install_hint
from dynamo.runtime.process.tasks import unless_dead
from dynamo.worker.engine import Abort, EngineFacts, EngineLoad, KvListener, Sink, nothing_wanted
from dynamo.worker.engines.openai import text_requests
from dynamo.worker.engines.openai.answers import TextAnswer, TokensAnswer, refusal
from dynamo.worker.engines.openai.arguments import PLAIN, Upstream, upstream
from dynamo.worker.engines.openai.child_server import ChildServer
from dynamo.worker.engines.openai.content_parts import BY_IDS, IN_TEXT
from dynamo.worker.engines.openai.dialects import DIALECTS, Call, Dialect
from dynamo.worker.engines.openai.events import DONE, EventReader
from dynamo.worker.engines.openai.server_faults import ANSWER, ServerFaults
from dynamo.worker.engines.support.open_requests import OpenRequests
from dynamo.worker.engines.support.request_checks import check_ids, check_open, room_for
from dynamo.worker.engines.support.zmq_kv_events import NativeKvEvents

if TYPE_CHECKING:
    from prometheus_client import Metric

    from dynamo.llm import LocalModel
    from dynamo.worker.engines.openai.connections import Connections
    from dynamo.worker.engines.openai.discovery import ServerFacts
    from dynamo.worker.engines.openai.server_metrics import ServerLoad
    from dynamo.worker.engines.openai.server_watch import ServerWatch
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)
_NO_LIMIT: Final = 1 << 31
_MOST_ERROR_BYTES: Final = 64 << 10
_STOP_SECONDS: Final = 5.0
_SILENT_PROMPTS: Final = 20
"""Prompts after which a server with KV events should have published one."""


class OpenAiServer:
    """Ask an OpenAI-compatible server.

    `arguments.py` has the engine arguments.
    """

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        self._server: Upstream = upstream(settings.arguments())
        self._headers = self._server.headers()
        self._text = not settings.model_path
        if self._server.images and not self._text:
            raise InvalidArgument("openai argument 'images': token ids carry none; leave --model-path away")
        self._model, self._own_context = model, settings.context_length
        self._block_size = settings.block_size
        self._open: OpenRequests[asyncio.Task[None]] = OpenRequests()
        self._dialect: Dialect | None = None
        self._faults = ServerFaults(self._server.root)
        self._child = ChildServer(self._server.command) if self._server.command else None
        self._connections: Connections | None = None
        self._watch: ServerWatch | None = None
        self._native: NativeKvEvents | None = None
        self._prompts = 0
        """Prompts that filled a KV block."""
        self._waits = ""
        """What the start waits for."""

    async def start(self) -> EngineFacts:
        try:
            from dynamo.worker.engines.openai.connections import Connections
            from dynamo.worker.engines.openai.server_watch import ServerWatch
        except ImportError as error:
            raise InvalidArgument(f"engine openai can't be loaded ({error}): {install_hint('openai')}") from error
        self._connections = Connections(self._server, self._headers)
        if self._child is not None:
            await self._child.start()
        facts = await self._discovered(self._connections)
        self._name, self._announced = facts.model, facts.context_length
        contexts = [n for n in (facts.context_length, self._own_context) if n is not None]
        context = min(contexts) if contexts else None
        if not self._text:
            self._dialect = self._dialect_of(facts)
            self._context = context or self._model.card.context_length or _NO_LIMIT
            context = self._context if self._context < _NO_LIMIT else None
        log.info("%s serves %s, asked %s", self._server.root, facts.model,
                 "in text: a stream that has begun ends with an error where the server is lost" if self._dialect is None
                 else f"by token ids as {facts.api}: another worker can continue a stream")  # fmt: skip
        self._watch = ServerWatch(
            self._connections.kept, self._server, facts, context=facts.context_length and context, opened=self._open,
            question=self._question(),
        )  # fmt: skip
        load = await self._watch.measure()
        self._watch.start()
        return self._facts(context, load)

    async def _discovered(self, connections: Connections) -> ServerFacts:
        """Return what the server is; `EngineError` as soon as one that was started here has ended."""
        from dynamo.worker.engines.openai.discovery import discover

        discovery = discover(connections.kept, self._server, self._tell_waits)
        return await discovery if self._child is None else await unless_dead(self.failed, discovery)

    def _tell_waits(self, why: str) -> None:
        self._waits = why

    def _dialect_of(self, facts: ServerFacts) -> Dialect:
        if facts.api == PLAIN:
            raise InvalidArgument(
                f"{self._server.root} is none of {', '.join(DIALECTS)}, which name token ids: leave --model-path away"
            )
        return DIALECTS[facts.api]

    def _question(self) -> Call:
        """Return a request for one token."""
        if self._dialect is None:
            body = {"prompt": "1", "max_tokens": 1}
            return text_requests.call(TextRequest(model=self._name, kind="completions", body=body), self._name)
        first = self._model.card.bos_token_id
        request = PreprocessedRequest(
            model=self._name, token_ids=[1 if first is None else first],
            stop_conditions=StopConditions(max_tokens=1, ignore_eos=True),
            sampling_options=SamplingOptions(temperature=0.0),
        )  # fmt: skip
        return self._dialect.call(request, self._name, 1)

    def _facts(self, context: int | None, load: ServerLoad | None) -> EngineFacts:
        if self._dialect is None:
            return EngineFacts(
                context_length=context, tool_call_parser=text_requests.TOOL_PARSER,
                reasoning_parser=text_requests.REASONING_PARSER, images=ImageTraits() if self._server.images else None,
                images_hint="" if self._server.images else IN_TEXT,
            )  # fmt: skip
        blocks = load.blocks if load is not None else None
        size = self._block_size = (load.block_size if load is not None else None) or self._block_size
        ranks = self._server.data_parallel_size
        if self._server.kv_events:
            self._native = NativeKvEvents(
                self._server.kv_events, size, replay_endpoint=self._server.kv_events_replay or None,
                total_kv_blocks=blocks, ranks=range(ranks),
            )  # fmt: skip
        return EngineFacts(
            context_length=context, guided=self._dialect.guided, kv_cache_block_size=size, total_kv_blocks=blocks,
            data_parallel_size=ranks, kv_events=self._native is not None,
            images_hint=BY_IDS,
        )  # fmt: skip

    async def failed(self) -> BaseException:
        """Wait for the end of a server that was started here. One elsewhere that is gone is waited for."""
        if self._child is not None:
            return await self._child.failed()
        never: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        return await never

    async def stop(self) -> None:
        tasks = self._open.end_all()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        if self._watch is not None:
            await self._watch.stop()
        if self._native is not None:
            await self._native.stop()
        if self._connections is not None:
            await self._connections.close()
        if self._child is not None:
            await self._child.stop()

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self._open)) if self._watch is None else self._watch.load()

    def metrics(self) -> Iterator[Metric]:
        """Return what is known of the server, and what was wrong with what it said."""
        away = "" if self._watch is None else self._watch.availability.why
        return self._faults.collect(self._model.card.name, away)

    def remarks(self) -> list[str]:
        """Return what its user should know, as `Remarking` has it."""
        return [*filter(None, (self._waits, self._silence())), *self._faults.remarks()]

    def _silence(self) -> str:
        """Return what is wrong where a server that should publish KV events never did."""
        if self._native is None or self._prompts < _SILENT_PROMPTS or not self._native.silent:
            return ""
        return (
            f"no KV event came from {self._server.kv_events} with {self._prompts} prompts: the server has to listen "
            "there; vLLM does with an endpoint tcp://*:PORT, and connects where it has an address"
        )

    def on_away(self, tell: Callable[[str], None]) -> None:
        """Tell why the server can't be asked, as `Absent` has it."""
        assert self._watch is not None, "it has started"
        self._watch.on_change = tell

    def on_adapters(self, tell: Callable[[Sequence[str]], None]) -> None:
        """Tell the adapters that the server lists, as `Adapting` has it."""
        assert self._watch is not None, "it has started"
        self._watch.on_adapters(tell)

    def on_kv(self, listener: KvListener) -> None:
        """Listen as `KvCaching` has it."""
        assert self._native is not None, "its facts say so"
        self._native.on_kv(listener)
        self._native.start()

    def submit(self, request: PreprocessedRequest | TextRequest, sink: Sink) -> Abort:
        return self._submit(request, sink, self._name, "")

    def submit_to(self, adapter: str, request: PreprocessedRequest | TextRequest, sink: Sink) -> Abort:
        """Take a request for an adapter, as `Adapting` has it."""
        return self._submit(request, sink, adapter, adapter)

    def _submit(self, request: PreprocessedRequest | TextRequest, sink: Sink, name: str, adapter: str) -> Abort:
        self._open.check_closed()
        check_open(len(self._open), self._server.max_requests)
        if isinstance(request, TextRequest):
            if 0 in (request.body.get("max_tokens"), request.body.get("max_completion_tokens")):
                return nothing_wanted(sink)
            texts = TextAnswer(self._open, self._faults, request, self._announced)
            return self._begin(text_requests.call(request, name, images=self._server.images), texts, sink)
        assert self._dialect is not None, "it has started"
        check_ids(request, self._model.card.vocab_size)  # SGLang's server dies of one that it hasn't got
        room = room_for(request, self._context)
        if request.stop_conditions.max_tokens == 0:
            return nothing_wanted(sink)
        call = self._dialect.call(request, name, room)
        if adapter and self._dialect.adapter_field:
            call.body[self._dialect.adapter_field] = adapter
        answer = TokensAnswer(self._open, self._faults, self._dialect, request, room)
        return self._begin(call, answer, sink, fills_block=not adapter and len(request.token_ids) >= self._block_size)

    def _begin(self, call: Call, answer: TextAnswer | TokensAnswer, sink: Sink, *, fills_block: bool = False) -> Abort:
        running = self._run(call, answer, fills_block=fills_block)
        task = asyncio.get_running_loop().create_task(running, name="openai request")
        self._open.add(task, sink)

        def abort() -> None:
            if self._open.drop(task):
                task.cancel()

        return abort

    async def _run(self, call: Call, answer: TextAnswer | TokensAnswer, *, fills_block: bool) -> None:
        """Hand one answer on; `fills_block`: the server should publish a KV event for its prompt."""
        task = asyncio.current_task()
        assert task is not None
        assert self._watch is not None, "it has started"
        try:
            going_on: Call | None = call
            while going_on is not None and not await self._stream(going_on, answer, task):
                going_on = answer.end(task)
            self._watch.availability.request_served()
            self._prompts += fills_block
        except Exception as error:  # whatever it is, it is this request's answer
            if answer.end_whole(task):
                return
            meant = error if isinstance(error, DynamoException) else self._meaning(error, answer)
            if isinstance(meant, (EngineError, Disconnected)) or meant is not error:
                self._watch.failed()
            self._open.fail(task, meant)

    def _meaning(self, error: Exception, answer: TextAnswer | TokensAnswer) -> DynamoException:
        """Return a broken connection as what lets the frontend try another worker, or go on there."""
        import aiohttp

        if isinstance(error, (aiohttp.ClientError, TimeoutError, OSError)):
            # Clients aren't told where the server is.
            first = self._watch is None or not self._watch.availability.failing
            level = logging.WARNING if first else logging.DEBUG  # one line does for all that a lost server had
            log.log(level, "%s: %s %s", self._server.root, type(error).__name__, error)
            if answer.begun:
                return Disconnected("the server behind this worker was lost")
            return CapacityExceeded("The server behind this worker does not answer. Retry later.")
        self._faults.note(ANSWER, f"sent what could not be read: {error}")
        if isinstance(error, msgspec.MsgspecError):
            return EngineError(f"the server sent what could not be read: {error}")
        return EngineError(f"{type(error).__name__}: {error}")

    async def _stream(self, call: Call, answer: TextAnswer | TokensAnswer, task: asyncio.Task[None]) -> bool:
        """Hand on what one call streams; False where it was over before the answer was."""
        assert self._connections is not None, "it has started"
        assert self._watch is not None, "it has started"
        async with self._connections.asked(call) as response:
            if response.status != 200:
                body = await response.content.read(_MOST_ERROR_BYTES)
                answer.refused(response.status, body)
                raise refusal(response.status, body)
            events = EventReader()
            async for chunk in response.content.iter_any():
                self._watch.chunks += 1
                for event in events.feed(chunk):
                    if event == DONE:  # some servers keep the connection open after it
                        return False
                    if answer.take(task, event):
                        return True
        return False
