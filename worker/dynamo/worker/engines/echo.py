"""Engines that say what they heard: for first tries, tests and the exactness of streams.

`echo_core` gets tokens and answers with the prompt's own tokens, so that the whole way
through template, tokenizer, wire and detokenizer shows. `echo_full` gets text and answers
with the last user message (or the prompt), token by token, which is character by character with
the built-in tokenizer. One ticker drives all streams: what is due at one tick leaves in one
message per client.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm import Preprocessor, Tokenizer
from dynamo.llm.processing.embeddings import MOST_DIMENSIONS, EmbeddingRequest
from dynamo.llm.protocols import (
    COMPLETION_TOKENS,
    LENGTH,
    PROMPT_TOKENS,
    STOP,
    STOP_REASON,
    PreprocessedRequest,
    TextRequest,
)  # fmt: skip
from dynamo.runtime.errors import EngineShutdown, InvalidArgument
from dynamo.worker.engine import Abort, EngineFacts, EngineLoad, Sink, VectorSink, nothing_wanted
from dynamo.worker.engines.mocker.arguments import EMBEDDING_DIM
from dynamo.worker.engines.mocker.vectors import made_up
from dynamo.worker.engines.support.request_checks import check_inputs, refuse_prompt_scores, stop_reasons
from dynamo.worker.settings import checked_arguments

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.settings import WorkerSettings

DELAY: Final = "DYN_TOKEN_ECHO_DELAY_MS"
_DEFAULT_DELAY_MS: Final = 10.0
_INPUTS_PER_TICK: Final = 64
"""Of one request for vectors."""

Step = Callable[[], bool]
"""Produces one piece; False once the stream has ended."""


def echo_delay() -> float:
    """Read seconds between two tokens from the environment."""
    text = os.environ.get(DELAY, "")
    try:
        delay = float(text) if text else _DEFAULT_DELAY_MS
    except ValueError as error:
        raise InvalidArgument(f"{DELAY} must be a number of milliseconds, got {text!r}") from error
    if not 0 <= delay <= 3_600_000:
        raise InvalidArgument(f"{DELAY} must be between 0 and 3600000, got {text}")
    return delay / 1000


class _Ticker:
    """Calls every stream's step once per tick."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._streams: dict[int, tuple[Step, Sink | VectorSink]] = {}
        self._next = 0
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._streams)

    async def failed(self) -> BaseException:
        """Wait for the ticker's death (a bug, since it has nothing that can fail)."""
        assert self._task is not None
        await asyncio.wait([self._task])
        return self._task.exception() or EngineShutdown()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="echo")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _, sink in self._streams.values():
            sink.fail(EngineShutdown())
        self._streams.clear()

    def add(self, step: Step, sink: Sink | VectorSink) -> Abort:
        self._next += 1
        number = self._next
        self._streams[number] = (step, sink)
        self._wake.set()

        def abort() -> None:
            self._streams.pop(number, None)

        return abort

    async def _run(self) -> None:
        while True:
            if not self._streams:
                self._wake.clear()
                await self._wake.wait()
            await asyncio.sleep(self._delay)
            for number, (step, sink) in tuple(self._streams.items()):
                if number in self._streams and not _alive(step, sink):
                    self._streams.pop(number, None)


def _alive(step: Step, sink: Sink | VectorSink) -> bool:
    try:
        return step()
    except Exception as error:  # belongs to this stream; the ticker carries all the others
        sink.fail(error)
        return False


