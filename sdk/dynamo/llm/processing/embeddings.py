"""Texts to vectors: what the frontend asks an engine for, what comes back, and how inputs become tokens.

All inputs of a request travel together. A vector is its numbers as float32, little-endian, which is what OpenAI's
base64 form holds: nobody on the way reads them as numbers. An engine answers with items `[index, vector]`, one per
input and in any order, so that no answer is too large for the bus. NVIDIA Dynamo's forms are accepted too
(`read_vectors` turns all into the same).
"""

from __future__ import annotations

import asyncio
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from dynamo.llm.processing.preprocess import ContextLengthExceeded, Preprocessor, far_over
from dynamo.llm.processing.token_limits import truncated
from dynamo.runtime.errors import InvalidArgument

MOST_INPUTS: Final = 2048
"""In one request; OpenAI's bound."""
MOST_DIMENSIONS: Final = 65_536
KIND: Final = "embeddings"
"""`TextRequest.kind` of a request for vectors to an engine that takes text."""
_TURN: Final = 64
"""Inputs that are tokenised before others have their turn on the loop."""
_NUMBER: Final = 4
"""Bytes of a number in a vector."""

Input = str | list[int]


class EmbeddingRequest(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Inputs for an engine that takes tokens; the names are those of NVIDIA Dynamo's request."""

    model: str
    token_ids: list[list[int]]
    """Of each input."""
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Numbers that each vector must have; None: as many as the model gives."""
    mdc_sum: str = ""

    @property
    def tokens(self) -> int:
        """Count the tokens of all inputs together."""
        return sum(map(len, self.token_ids))


class Vectors(msgspec.Struct):
    """Vectors that one item of an engine holds."""

    vectors: list[tuple[int, bytes]]
    """Inputs by their number, and their vectors."""
    prompt_tokens: int | None = None
    """Of all inputs, where the engine says it: one that takes text has to."""


class InputTooLong(ContextLengthExceeded):
    """An input is longer than what the model reads at once."""

    def __init__(self, number: int, tokens: int, context: int, *, at_least: bool = False) -> None:
        super().__init__(tokens, context, at_least=at_least)
        text = (
            f"This model's maximum context length is {context} tokens, but input {number} has "
            f"{'at least ' if at_least else ''}{tokens} tokens. Please shorten it, or cut it into several inputs."
        )
        self.args = (text,)


def read_inputs(given: Any) -> list[Input]:
    """Read OpenAI's four forms of `input`: text, texts, token ids, lists of token ids. Raises `InvalidArgument`."""
    several = [given] if isinstance(given, str) or _are_ids(given) else given
    if not isinstance(several, list) or not several:
        kind = "an empty list" if several == [] else type(given).__name__
        raise InvalidArgument(
            f"input must be a string, a list of strings, token ids or a list of such lists, got {kind}"
        )
    if len(several) > MOST_INPUTS:
        raise InvalidArgument(f"input has {len(several)} entries: at most {MOST_INPUTS} are taken in one request")
    for number, text in enumerate(several):
        if not isinstance(text, str) and not _are_ids(text):
            raise InvalidArgument(f"input: entry {number} is neither a string nor a list of token ids")
        if not text:
            raise InvalidArgument(f"input: entry {number} is empty")
    return several


def _are_ids(given: Any) -> bool:
    if not isinstance(given, list) or set(map(type, given)) != {int}:  # there may be millions
        return False
    return bool(min(given) >= 0 and max(given) < 2**31)


async def tokenised(
    inputs: Sequence[Input], preprocessor: Preprocessor, *, blocking: bool = False, most: int | None = None
) -> list[list[int]]:
    """Return the tokens of each input; `InvalidArgument` names the one that doesn't fit the model.

    `blocking`: it is called in a thread, and never waits. `most`: of each as many tokens, at its end; -1: the context.
    """
    prompts = []
    for number, text in enumerate(inputs):
        if number % _TURN == _TURN - 1 and not blocking:
            await asyncio.sleep(0)
        prompts.append(await _tokens(number, text, preprocessor, blocking, most))
    return prompts


async def _tokens(number: int, given: Input, preprocessor: Preprocessor, blocking: bool, most: int | None) -> list[int]:
    card, tokenizer = preprocessor.card, preprocessor.tokenizer
    context = card.context_length
    if isinstance(given, str):
        if context is not None:
            least = preprocessor.over(given) if blocking else far_over(given, tokenizer, context)
            if least:
                raise InputTooLong(number, least, context, at_least=True)
        ids = tokenizer.encode(given) if blocking else await tokenizer.encode_async(given)
    else:
        ids = given
    if most is not None:
        given = ids = truncated(ids, most, context, 0)
    if context is not None and len(ids) > context:
        raise InputTooLong(number, len(ids), context)
    if not ids:
        raise InvalidArgument(f"input: entry {number} has no tokens")
    limit = card.vocab_size or tokenizer.vocab_size
    if ids is given and max(ids) >= limit:
        raise InvalidArgument(
            f"input: entry {number} has the token id {max(ids)}, but the vocabulary ends at {limit - 1}"
        )
    return ids


def packed(numbers: Sequence[float]) -> bytes:
    """Pack a vector of these numbers. Raises `TypeError` or `OverflowError` for what has no place in one."""
    floats = array("f", numbers)
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tobytes()


def numbers_of(vector: bytes) -> list[float]:
    """Return the numbers of a vector."""
    floats = array("f")
    floats.frombytes(vector)
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tolist()


def dimensions_of(vector: bytes) -> int:
    """Return how many numbers it has."""
    return len(vector) // _NUMBER


def shortened(vector: bytes, dimensions: int | None) -> bytes:
    """Return the first `dimensions` numbers of a vector, of length 1 again.

    For models whose vectors are made to be cut.
    """
    if dimensions is None or dimensions_of(vector) <= dimensions:
        return vector
    return packed(normalised(numbers_of(vector[: dimensions * _NUMBER])))


def normalised(numbers: Sequence[float]) -> list[float]:
    """Return the same direction with length 1; nothing but zeros stays as it is."""
    length = math.sqrt(math.fsum(number * number for number in numbers))
    return [number / length for number in numbers] if length else [*numbers]


def check_dimensions(wanted: int | None, own: int, *, cut: bool) -> None:
    """Raise `InvalidArgument` where vectors of `own` numbers can't be given with `wanted` of them; `cut`: they may be
    cut."""
    if wanted is None or wanted == own or (cut and wanted < own):
        return
    if cut:
        raise InvalidArgument(f"dimensions: this model's vectors have {own} numbers, {wanted} are more than that")
    raise InvalidArgument(
        f"dimensions: this model's vectors have {own} numbers and are not made to be cut; leave dimensions out"
    )


def read_vectors(item: Any) -> Vectors:
    """Read what an engine sent: `[index, vector]`, or NVIDIA Dynamo's `{"embeddings": [[…], …], "prompt_tokens".

    N}`, or OpenAI's own answer. `ValueError`, `TypeError` or `OverflowError` for anything else.
    """
    if type(item) is list:
        index, vector = item
        if type(index) is not int or type(vector) is not bytes or len(vector) % _NUMBER:
            raise ValueError("an item is no vector")
        return Vectors([(index, vector)])
    if not isinstance(item, Mapping):
        raise ValueError(f"{type(item).__name__}, where vectors were expected")
    if "embeddings" in item:
        vectors = [(index, packed(vector)) for index, vector in enumerate(item["embeddings"])]
        return Vectors(vectors, item.get("prompt_tokens"))
    vectors = [(int(vector["index"]), _of_openai(vector["embedding"])) for vector in item["data"]]
    return Vectors(vectors, (item.get("usage") or {}).get("prompt_tokens"))


def _of_openai(given: Any) -> bytes:
    if not isinstance(given, str):
        return packed(given)
    import base64

    return base64.b64decode(given, validate=True)
