"""Answers of the two hot routes: what the choices of a request say, as a stream or as one body.

`routes/generate.py` makes one per request; the choices call `text`, `tokens`, `finished`
and `failed` while frames are handled. An error before the first text is an HTTP status, afterwards
one event of the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dynamo.frontend import chunks
from dynamo.frontend.chunks import ChatChunks, CompletionChunks, Identity
from dynamo.frontend.errors import ApiError, to_api_error
from dynamo.frontend.explaining import Explanation, spliced
from dynamo.frontend.generation import Choice
from dynamo.frontend.logprobs import chat_logprobs, completion_logprobs, entries
from dynamo.frontend.metrics import ModelMeter
from dynamo.frontend.openai import name_field
from dynamo.frontend.stream import BatchWriter, Headers, Output
from dynamo.frontend.tool_choice import Parsing
from dynamo.llm.protocols import PROMPT_LOGPROBS
from dynamo.llm.tokenizer import Tokenizer
from dynamo.runtime.errors import DeadlineExceeded, InvalidArgument

log = logging.getLogger(__name__)
_encode = msgspec.json.encode
STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Shape(msgspec.Struct):
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
    explanation: Explanation | None = None
    """What the answer says of itself, where that was asked for."""
    parsing: Parsing | None = None
    """How its text is parsed (`parsed.py`); None: it is told as it comes."""


class Logprobs:
    """Makes the `logprobs` objects of one answer."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def of(
        self, choice: Choice, ids: list[int], offsets: list[int], extras: dict[str, Any] | None, first: bool
    ) -> list[Any]:
        """What the engine says of these tokens, an echoed prompt's first."""
        index = choice.index
        found: list[Any] = self._echoed(index, extras) if first else []
        shift = len(self._shape.echo[index]) if self._shape.echo else 0
        found += entries(ids, extras, [at + shift for at in offsets]) if ids else []
        return found

    def render(self, found: list[Any]) -> dict[str, Any] | None:
        shape = self._shape
        if shape.tokenizer is None or shape.logprobs is None:
            return None
        make = chat_logprobs if shape.chat else completion_logprobs
        return make(shape.tokenizer, found, shape.logprobs)

    def _echoed(self, index: int, extras: dict[str, Any] | None) -> list[Any]:
        shape = self._shape
        if not shape.echo or shape.tokenizer is None:
            return []
        ids, said = shape.prompt_ids[index], (extras or {}).get(PROMPT_LOGPROBS)
        if said is None:
            raise InvalidArgument(
                "echo: the engine of this model gives no log probabilities of the prompt; ask without."
            )
        found: list[Any] = []
        at = 0
        for token, logprob in zip(ids, said, strict=False):
            found.append((token, logprob, [], at))
            at += len(shape.tokenizer.token_bytes(token).decode("utf-8", "replace"))
        return found


