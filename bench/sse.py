"""What the load client reads of an answer: as little as can be, and still know that it was whole.

One `Answer` per request is fed the pieces of its body as they come. It never decodes JSON while tokens flow: it
counts events by the blank line that ends each (JSON has no raw newline), finds the first one that carries text, and
keeps the tail, in which the usage figures and `[DONE]` must stand. Pure: the clock is the caller's.
"""

from __future__ import annotations

import json
import re

_TEXT = re.compile(rb'"(?:content|text)":\s*"[^"]')
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens":\s*(\d+)')
_CACHED = re.compile(rb'"cached_tokens":\s*(\d+)')
_FINISH = re.compile(rb'"finish_reason":\s*"(\w+)"')
_DONE = b"data: [DONE]"
# Holds the last events of a stream whatever the length of their ids and names.
_TAIL = 2048


class Answer:
    """One streamed or whole body. `feed` gives the number of events that a piece completed."""

    __slots__ = ("_last", "_tail", "events", "has_text", "size")

    def __init__(self) -> None:
        self.events = 0
        self.size = 0
        self.has_text = False
        self._tail = b""
        self._last = b""

    def feed(self, piece: bytes) -> int:
        """Take the next piece of the body; how many events ended in it."""
        self.size += len(piece)
        completed = piece.count(b"\n\n")
        if self._last == b"\n" and piece[:1] == b"\n" and piece[:2] != b"\n\n":
            completed += 1
        self._last = piece[-1:]
        self.events += completed
        self._tail = piece if len(piece) >= _TAIL else (self._tail + piece)[-_TAIL:]
        if not self.has_text:
            self.has_text = _TEXT.search(self._tail) is not None
        return completed

    def prompt_tokens(self) -> tuple[int, int | None]:
        """Tokens of the prompt and how many of them came from a cache, as the usage says; None where it doesn't."""
        prompt, cached = _PROMPT.search(self._tail), _CACHED.search(self._tail)
        return int(prompt[1]) if prompt else 0, int(cached[1]) if cached else None

    def fault(self, status: int, tokens: int, streamed: bool) -> str | None:
        """Why this answer is not what was asked for, or None."""
        if status != 200:
            return f"status {status}: {self._tail[:200].decode(errors='replace')}"
        if streamed and _DONE not in self._tail:
            return "the stream ended without [DONE]"
        counted = _USAGE.search(self._tail)
        if counted is None:
            return "no usage in the answer"
        if int(counted[1]) != tokens:
            return f"{int(counted[1])} tokens instead of {tokens}"
        finish = _FINISH.search(self._tail)
        if finish is None or finish[1] != b"length":
            return f"finish_reason is {finish[1].decode() if finish else 'missing'}, not length"
        return None


def event_texts(body: bytes) -> list[str]:
    """The texts of a whole SSE body, event by event (for exactness, not for speed)."""
    texts: list[str] = []
    for event in body.split(b"\n\n"):
        data = event.removeprefix(b"data: ")
        if not event.startswith(b"data: ") or data == b"[DONE]":
            continue
        choices = json.loads(data).get("choices", ())
        texts.extend(c.get("delta", {}).get("content") or c.get("text") or "" for c in choices)
    return texts