class EchoCore:
    """Tokens in, the same tokens out, then `stop`. Of an answer that another worker began, the rest.

    Engine argument: `embedding_dim`; with it tokens become vectors of so many numbers instead."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        given = checked_arguments("echo_core", settings.arguments(), {EMBEDDING_DIM: 0}, {EMBEDDING_DIM: 1})
        self._dim: int | None = given[EMBEDDING_DIM] or None
        if self._dim is not None and self._dim > MOST_DIMENSIONS:
            raise InvalidArgument(f"echo_core argument {EMBEDDING_DIM!r} must be at most {MOST_DIMENSIONS}")
        self._card = model.card
        self._ticker = _Ticker(echo_delay())

    async def start(self) -> EngineFacts:
        self._ticker.start()
        return EngineFacts(context_length=self._card.context_length, embedding_dim=self._dim)

    async def stop(self) -> None:
        await self._ticker.stop()

    async def failed(self) -> BaseException:
        return await self._ticker.failed()

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self._ticker))

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort:
        refuse_prompt_scores(request, "echo_core")
        if request.stop_conditions.max_tokens == 0:
            return nothing_wanted(sink)
        return self._ticker.add(_echo_tokens(request, sink), sink)

    def embed(self, request: EmbeddingRequest, sink: VectorSink) -> Abort:
        check_inputs(request, self._card.context_length)
        assert self._dim is not None, "its facts have it"
        made_up(request.token_ids[0], self._dim, request.dimensions)  # refuses what can't be asked, now
        return self._ticker.add(_vectors(request, self._dim, sink), sink)


def _vectors(request: EmbeddingRequest, own: int, sink: VectorSink) -> Step:
    inputs = iter(enumerate(request.token_ids))

    def step() -> bool:
        for index, ids in itertools.islice(inputs, _INPUTS_PER_TICK):
            sink.push(index, made_up(ids, own, request.dimensions))
            if index + 1 == len(request.token_ids):
                sink.finish()
                return False
        return True

    return step


def _ends(request: PreprocessedRequest) -> Callable[[int, int], str | None]:
    """Return what says why a stream ends with its so many-th token, if it does."""
    conditions = request.stop_conditions
    stops, floor = stop_reasons(request), conditions.min_tokens or 0
    limit = conditions.max_tokens if conditions.max_tokens is not None else len(request.token_ids) + 1

    def ends(count: int, token: int) -> str | None:
        if count >= floor and token in stops:
            return stops[token]
        return LENGTH if count >= limit else None

    return ends


def _echo_tokens(request: PreprocessedRequest, sink: Sink) -> Step:
    prompt = request.token_ids[: len(request.token_ids) - request.answered_tokens]
    ids = iter(prompt[request.answered_tokens :])
    ends, count = _ends(request), 0

    def step() -> bool:
        nonlocal count
        token = next(ids, None)
        if token is None:
            sink.finish(STOP)
            return False
        count += 1
        sink.push([token])
        if reason := ends(count, token):
            sink.finish(reason, {STOP_REASON: token} if reason == STOP else None)
        return reason is None

    return step


def _echo_text(text: str, request: PreprocessedRequest, tokenizer: Tokenizer, sink: Sink) -> Step:
    """Answer as `_echo_tokens`, with the tokens' text: nothing of one that ends the stream, no half characters."""
    prompt, chosen = request.token_ids, request.sampling_options.include_stop_str_in_output
    ids = iter(tokenizer.encode(text, add_special=False))
    stream = tokenizer.text_stream(prompt, request.output_options.skip_special_tokens)
    ends, count, reported = _ends(request), 0, 0

    def end(reason: str, token: int | None = None) -> bool:
        counts = {PROMPT_TOKENS: len(prompt), COMPLETION_TOKENS: count}
        sink.finish(reason, counts if token is None else {**counts, STOP_REASON: token})
        return False

    def say(piece: str) -> None:
        nonlocal reported
        extras = {} if reported else {PROMPT_TOKENS: len(prompt)}
        if reported + 1 != count:  # else one text is one token, which is what it counts as
            extras[COMPLETION_TOKENS] = count
        reported = count
        sink.push(piece, extras or None)

    def step() -> bool:
        nonlocal count
        token = next(ids, None)
        if token is None:
            return end(STOP)
        count += 1
        reason = ends(count, token)
        shown = reason is None or reason == LENGTH or (reason == STOP and chosen)
        if piece := stream.step(token) if shown else "":
            say(piece)
        return True if reason is None else end(reason, token if reason == STOP else None)

    return step


class EchoFull:
    """Text in, the last user message out, then `stop`; it ends and counts as `echo_core` does."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        _no_arguments(settings)
        self._model = model
        self._ticker = _Ticker(echo_delay())

    async def start(self) -> EngineFacts:
        self._preprocessor = await asyncio.to_thread(Preprocessor.load, self._model.card, self._model.files)
        self._ticker.start()
        return EngineFacts(context_length=self._model.card.context_length)

    async def stop(self) -> None:
        await self._ticker.stop()

    async def failed(self) -> BaseException:
        return await self._ticker.failed()

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self._ticker))

    def submit(self, request: TextRequest, sink: Sink) -> Abort:
        text = last_words(request)
        _check_limits(request.body)
        read = self._preprocessor.text_request(request.kind, request.body)
        if wanted := read.sampling_options.guided_decoding:
            raise InvalidArgument(f"guided decoding ({', '.join(wanted)}): engine echo_full can't constrain its output")
        if read.stop_conditions.max_tokens == 0:
            return nothing_wanted(sink)
        return self._ticker.add(_echo_text(text, read, self._preprocessor.tokenizer, sink), sink)


def _check_limits(body: dict[str, Any]) -> None:
    """Check bounds. The body is the client's own: where no frontend has looked at it, this is the first to."""
    for name in ("max_completion_tokens", "max_tokens", "min_tokens"):
        value = body.get(name)
        if value is not None and (type(value) is not int or value < 0):
            raise InvalidArgument(f"{name} must be a whole number of at least 0, got {value!r}")


def last_words(request: TextRequest) -> str:
    """Return the last user message of a chat, or the prompt; `InvalidArgument` where there is neither."""
    if request.kind == "completions":
        prompt = request.body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise InvalidArgument("echo_full takes one prompt of text")
        return prompt
    messages = request.body.get("messages")
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, dict) and message.get("role") == "user":
            return _content(message.get("content"))
    raise InvalidArgument("there is no user message to echo")


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (p.get("text") for p in parts if isinstance(p, dict) and p.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str))


def _no_arguments(settings: WorkerSettings) -> None:
    if given := settings.arguments():
        raise InvalidArgument(f"{settings.engine} takes no engine arguments, got {', '.join(given)}")
