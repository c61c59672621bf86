"""Answers of the two hot routes: what the choices of a request say, as a stream or as one body.

`routes/generate.py` makes one per request; the choices call `text`, `tokens`, `finished`
and `failed` while frames are handled. An error before the first text is an HTTP status, afterwards
one event of the stream.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, to_api_error
from dynamo.frontend.generation.choice import Choice
from dynamo.frontend.metrics import ModelMeter
from dynamo.frontend.openai.requests import name_field
from dynamo.frontend.openai.tool_choice import Parsing
from dynamo.frontend.responses import chunks
from dynamo.frontend.responses.chunks import ChatChunks, CompletionChunks, Identity
from dynamo.frontend.responses.logprobs import chat_logprobs, completion_logprobs, entries
from dynamo.frontend.responses.stream import BatchWriter, Headers, ResponseStream
from dynamo.frontend.routing.report import Route, RoutingReport, given, spliced, worker_id
from dynamo.llm.protocols import PROMPT_LOGPROBS, PreprocessedRequest, TextRequest
from dynamo.llm.tokenizer.tokenizer import Tokenizer
from dynamo.runtime.errors import DeadlineExceeded, InvalidArgument

log = logging.getLogger(__name__)
FIRST_CHOICES: Final = 1
"""Of one request, sent before the others: were it one that takes workers down, all would be gone together."""
STARTED_AT_ONCE: Final = 16
HELD_SECONDS: Final = 2.0
"""For which the others wait for a first token; longer than it takes to notice that a worker is gone."""
_encode = msgspec.json.encode
STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ResponseOptions(msgspec.Struct):
    """What was asked of the answer's form."""

    chat: bool
    choices: int
    include_usage: bool = False
    logprobs: int | None = None
    """Alternatives per token; None: no log probabilities."""
    echo: Sequence[str] = ()
    """Per choice, the text before the answer (completions with `echo`)."""
    prompt_ids: Sequence[list[int]] = ()
    """Per choice, the prompt's tokens (`echo` with `logprobs`)."""
    tokenizer: Tokenizer | None = None
    prompts: int = 1
    explanation: RoutingReport | None = None
    """What the answer says of itself, where that was asked for."""
    parsing: Parsing | None = None
    """How its text is parsed (`parsed_response.py`); None: it is told as it comes."""


class Logprobs:
    """Makes the `logprobs` objects of one answer."""

    def __init__(self, options: ResponseOptions) -> None:
        self._options = options

    def of(
        self, choice: Choice, ids: list[int], offsets: list[int], extras: dict[str, Any] | None, first: bool
    ) -> list[Any]:
        """Return what the engine says of these tokens, an echoed prompt's first."""
        index = choice.index
        rows: list[Any] = self._echoed(index, extras) if first else []
        shift = len(self._options.echo[index]) if self._options.echo else 0
        rows += entries(ids, extras, [at + shift for at in offsets]) if ids else []
        return rows

    def render(self, rows: list[Any]) -> dict[str, Any] | None:
        options = self._options
        if options.tokenizer is None or options.logprobs is None:
            return None
        make = chat_logprobs if options.chat else completion_logprobs
        return make(options.tokenizer, rows, options.logprobs)

    def _echoed(self, index: int, extras: dict[str, Any] | None) -> list[Any]:
        options = self._options
        if not options.echo or options.tokenizer is None:
            return []
        ids, logprobs = options.prompt_ids[index], (extras or {}).get(PROMPT_LOGPROBS)
        if logprobs is None:
            raise InvalidArgument(
                "echo: the engine of this model gives no log probabilities of the prompt; ask without."
            )
        rows: list[Any] = []
        at = 0
        for token, logprob in zip(ids, logprobs, strict=False):
            rows.append((token, logprob, [], at))
            at += len(options.tokenizer.token_bytes(token).decode("utf-8", "replace"))
        return rows


