"""Prompts of a trace as blocks that router and engine know: a hash id stands for a token of that number, repeated.

So names are made by `dynamo.llm.kv.block_hash`, as for any prompt, without ever having the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from dynamo.cli.simulation.trace import Call, TraceError
from dynamo.llm.kv.block_hash import block_hashes, sequence_hashes

_LAST_TOKEN: Final = (1 << 32) - 1
"""Ids of a trace are below 2**31, so tokens counted down from here are nobody's."""
_REMEMBERED: Final = 1 << 17


class Prompts:
    """Blocks of `block_size` tokens, from ids that stand for `id_tokens`; raises `TraceError` where they don't fit."""

    def __init__(self, block_size: int, id_tokens: int) -> None:
        if id_tokens % block_size:
            raise TraceError(
                f"a hash id stands for {id_tokens} tokens (--trace-block-size), which is no multiple of the engine's"
                f" blocks of {block_size} (block_size in --engine-args)"
            )
        self._block_size, self._id_tokens = block_size, id_tokens
        self._blocks = lru_cache(_REMEMBERED)(self._hashed)

    def prompt(self, call: Call) -> tuple[list[int], list[int]]:
        """Return the names of its whole blocks, and the tokens after them."""
        whole, rest = divmod(call.tokens_in, self._block_size)
        blocks = [name for number in call.ids for name in self._blocks(number)]
        return sequence_hashes(blocks[:whole]), [call.ids[-1]] * rest

    def answer(self, call: Call, number: int, length: int) -> list[int]:
        """Return the tokens of its answer; those that the trace doesn't name are those of request `number` alone."""
        tokens: list[int] = []
        if call.output_ids is not None:
            tokens += [call.ids[-1]] * min(length, -call.tokens_in % self._id_tokens)
            for output in call.output_ids:
                tokens += [output] * min(self._id_tokens, length - len(tokens))
        return tokens + [_LAST_TOKEN - number] * (length - len(tokens))

    def _hashed(self, number: int) -> Sequence[int]:
        """Return the hashes of an id's blocks."""
        return tuple(block_hashes([number] * self._block_size, self._block_size)) * (
            self._id_tokens // self._block_size
        )
