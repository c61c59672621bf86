"""Answers to a chat in another API's form: a generation's events, handed to that API's writer, streamed or whole.

One choice per answer. A writer keeps what it has said, so that a stream's last event, a whole answer and what is
stored are one object. Text that nothing parses goes to the writer as it comes: no event is made per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from dynamo.frontend.errors import ApiError
from dynamo.frontend.generation.choice import Choice
from dynamo.frontend.openai.chunks import Identity
from dynamo.frontend.responses.generation_events import Event, EventReader, ScoredContent, Usage
from dynamo.frontend.responses.parsed_response import explained
from dynamo.frontend.responses.response import STREAM_HEADERS, Response

Emit: TypeAlias = Callable[[bytes], None]


class EventWriter(Protocol):
    """Writer of one answer in an API's words."""

    def begin(self, usage: Usage) -> None:
        """Write what comes before all else; of the usage only the prompt's is known."""

    def text(self, text: str) -> None:
        """Write text, as `say(Content(text))` would."""

    def scored(self, text: str, logprobs: list[Any]) -> None:
        """Write text with the log probabilities of a delta's tokens."""

    def say(self, event: Event) -> None:
        """Write any other event; after `Usage` nothing comes."""

    def whole(self) -> bytes:
        """Return the whole answer, once all is said."""

    def failure(self, error: ApiError) -> bytes:
        """Return the last bytes of a stream that fails."""

    def named(self, error: ApiError) -> ApiError:
        """Return an error in this API's words."""


class EventAnswer(Response):
    """Answer whose choice is given to a writer. `form` makes it, and gets what takes a stream's bytes, or None."""

    def __init__(
        self, *args: Any, form: Callable[[Identity, Emit | None], EventWriter], streams: bool, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._streams, self._heard = streams, False
        self._last_write = -1.0
        """Of the output, when all answers were looked at last."""
        self._form = form(self.who, self._output.append if streams else None)
        self._reader = EventReader(self.options.parsing)
        self._plain = self._reader.plain
        self._write = self._form.text

    def text(self, choice: Choice, text: str) -> None:
        if not self._heard:
            self._hear()
        if self._plain:
            write = self._write  # a function in a slot: called in one step, CPython looks it up as a method
            write(text)
        else:
            for event in self._reader.read(choice, text):
                self._form.say(event)
        if self._streams and not self._output.dirty:
            self._writer.touch(self._output)

    def tokens(
        self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        self._hear()
        for event in self._reader.read_scored(choice, text, ids, offsets, extras):
            if isinstance(event, ScoredContent):
                assert self._logprobs is not None, "they were asked for"
                rows = self._logprobs.of(choice, event.ids, event.offsets, event.extras, first=False)
                self._form.scored(event.text, (self._logprobs.render(rows) or {}).get("content") or [])
            else:
                self._form.say(event)
        if self._streams:
            self._writer.touch(self._output)

    def finished(self, choice: Choice) -> None:
        self._hear()
        for event in self._reader.end(choice):
            self._form.say(event)
        self._form.say(self._used())
        if not self._streams:
            self._whole(200, self._form.whole(), [])
        self._end()

    def failed(self, choice: Choice, error: Exception) -> None:
        super().failed(choice, explained(error, self.options.parsing))

    def _hear(self) -> None:
        """Note that the engine has begun, though what it said may have to wait."""
        if self._heard:
            return
        self._heard = True
        self._first_token()
        if not self._begun:
            self._open()

    def _open(self) -> None:
        """Begin the answer; for one that is long awaited, before its first token."""
        if self._streams:
            self._begun = True
            self._output.head(200, [*STREAM_HEADERS, *self._headers])
        self._form.begin(self._used())

    def _used(self) -> Usage:
        known = bool(self.choices) and self.choices[0].knows_cached
        return Usage(*self.usage(), reasoning=self._reader.reasoning, knows_cached=known)

    def still_here(self) -> None:
        """Ping where nothing has been written since the last look, in APIs that have such an event."""
        last, self._last_write = self._last_write, self._output.last_write
        ping = getattr(self._form, "ping", None)
        if ping is None or not self._streams or self.complete or self._output.dirty or last != self._last_write:
            return
        if not self._begun:
            self._open()
        ping()
        self._output.flush()  # not with a batch, which would count the silence as time between two tokens

    def _named(self, error: ApiError) -> ApiError:
        return self._form.named(super()._named(error))

    def _failure(self, error: ApiError) -> bytes:
        return self._form.failure(error)
