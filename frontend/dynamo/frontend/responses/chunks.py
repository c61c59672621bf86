"""The bytes of answers: SSE lines by concatenation, whole answers by one encode.

A streamed token costs one JSON-escaped string between two byte strings that are made
once per choice. `generation/choice.py` never sees JSON; `response.py` calls this. Pinned byte
by byte in `tests/frontend/responses/test_sse_bytes.py`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

DONE: Final = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


class Identity(msgspec.Struct):
    """Identity of an answer, which every chunk repeats."""

    id: str
    created: int
    model: str
    fingerprint: str


def _envelope(who: Identity, kind: str) -> bytes:
    """Return `data: {…,"choices":` of one answer."""
    head = {
        "id": who.id, "object": kind, "created": who.created, "model": who.model,
        "system_fingerprint": who.fingerprint,
    }  # fmt: skip
    return b"data: " + _encode(head)[:-1] + b',"choices":'


class ChatChunks:
    """Chunk bytes of a chat stream. `usage`: include_usage was asked, so chunks carry `"usage":null`."""

    kind: Final = "chat.completion.chunk"

    def __init__(self, who: Identity, usage: bool) -> None:
        self._envelope = _envelope(who, self.kind)
        self._close = b'}],"usage":null}\n\n' if usage else b"}]}\n\n"
        self.tail = b'},"logprobs":null,"finish_reason":null' + self._close

    def prefix(self, index: int) -> bytes:
        """Return all that stands before the JSON string of a token's text."""
        return self._envelope + b'[{"index":%d,"delta":{"content":' % index

    def first(self, index: int, text: str) -> bytes:
        """Return the first chunk of a choice, which names the role."""
        delta = b'[{"index":%d,"delta":{"role":"assistant","content":' % index
        return self._envelope + delta + _encode(text) + self.tail

    def delta(self, index: int, delta: dict[str, Any]) -> bytes:
        """Return a chunk with anything but text."""
        return self._envelope + b'[{"index":%d,"delta":' % index + _encode(delta)[:-1] + self.tail

    def with_logprobs(self, index: int, text: str, logprobs: Any, first: bool) -> bytes:
        delta = {"role": "assistant", "content": text} if first else {"content": text}
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._envelope + b"[" + _encode(choice)[:-1] + self._close

    def finish(self, index: int, reason: str, stop_reason: Any) -> bytes:
        extra = b"" if stop_reason is None else b',"stop_reason":' + _encode(stop_reason)
        body = b'[{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b%b' % (index, _encode(reason), extra)
        return self._envelope + body + self._close

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._envelope + b'[],"usage":' + _encode(usage) + b"}\n\n"


class CompletionChunks:
    """Chunk bytes of a completion stream."""

    kind: Final = "text_completion"

    def __init__(self, who: Identity, usage: bool) -> None:
        self._envelope = _envelope(who, self.kind)
        self._close = b'}],"usage":null}\n\n' if usage else b"}]}\n\n"
        self.tail = b',"logprobs":null,"finish_reason":null' + self._close

    def prefix(self, index: int) -> bytes:
        return self._envelope + b'[{"index":%d,"text":' % index

    def first(self, index: int, text: str) -> bytes:
        return self.prefix(index) + _encode(text) + self.tail

    def with_logprobs(self, index: int, text: str, logprobs: Any, first: bool) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}
        return self._envelope + b"[" + _encode(choice)[:-1] + self._close

    def finish(self, index: int, reason: str, stop_reason: Any) -> bytes:
        extra = b"" if stop_reason is None else b',"stop_reason":' + _encode(stop_reason)
        body = b'[{"index":%d,"text":"","logprobs":null,"finish_reason":%b%b' % (index, _encode(reason), extra)
        return self._envelope + body + self._close

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._envelope + b'[],"usage":' + _encode(usage) + b"}\n\n"


def error_event(body: bytes) -> bytes:
    """Return an error in mid-stream; the stream ends after it, without `[DONE]`."""
    return b"data: " + body + b"\n\n"


def usage_dict(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def chat_answer(who: Identity, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
    """Return a whole chat answer."""
    return _answer(who, "chat.completion", choices, usage)


def completion_answer(who: Identity, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
    """Return a whole completion answer."""
    return _answer(who, "text_completion", choices, usage)


def _answer(who: Identity, kind: str, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
    body = {"id": who.id, "object": kind, "created": who.created, "model": who.model}
    return _encode({**body, "system_fingerprint": who.fingerprint, "choices": choices, "usage": usage})