class Response(ABC):
    """Common to both: counting choices, usage, the first token's time and failure."""

    def __init__(
        self, who: Identity, options: ResponseOptions, output: ResponseStream, writer: BatchWriter, *,
        headers: Headers, meter: ModelMeter, first_token: Callable[[], None],
        too_late: Callable[[DeadlineExceeded], DeadlineExceeded] = lambda error: error,
    ) -> None:  # fmt: skip
        self.who, self.options = who, options
        self.choices: list[Choice] = []
        self.error: ApiError | None = None
        self.complete = False
        self._output, self._writer, self._headers, self._meter = output, writer, headers, meter
        self._first_token, self._too_late = first_token, too_late
        self._left = options.choices
        self._held: asyncio.TimerHandle | None = None
        """For choices that aren't sent yet."""
        self._begun = False
        self._seen = [False] * options.choices
        self._logprobs = Logprobs(options)

    @abstractmethod
    def text(self, choice: Choice, text: str) -> None:
        """Take text of a choice."""

    @abstractmethod
    def tokens(
        self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        """Take text as `text` does, where log probabilities were asked for."""

    @abstractmethod
    def finished(self, choice: Choice) -> None:
        """Hear that a choice is over."""

    def forget(self) -> None:
        """Let go of the choices, which hold this answer: the request is over."""
        self.choices = []

    def start(self, choices: list[Choice]) -> None:
        """Send the choices on their way: one, and the others once a worker has shown that it survives it."""
        self.choices = choices
        self._start(choices[:FIRST_CHOICES])
        if (others := choices[FIRST_CHOICES:]) and not self.complete:
            self._held = asyncio.get_running_loop().call_later(HELD_SECONDS, self._start, others)
            first_token = self._first_token

            def go_on() -> None:
                first_token()
                if self._held is not None and not self._held.cancelled():
                    self._held.cancel()
                    asyncio.get_running_loop().call_soon(self._start, others)

            self._first_token = go_on

    def _start(self, choices: list[Choice]) -> None:
        """Send some on their way, and the others in the loop's next turns: 2,048 take it a fifth of a second."""
        self._held = None
        for choice in choices[:STARTED_AT_ONCE]:
            if not self.complete:
                choice.start()
        if (others := choices[STARTED_AT_ONCE:]) and not self.complete:
            asyncio.get_running_loop().call_soon(self._start, others)

    def cancel(self) -> None:
        """Free the engines: the client is gone."""
        self.complete = True
        if self._held is not None:
            self._held.cancel()
        for choice in self.choices:
            choice.cancel()

    def usage(self) -> tuple[int, int, int]:
        """Return the prompt tokens (each prompt once), produced and cached ones."""
        if len(self.choices) == 1:
            only = self.choices[0]
            return only.prompt_tokens, only.tokens, only.cached
        per_prompt = max(1, len(self.choices) // self.options.prompts)
        firsts = self.choices[::per_prompt]
        prompt = sum(choice.prompt_tokens for choice in firsts)
        return prompt, sum(choice.tokens for choice in self.choices), sum(choice.cached for choice in firsts)

    def failed(self, choice: Choice, error: Exception) -> None:
        """Fail the request: one of its choices did."""
        self.refused(error)

    def refused(self, error: Exception) -> None:
        """Answer a request that failed, or of which no choice was even begun, with its error."""
        if self.complete:
            return
        self.cancel()
        if isinstance(error, DeadlineExceeded):
            error = self._too_late(error)  # says whose limit it was
        self.error = self._named(to_api_error(error))
        if self._begun:
            self._output.append(self._failure(self.error))
        else:
            own = [(name.encode(), value.encode()) for name, value in self.error.headers]
            self._whole(self.error.status, self.error.body(), own)
        self._end()

    def _named(self, error: ApiError) -> ApiError:
        """Return the error as this API says it."""
        return name_field(error, self.options.chat)

    def _failure(self, error: ApiError) -> bytes:
        """Return the last bytes of a stream that was begun, and fails."""
        return chunks.error_event(error.body())

    def _begin(self) -> None:
        self._begun = True
        self._first_token()

    def _whole(self, status: int, body: bytes, headers: Headers) -> None:
        length = (b"content-length", b"%d" % len(body))
        self._output.head(status, [(b"content-type", b"application/json"), length, *headers, *self._headers])
        self._output.append(body)

    def _end(self) -> None:
        self.complete = True
        self._output.end()
        self._writer.touch(self._output)


class SseResponse(Response):
    """Server-sent events, one per delta."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        form = ChatChunks if self.options.chat else CompletionChunks
        self._form = form(self.who, self.options.include_usage)
        self._prefixes: list[bytes] = [b""] * self.options.choices
        self._tail = self._form.tail

    def text(self, choice: Choice, text: str) -> None:
        prefix, output = self._prefixes[choice.index], self._output
        if prefix:
            append = output.append  # a function in a slot: called in one step, CPython looks it up as a method
            append(prefix + _encode(text) + self._tail)
        else:
            self._first(choice.index, text)
        if not output.dirty:
            self._writer.touch(output)

    def tokens(
        self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        index = choice.index
        first = not self._seen[index]
        rows = self._logprobs.of(choice, ids, offsets, extras, first)
        if not rows and not text:
            return
        self._open(index)
        rendered = self._logprobs.render(rows)
        text = self._echo(index) + text if first else text
        chunk = self._form.with_logprobs(index, text, rendered, first)
        self._output.append(self._early(chunk, index) if first else chunk)
        self._writer.touch(self._output)

    def finished(self, choice: Choice) -> None:
        if not self._seen[choice.index]:
            self._first(choice.index, "")
        chunk = self._form.finish(choice.index, choice.finish_reason or "stop", choice.stop_reason)
        if (explanation := self.options.explanation) is not None:
            chunk = spliced(chunk, explanation.late(choice.index))
        self._output.append(chunk)
        self._left -= 1
        if self._left == 0:
            if self.options.include_usage:
                self._output.append(self._form.usage(chunks.usage_dict(*self.usage())))
            self._output.append(chunks.DONE)
            self._end()
        self._writer.touch(self._output)

    def _first(self, index: int, text: str) -> None:
        if self._seen[index]:  # the second text: from now on the bytes before it are at hand
            self._prefixes[index] = self._form.prefix(index)
            self._output.append(self._prefixes[index] + _encode(text) + self._tail)
            return
        self._open(index)
        self._output.append(self._early(self._form.first(index, self._echo(index) + text), index))

    def _early(self, chunk: bytes, index: int) -> bytes:
        explanation = self.options.explanation
        return chunk if explanation is None else spliced(chunk, explanation.early(index))

    def _open(self, index: int) -> None:
        self._seen[index] = True
        if not self._begun:
            self._begin()
            self._output.head(200, [*STREAM_HEADERS, *self._headers])

    def _echo(self, index: int) -> str:
        return self.options.echo[index] if self.options.echo else ""


class JsonResponse(Response):
    """One JSON body, folded from the same deltas."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._texts: list[list[str]] = [[] for _ in range(self.options.choices)]
        self._rows: list[list[Any]] = [[] for _ in range(self.options.choices)]
        self._timed = False

    def text(self, choice: Choice, text: str) -> None:
        if not self._timed:
            self._timed = True
            self._first_token()
        self._texts[choice.index].append(text)

    def tokens(
        self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        index = choice.index
        self._rows[index] += self._logprobs.of(choice, ids, offsets, extras, not self._seen[index])
        self._seen[index] = True
        self.text(choice, text)

    def finished(self, choice: Choice) -> None:
        self._left -= 1
        if self._left:
            return
        make = chunks.chat_answer if self.options.chat else chunks.completion_answer
        bodies = [self._choice(each) for each in self.choices]
        body = make(self.who, bodies, chunks.usage_dict(*self.usage()))
        if (explanation := self.options.explanation) is not None:
            body = spliced(body, explanation.late(0), b"}")
        self._whole(200, body, [])
        self._end()

    def _choice(self, choice: Choice) -> dict[str, Any]:
        index, text = choice.index, "".join(self._texts[choice.index])
        body: dict[str, Any] = {"index": index}
        if self.options.chat:
            body["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            body["text"] = (self.options.echo[index] if self.options.echo else "") + text
        body["logprobs"] = self._logprobs.render(self._rows[index])
        body["finish_reason"] = choice.finish_reason or "stop"
        if choice.stop_reason is not None:
            body["stop_reason"] = choice.stop_reason
        return body


def query_answer(
    who: Identity, kind: str, request: PreprocessedRequest | TextRequest, route: Route, computed: Route | None = None
) -> bytes:
    """Return the answer to a request that only asks where it would go; with its tokens, for who sends it on."""
    nvext: dict[str, Any] = {"worker_id": worker_id(route, computed), "routing": given(msgspec.to_builtins(route))}
    if isinstance(request, PreprocessedRequest):
        nvext["token_ids"] = request.token_ids
    head = {"id": who.id, "object": kind, "created": who.created, "model": who.model}
    return msgspec.json.encode({**head, "choices": [], "nvext": nvext})