class Answer:
    """Common to both: counting choices, usage, the first token's time and failure."""

    def __init__(
        self, who: Identity, shape: Shape, output: Output, writer: BatchWriter, headers: Headers,
        meter: ModelMeter, first_token: Callable[[], None],
        too_late: Callable[[DeadlineExceeded], DeadlineExceeded] = lambda error: error,
    ) -> None:  # fmt: skip
        self.who, self.shape = who, shape
        self.choices: list[Choice] = []
        self.error: ApiError | None = None
        self.complete = False
        self._output, self._writer, self._headers, self._meter = output, writer, headers, meter
        self._first_token, self._too_late = first_token, too_late
        self._left = shape.choices
        self._begun = False
        self._seen = [False] * shape.choices
        self._logprobs = Logprobs(shape)

    def forget(self) -> None:
        """The request is over: let go of the choices, which hold this answer."""
        self.choices = []

    def start(self, choices: list[Choice]) -> None:
        """Send the choices on their way."""
        self.choices = choices
        for choice in choices:
            if not self.complete:
                choice.start()

    def cancel(self) -> None:
        """The client is gone: free the engines."""
        self.complete = True
        for choice in self.choices:
            choice.cancel()

    def usage(self) -> tuple[int, int, int]:
        """Prompt tokens (each prompt once), produced and cached ones."""
        if len(self.choices) == 1:
            only = self.choices[0]
            return only.prompt_tokens, only.tokens, only.cached
        per_prompt = max(1, len(self.choices) // self.shape.prompts)
        firsts = self.choices[::per_prompt]
        prompt = sum(choice.prompt_tokens for choice in firsts)
        return prompt, sum(choice.tokens for choice in self.choices), sum(choice.cached for choice in firsts)

    def failed(self, choice: Choice, error: Exception) -> None:
        """One choice failed, so the request did."""
        self.refused(error)

    def refused(self, error: Exception) -> None:
        """The request failed, or no choice was even begun."""
        if self.complete:
            return
        self.cancel()
        if isinstance(error, DeadlineExceeded):
            error = self._too_late(error)  # says whose limit it was
        self.error = name_field(to_api_error(error), self.shape.chat)
        if self._begun:
            self._output.append(chunks.error_event(self.error.body()))
        else:
            own = [(name.encode(), value.encode()) for name, value in self.error.headers]
            self._whole(self.error.status, self.error.body(), own)
        self._end()

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


class StreamAnswer(Answer):
    """Server-sent events, one per delta."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        form = ChatChunks if self.shape.chat else CompletionChunks
        self._form = form(self.who, self.shape.include_usage)
        self._prefixes: list[bytes] = [b""] * self.shape.choices
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
        found = self._logprobs.of(choice, ids, offsets, extras, first)
        if not found and not text:
            return
        self._open(index)
        rendered = self._logprobs.render(found)
        text = self._echo(index) + text if first else text
        chunk = self._form.with_logprobs(index, text, rendered, first)
        self._output.append(self._early(chunk, index) if first else chunk)
        self._writer.touch(self._output)

    def finished(self, choice: Choice) -> None:
        if not self._seen[choice.index]:
            self._first(choice.index, "")
        chunk = self._form.finish(choice.index, choice.finish_reason or "stop", choice.stop_reason)
        if (explanation := self.shape.explanation) is not None:
            chunk = spliced(chunk, explanation.late(choice.index))
        self._output.append(chunk)
        self._left -= 1
        if self._left == 0:
            if self.shape.include_usage:
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
        explanation = self.shape.explanation
        return chunk if explanation is None else spliced(chunk, explanation.early(index))

    def _open(self, index: int) -> None:
        self._seen[index] = True
        if not self._begun:
            self._begin()
            self._output.head(200, [*STREAM_HEADERS, *self._headers])

    def _echo(self, index: int) -> str:
        return self.shape.echo[index] if self.shape.echo else ""


class WholeAnswer(Answer):
    """One JSON body, folded from the same deltas."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._texts: list[list[str]] = [[] for _ in range(self.shape.choices)]
        self._found: list[list[Any]] = [[] for _ in range(self.shape.choices)]
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
        self._found[index] += self._logprobs.of(choice, ids, offsets, extras, not self._seen[index])
        self._seen[index] = True
        self.text(choice, text)

    def finished(self, choice: Choice) -> None:
        self._left -= 1
        if self._left:
            return
        make = chunks.chat_answer if self.shape.chat else chunks.completion_answer
        bodies = [self._choice(each) for each in self.choices]
        body = make(self.who, bodies, chunks.usage_dict(*self.usage()))
        if (explanation := self.shape.explanation) is not None:
            body = spliced(body, explanation.late(0), b"}")
        self._whole(200, body, [])
        self._end()

    def _choice(self, choice: Choice) -> dict[str, Any]:
        index, text = choice.index, "".join(self._texts[choice.index])
        body: dict[str, Any] = {"index": index}
        if self.shape.chat:
            body["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            body["text"] = (self.shape.echo[index] if self.shape.echo else "") + text
        body["logprobs"] = self._logprobs.render(self._found[index])
        body["finish_reason"] = choice.finish_reason or "stop"
        if choice.stop_reason is not None:
            body["stop_reason"] = choice.stop_reason
        return body
