"""Tokens that an answer may have: `bad_words` and `allowed_token_ids` as biases, which every engine has. Pure.

A word of one token, and with a space before it, is banned by its bias; words of several tokens stay words, for engines
that look at what stands before (vLLM's way, whose names these are). Of allowed tokens the others are out of reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dynamo.llm.protocols import MOST_IDS, SamplingOptions
from dynamo.llm.tokenizer.tokenizer import Tokenizer
from dynamo.runtime.errors import InvalidArgument

BANNED: Final = -100.0
"""OpenAI's bias for a token that never comes."""
ALONE: Final = 100.0
"""Its bias for tokens beside which no other comes."""
_BAD: Final = "bad_words"
_ALLOWED: Final = "allowed_token_ids"
TOKEN_FIELDS: Final = frozenset((_BAD, _ALLOWED))
"""Fields that few bodies have."""


def limit_tokens(body: Mapping[str, Any], sampling: Sequence[SamplingOptions], tokenizer: Tokenizer) -> None:
    """Write what a body says of tokens into its choices' options; raises where it is too much for one request."""
    biases: dict[str, float] = dict.fromkeys(map(str, body.get(_ALLOWED) or ()), ALONE)
    biases |= sampling[0].logit_bias or {}
    single, several = _banned(body.get(_BAD) or (), tokenizer)
    biases |= dict.fromkeys(map(str, single), BANNED)
    if len(biases) > MOST_IDS:
        raise InvalidArgument(f"logit_bias: {len(biases)} tokens have one, with {_BAD} and {_ALLOWED}: {MOST_IDS} may")
    for options in sampling:
        options.logit_bias, options.bad_words = biases or None, several or None


def _banned(words: Sequence[str], tokenizer: Tokenizer) -> tuple[set[int], list[str]]:
    """Return the tokens that are bad words by themselves, and the words that are made of several."""
    single: set[int] = set()
    several: list[str] = []
    for word in words:
        if not word.strip():
            raise InvalidArgument(f"{_BAD}: a word may not be empty")
        forms = [tokenizer.encode(form, add_special=False) for form in (word, f" {word}")]
        single.update(form[0] for form in forms if len(form) == 1)
        if any(len(form) > 1 for form in forms):
            several.append(word)
    return single, several


def truncated(ids: list[int], most: int, context: int | None, wanted: int) -> list[int]:
    """Return the last `most` tokens of a prompt; -1: as many as a context holds beside `wanted` of the answer."""
    if most < 0:
        if context is None:
            return ids
        most = max(1, context - wanted)
    elif context is not None and most > context:
        raise InvalidArgument(f"truncate_prompt_tokens is {most}, but the model's context holds {context} tokens")
    return ids[-most:] if most else []


def without(text: Sequence[int], words: Sequence[Sequence[int]]) -> list[int]:
    """Return tokens of which none completes a banned run of them, as an engine that can't take it goes on."""
    kept: list[int] = []
    for token in text:
        kept.append(token)
        if any(word and kept[-len(word) :] == list(word) for word in words):
            kept.pop()
    return kept
