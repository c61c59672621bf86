"""The tokenizer port: what preprocessing and detokenising need of a tokenizer.

Two adapters: `byte_level.py` (built in, no files) and `huggingface.py` (any `tokenizer.json`). The frontend opens
one per card digest, in a thread, since a large file takes a second to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Mode = Literal["auto", "default", "fastokens"]
"""`auto`: fastokens where it is installed and gives the same ids; `default`: never; `fastokens`: or fail."""


class TextStream(Protocol):
    """Turns one sequence's token ids into text, one at a time; never emits half a character."""

    def step(self, token_id: int, /) -> str:
        """Return the characters that this token completes (often all of its own, "" if none)."""


class Tokenizer(Protocol):
    """Text to ids and back. Safe to share between requests."""

    vocab_size: int
    """One more than the largest known id."""
    longest_token: int
    """Characters of the longest token: no text has fewer tokens than its length divided by this."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Return the ids; `InvalidArgument` for text that has no UTF-8 form (lone surrogates)."""

    async def encode_async(self, text: str, add_special: bool = True) -> list[int]:
        """Encode as `encode`, but long work is done in a thread."""

    def count(self, text: str) -> int:
        """Return how many tokens a text has, without keeping any; special tokens around it aren't counted."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of a whole sequence; unknown ids add nothing."""

    def text_stream(self, prompt_ids: Sequence[int] = (), skip_special: bool = True) -> TextStream:
        """Start detokenising what follows `prompt_ids`."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return what one token stands for alone, special ones by their name (for logprobs)."""

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """Return what the tokens stand for, one after the other, each as by `token_bytes`."""

    def token_id(self, content: str) -> int | None:
        """Return the id of a token by its exact content."""
