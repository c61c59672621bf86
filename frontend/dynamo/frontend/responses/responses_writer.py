"""A generation's events as the Responses API says them: items, their events in OpenAI's order, one object at the end.

Without I/O. A token costs one JSON string between bytes that are made once per item, and its number.
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError
from dynamo.frontend.openai.responses_input import sealed
from dynamo.frontend.openai.responses_requests import named
from dynamo.frontend.openai.responses_tools import Kinds, Member, ToolKind, said_of
from dynamo.frontend.responses.generation_events import CallArguments, CallBegun, Ended, Event, Usage
from dynamo.llm.parsers.events import Content, Thought

LARGEST_ECHO: Final = 64 << 10
"""Bytes of what a stream's first two events repeat of the request; where it is more, they leave its tools and
instructions out."""
SHORT: Final[dict[str, Any]] = {
    "instructions": None, "tools": [], "metadata": {}, "text": {"format": {"type": "text"}},
}  # fmt: skip
"""What stands in the place of what is large."""
_encode = msgspec.json.encode
Item = dict[str, Any]
_NUMBER: Final = b',"logprobs":[],"sequence_number":'
_END: Final = b"}\n\n"


def random_id(prefix: str) -> str:
    """Return an id that nobody can guess from others: who knows a stored item's may refer to it."""
    return f"{prefix}_{token_hex(16)}"


def _text_part(text: Any, logprobs: Any = ()) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": logprobs, "text": text}


def _summary(text: Any) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


