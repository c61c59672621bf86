"""OpenAI's chunks of a stream as bytes: what stands around a token's text is made once per choice.

Pinned byte by byte in `tests/frontend/responses/test_sse_bytes.py`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

DONE: Final = b"data: [DONE]\n\n"
"""What a stream ends with, unless it failed."""
_encode = msgspec.json.encode


class Identity(msgspec.Struct):
    """Identity of an answer, which every chunk repeats."""

    id: str
    created: int
    model: str
    fingerprint: str
    tier: str | None = None
    """Of service; None: nobody has asked for one."""

    def head(self, kind: str) -> dict[str, Any]:
        """Return what an answer begins with."""
        head = {
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "system_fingerprint": self.fingerprint,
        }  # fmt: skip
        return head if self.tier is None else {**head, "service_tier": self.tier}


def _envelope(who: Identity, kind: str) -> bytes:
    """Return `data: {…,"choices":` of one answer."""
    return b"data: " + _encode(who.head(kind))[:-1] + b',"choices":'


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

    def scored(self, index: int, text: str, first: bool, more: dict[str, Any]) -> bytes:
        """Return a chunk of text with what is told of its tokens."""
        delta = {"role": "assistant", "content": text} if first else {"content": text}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return self._envelope + b"[" + _encode(choice)[:-1] + self._close

    def with_prompt(self, chunk: bytes, ids: list[int]) -> bytes:
        """Return a choice's first chunk with the prompt's token ids, beside the choices as vLLM has them."""
        return b'data: {"prompt_token_ids":' + _encode(ids) + b"," + chunk.removeprefix(b"data: {")

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

    def scored(self, index: int, text: str, first: bool, more: dict[str, Any]) -> bytes:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None, **more}
        return self._envelope + b"[" + _encode(choice)[:-1] + self._close

    def with_prompt(self, chunk: bytes, ids: list[int]) -> bytes:
        """Return a choice's first chunk with its prompt's token ids, in the choice as vLLM has them."""
        return chunk.removesuffix(self._close) + b',"prompt_token_ids":' + _encode(ids) + self._close

    def finish(self, index: int, reason: str, stop_reason: Any) -> bytes:
        extra = b"" if stop_reason is None else b',"stop_reason":' + _encode(stop_reason)
        body = b'[{"index":%d,"text":"","logprobs":null,"finish_reason":%b%b' % (index, _encode(reason), extra)
        return self._envelope + body + self._close

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._envelope + b'[],"usage":' + _encode(usage) + b"}\n\n"


def error_event(body: bytes) -> bytes:
    """Return an error in mid-stream; the stream ends after it, without `[DONE]`."""
    return b"data: " + body + b"\n\n"
