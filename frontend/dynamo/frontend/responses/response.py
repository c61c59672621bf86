"""Answers of the two hot routes, from what the choices of a request say: here streams, in `json_response.py` bodies.

`routes/generate.py` makes one per request; the choices call `text`, `tokens`, `finished`
and `failed` while frames are handled. An error before the first text is an HTTP status, afterwards
one event of the stream.

A streamed token costs one JSON-escaped string between two byte strings that are made once per choice
(`openai/chunks.py`).
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
from dynamo.frontend.openai.chunks import DONE, ChatChunks, CompletionChunks, Identity, error_event
from dynamo.frontend.openai.constraints import Parsing
from dynamo.frontend.openai.requests import name_field
from dynamo.frontend.responses.generation_events import usage_dict
from dynamo.frontend.responses.logprobs import Logprobs
from dynamo.frontend.responses.scores import Scores
from dynamo.frontend.responses.stream import BatchWriter, Headers, ResponseStream
from dynamo.frontend.routing.report import RoutingReport, spliced
from dynamo.llm.tokenizer.tokenizer import Tokenizer
from dynamo.runtime.errors import DeadlineExceeded

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
    """Form of the answer, as it was asked for."""

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
    thoughts: bool = True
    """What the model thinks is told, where it is known for that."""
    parsing: Parsing | None = None
    """How its text is parsed (`parsed_response.py`); None: it is told as it comes."""
    reasoning_field: str = "reasoning_content"
    """Where a chat's answer has what the model thinks."""
    unanswered: bool = False
    """Only the prompt is wanted, scored: what an engine says behind it is left out."""
    constraint: str = ""
    """The client's field that constrains it; empty: none does."""
    scores: Scores | None = None
    """What is asked of log probabilities beside those of the answer."""
    preface: bytes = b""
    """Events before a stream's first chunk."""
    counts: bool = False
    """Each chunk of a stream has the usage so far."""
    token_ids: bool = False
    """The ids of prompts and answers are told, too; `prompt_ids` has those of the prompts then."""
    named_by_ids: bool = False
    """Tokens with log probabilities are named by their ids, not by their texts."""
    tier: str | None = None


class Response(ABC):
    """Common to both: counting choices, usage, the first token's time and failure."""

    __slots__ = (
        "_begun", "_first_token", "_headers", "_held", "_left", "_logprobs", "_meter", "_output", "_seen", "_too_late",
        "_writer", "choices", "complete", "error", "options", "who",
    )  # fmt: skip

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
        self._logprobs = None if options.logprobs is None else Logprobs(options)

    @abstractmethod
    def text(self, choice: Choice, text: str) -> None:
        """Take text of a choice."""

    @abstractmethod
    def tokens(
        self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        """Take text as `text` does, where log probabilities or token ids were asked for."""

    @abstractmethod
    def finished(self, choice: Choice) -> None:
        """Hear that a choice is over."""

    def forget(self) -> None:
        """Let go of the choices, and of what waits to start some, which hold this answer: the request is over."""
        self.choices, self._first_token = [], _nothing
        if self._held is not None:
            self._held.cancel()
            self._held = None

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
            return only.prompt_tokens, 0 if self.options.unanswered else only.tokens, only.cached
        per_prompt = max(1, len(self.choices) // self.options.prompts)
        firsts = self.choices[::per_prompt]
        prompt = sum(choice.prompt_tokens for choice in firsts)
        produced = 0 if self.options.unanswered else sum(choice.tokens for choice in self.choices)
        return prompt, produced, sum(choice.cached for choice in firsts)

    def reasoning(self) -> int | None:
        """Return the tokens of thoughts among those produced; None where nothing tells them apart."""
        return None

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
        return name_field(error, self.options.chat, self.options.constraint)

    def _failure(self, error: ApiError) -> bytes:
        """Return the last bytes of a stream that was begun, and fails."""
        return error_event(error.body())

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


def _nothing() -> None:
    """Do nothing."""


class SseResponse(Response):
    """Server-sent events, one per delta."""

    __slots__ = ("_form", "_tail")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        form = ChatChunks if self.options.chat else CompletionChunks
        self._form = form(self.who, self.options.include_usage)
        self._tail = self._form.tail

    def text(self, choice: Choice, text: str) -> None:
        prefix, output = choice.prefix, self._output
        if not prefix:
            self._first(choice, text)
        elif output.dirty or not output.flowing:
            output.append(prefix + _encode(text) + self._tail)
        else:
            output.part = prefix + _encode(text) + self._tail
        if not output.dirty:
            self._writer.touch(output)

    def tokens(
        self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        index, logprobs = choice.index, self._logprobs
        first, tells_ids = not self._seen[index], self.options.token_ids
        rows = [] if logprobs is None else logprobs.of(choice, ids, offsets, extras, first)
        if not rows and not text and not (ids and tells_ids):
            return
        self._open(index)
        text = self._echo(index) + text if first else text
        more: dict[str, Any] = {} if logprobs is None else {"logprobs": logprobs.render(rows)}
        chunk = self._form.scored(index, text, first, {**more, "token_ids": ids} if tells_ids else more)
        self._output.append(self._early(chunk, index) if first else chunk)
        self._writer.touch(self._output)

    def finished(self, choice: Choice) -> None:
        if not self._seen[choice.index]:
            self._first(choice, "")
        chunk = self._form.finish(choice.index, choice.finish_reason or "stop", choice.stop_reason)
        if (explanation := self.options.explanation) is not None:
            chunk = spliced(chunk, explanation.late(choice.index))
        self._output.append(chunk)
        self._left -= 1
        if self._left == 0:
            if self.options.include_usage:
                self._output.append(self._form.usage(usage_dict(*self.usage(), self.reasoning())))
            self._output.append(DONE)
            self._end()
        self._writer.touch(self._output)

    def _first(self, choice: Choice, text: str) -> None:
        index = choice.index
        if self._seen[index]:
            prefix = self._form.prefix(index)
            self._output.append(prefix + _encode(text) + self._tail)
            if not self.options.counts:  # which goes through `append`; others have the bytes at hand from now on
                choice.prefix = prefix
            return
        self._open(index)
        self._output.append(self._early(self._form.first(index, self._echo(index) + text), index))

    def _early(self, chunk: bytes, index: int) -> bytes:
        options = self.options
        if options.token_ids:
            chunk = self._form.with_prompt(chunk, options.prompt_ids[index])
        return chunk if options.explanation is None else spliced(chunk, options.explanation.early(index))

    def _open(self, index: int) -> None:
        self._seen[index] = True
        if not self._begun:
            self._begin()
            self._output.head(200, [*STREAM_HEADERS, *self._headers])
            if self.options.preface:
                self._output.append(self.options.preface)

    def _echo(self, index: int) -> str:
        return self.options.echo[index] if self.options.echo else ""