class ResponsesWriter:
    """Writer of one response. `emit` takes a stream's bytes; None: only the object is wanted."""

    def __init__(
        self, response: dict[str, Any], emit: Callable[[bytes], None] | None, clock: Callable[[], float], *,
        with_sealed: bool = False, done: Callable[[bytes, list[str]], None] | None = None,
        new_id: Callable[[str], str] = random_id, kinds: Kinds | None = None, summarises: bool = False,
    ) -> None:  # fmt: skip
        self.response, self._id = response, new_id
        self._kinds, self._summarises = kinds or {}, summarises
        self._tool: ToolKind | None = None
        """Of the call that is open, where its tool is no function to the client."""
        self._emit, self._clock, self._with_sealed, self._done = emit, clock, with_sealed, done
        self._next = 0
        self._kind = ""
        """Of the item that is open; "": none is."""
        self._item: Item = {}
        self._pieces: list[str] = []
        self._logprobs: list[bytes] = []
        """JSON of the log probabilities so far, without brackets; those that wait for a text stand here, too."""
        self._early: list[bytes] = []
        """Log probabilities of tokens that made no text yet: the first half of a character, or of a stop string."""
        self._prefix: bytes | None = None
        """All that stands before a text's JSON string, while a message is open."""
        self._whole_part: dict[str, Any] = {}
        """Of a message that is over, with all log probabilities."""
        self._ended = Ended("stop")
        self._encoded = b""
        response |= {"status": "in_progress", "output": []}

    def queue(self) -> bytes:
        """Return the first events of a response that runs in the background, whose `begin` goes on from there."""
        self.response["status"] = "queued"
        return b"".join(self._bytes(f"response.{kind}", {"response": self._short()}) for kind in ("created", "queued"))

    def begin(self, usage: Usage) -> None:
        if self.response["status"] != "queued":
            self._event("response.created", response=self._short())
        self.response["status"] = "in_progress"
        self._event("response.in_progress", response=self._short())

    def text(self, text: str) -> None:
        prefix = self._prefix
        if prefix is None:
            prefix = self._open_message()
        self._pieces.append(text)
        if (emit := self._emit) is not None:
            number = self._next
            self._next = number + 1
            emit(b"".join((prefix, _encode(text), _NUMBER, _encode(number), _END)))  # a third less than by formatting

    def scored(self, text: str, logprobs: list[Any]) -> None:
        encoded = _encode(logprobs)
        if not text and self._prefix is None:
            if not self._kind:  # else tokens of thoughts and calls: only a message has log probabilities
                self._early.append(encoded[1:-1])
            return
        if self._prefix is None:
            self._early.append(encoded[1:-1])
            early, prefix = self._early, self._open_message()
            encoded = b"[%b]" % b",".join(filter(None, early))
        else:
            prefix = self._prefix
        self._pieces.append(text)
        self._logprobs.append(encoded[1:-1])
        if self._emit is not None:
            self._emit(prefix + _encode(text) + b',"logprobs":%b,"sequence_number":%d}\n\n' % (encoded, self._next))
            self._next += 1

    def say(self, event: Event) -> None:
        if isinstance(event, Content):
            self.text(event.text)
        elif isinstance(event, Thought):
            self._thought(event.text)
        elif isinstance(event, CallBegun):
            self._call(event)
        elif isinstance(event, CallArguments):
            self._pieces.append(event.text)
            if self._tool is None:
                self._of_item("response.function_call_arguments.delta", delta=event.text)
        elif isinstance(event, Ended):
            self._ended = event
        elif isinstance(event, Usage):
            self._end(event)

    def whole(self) -> bytes:
        return self._encoded

    def failure(self, error: ApiError) -> bytes:
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self._close("incomplete")
        self.response |= {"status": "failed", "error": {"code": code, "message": error.message}}
        return self._bytes("response.failed", {"response": self._short()})

    def cancelled(self) -> bytes:
        """Return the last event of a response that was cancelled in the background."""
        emit, self._emit = self._emit, None
        self._close("incomplete")
        self.response["status"], self._emit = "cancelled", emit
        return self._bytes("response.incomplete", {"response": self._short()})

    def named(self, error: ApiError) -> ApiError:
        return named(error)

    # Items.

    def _open(self, kind: str, item: Item) -> None:
        self._close()
        self._kind, self._item, self._pieces, self._logprobs = kind, item, [], []
        self._early = []
        self._event("response.output_item.added", output_index=self._index, item=item)

    @property
    def _index(self) -> int:
        """Return the index of the open item: those before it are closed, and in the output."""
        return len(self.response["output"])

    def _open_message(self) -> bytes:
        item = {"id": self._id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        self._open("message", item)
        self._of_part("response.content_part.added", part=_text_part(""))
        kind = "response.output_text.delta"
        head = {"type": kind, "item_id": item["id"], "output_index": self._index, "content_index": 0}
        self._prefix = f"event: {kind}\ndata: ".encode() + _encode(head)[:-1] + b',"delta":'
        return self._prefix

    def _thought(self, text: str) -> None:
        if self._kind != "reasoning":
            self._open("reasoning", {
                "id": self._id("rs"), "type": "reasoning", "summary": [], "content": [], "status": "in_progress",
            })  # fmt: skip
            if self._summarises:
                self._of_summary("part.added", part=_summary(""))
            else:
                self._of_part("response.content_part.added", part={"type": "reasoning_text", "text": ""})
        self._pieces.append(text)
        if self._summarises:
            self._of_summary("text.delta", delta=text)
        else:
            self._of_part("response.reasoning_text.delta", delta=text)

    def _of_summary(self, kind: str, **fields: Any) -> None:
        self._of_item(f"response.reasoning_summary_{kind}", summary_index=0, **fields)

    def _call(self, event: CallBegun) -> None:
        self._close()  # the call before, by its own tool
        tool = self._kinds.get(event.name)
        self._tool = tool if isinstance(tool, ToolKind) else None
        kind = "function_call" if self._tool is None else self._tool.call
        item = {"id": self._id("fc"), "type": kind, "status": "in_progress", "call_id": event.id, "name": event.name}
        if isinstance(tool, Member):
            item |= {"name": tool.name, "namespace": tool.namespace}
        if self._tool is None:
            item["arguments"] = ""
        else:
            item[self._tool.field] = self._tool.said({})
            if self._tool.name:
                del item["name"]  # it says nothing that the item's type doesn't
        self._open("function_call", item)

    def _close(self, status: str = "completed") -> None:
        """End the item that is open."""
        if not self._kind:
            return
        close = {"message": self._close_message, "reasoning": self._close_reasoning}.get(self._kind, self._close_call)
        text = "".join(self._pieces)
        close(text, msgspec.Raw(_encode(text)))
        self._item["status"] = status
        self._event("response.output_item.done", output_index=self._index, item=self._item)
        if self._kind == "message":
            self._item["content"] = [self._whole_part]
        self.response["output"].append(self._item)
        self._kind, self._prefix = "", None

    def _close_message(self, text: str, encoded: msgspec.Raw) -> None:
        logprobs = msgspec.Raw(b"[%b]" % b",".join(filter(None, self._logprobs)))
        shown = logprobs if len(bytes(logprobs)) <= LARGEST_ECHO else []  # each token's have been told already
        self._of_part("response.output_text.done", text=encoded, logprobs=shown)
        self._of_part("response.content_part.done", part=_text_part(encoded, shown))
        self._item["content"] = [_text_part(encoded, shown)]
        self._whole_part = _text_part(encoded, logprobs)

    def _close_reasoning(self, text: str, encoded: msgspec.Raw) -> None:
        if self._summarises:
            self._of_summary("text.done", text=encoded)
            self._of_summary("part.done", part=_summary(encoded))
            self._item["summary"] = [_summary(encoded)]
        else:
            part = {"type": "reasoning_text", "text": encoded}
            self._of_part("response.reasoning_text.done", text=encoded)
            self._of_part("response.content_part.done", part=part)
            self._item["content"] = [part]
        if self._with_sealed:
            self._item["encrypted_content"] = sealed(text)

    def _close_call(self, text: str, encoded: msgspec.Raw) -> None:
        if (tool := self._tool) is None:
            self._of_item("response.function_call_arguments.done", name=self._item["name"], arguments=encoded)
            self._item["arguments"] = encoded
            return
        said = self._item[tool.field] = said_of(tool, text)
        if tool.stream:
            self._of_item(f"{tool.stream}.delta", delta=said)
            self._of_item(f"{tool.stream}.done", **{tool.field: said})

    def _end(self, usage: Usage) -> None:
        cut = self._ended.reason == "length"
        if not (self._kind or self.response["output"]):
            self._open_message()  # an answer without a word is still one
        self._close("incomplete" if cut else "completed")
        status = "incomplete" if cut else "completed"
        self.response |= {
            "status": status, "completed_at": None if cut else int(self._clock()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},  # no engine says it
                "output_tokens": usage.produced, "output_tokens_details": {"reasoning_tokens": usage.reasoning},
                "total_tokens": usage.prompt + usage.produced,
            },
        }  # fmt: skip
        self._encoded = _encode(self.response)
        if self._done is not None:
            self._done(self._encoded, [item["id"] for item in self.response["output"]])
        self._event(f"response.{status}", response=msgspec.Raw(self._encoded))

    # Events.

    def _event(self, kind: str, **fields: Any) -> None:
        if self._emit is not None:
            self._emit(self._bytes(kind, fields))

    def _of_item(self, kind: str, **fields: Any) -> None:
        self._event(kind, item_id=self._item["id"], output_index=self._index, **fields)

    def _of_part(self, kind: str, **fields: Any) -> None:
        self._of_item(kind, content_index=0, **fields)

    def _bytes(self, kind: str, fields: dict[str, Any]) -> bytes:
        number, self._next = self._next, self._next + 1
        body = {"type": kind, **fields, "sequence_number": number}
        return f"event: {kind}\ndata: ".encode() + _encode(body) + b"\n\n"

    def _short(self) -> dict[str, Any]:
        """Return the response without what a large request said of its tools."""
        return {**self.response, **SHORT} if echoed(self.response) > LARGEST_ECHO else self.response


def echoed(response: dict[str, Any]) -> int:
    """Return the bytes of what a response repeats and may be large."""
    return sum(memoryview(said).nbytes for name in SHORT if isinstance(said := response.get(name), msgspec.Raw))


def response_of(response_id: str, created: int, model: str, echo: dict[str, Any]) -> dict[str, Any]:
    """Return the object of a response that has said nothing yet."""
    return {
        "id": response_id, "object": "response", "created_at": created, "status": "in_progress", "error": None,
        "incomplete_details": None, "model": model, "output": [], "usage": None, "completed_at": None, **echo,
    }  # fmt: skip
