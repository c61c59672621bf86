"""llama.cpp as a maker of vectors: its arguments for that, and the calls of its server core. Used by `engine.py`.

The core can't be told to stop in the middle of such a call, so a request with many inputs is several calls, each of as
many inputs as there are slots.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dynamo.llm.processing.embeddings import dimensions_of, shortened
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.worker.engines.llamacpp.requests import Fault

ARGUMENTS: Final[dict[str, Any]] = {"embedding": False, "pooling": "", "is_matryoshka": False}
"""Names and defaults: llama.cpp's own for the first two, vLLM's for the third."""
POOLINGS: Final = ("mean", "cls", "last")
INPUT_TOKENS: Final = 512
"""Of an input at most, where nobody says more: llama.cpp's own default, since it computes an input in one piece, and a
model with a large vocabulary needs gigabytes for a long one."""
_UNPOOLED: Final = "'none'"


class Pooling(NamedTuple):
    """Pooling of vectors, as the arguments say it."""

    name: str
    """How an input's tokens become one vector; empty: as the model's file says."""
    may_cut: bool
    """The model was made for vectors that are cut (Matryoshka)."""

    @property
    def whole_inputs(self) -> bool:
        """Tell whether an input must be computed in one piece."""
        return self.name != "last"


def pooling_of(given: dict[str, Any]) -> Pooling | None:
    """Return what checked arguments say; None: the engine makes text.

    `InvalidArgument` where they contradict each other.
    """
    name = given["pooling"]
    if not given["embedding"]:
        for other in ("pooling", "is_matryoshka"):
            if given[other]:
                raise InvalidArgument(f"llamacpp argument {other!r} needs 'embedding': true")
        return None
    if name and name not in POOLINGS:
        raise InvalidArgument(f"llamacpp argument 'pooling' must be one of {', '.join(POOLINGS)}, got {name!r}")
    return Pooling(name, given["is_matryoshka"])


class _Vector(msgspec.Struct):
    index: int
    embedding: str


class _Reply(msgspec.Struct):
    data: list[_Vector] = []
    error: Fault | None = None


_REPLY: Final = msgspec.json.Decoder(_Reply)
Ask = Callable[[bytes], bytes]
"""`handle_embeddings` of the server core: JSON in and out."""


def own_dimensions(ask: Ask, token: int) -> int:
    """Return the numbers in a vector of this model, by asking for one; `InvalidArgument` where it makes none."""
    reply = _asked(ask, [[token]])
    if reply.error is not None:
        if _UNPOOLED in reply.error.message:
            raise InvalidArgument(
                "the model's file doesn't say how an input's tokens become one vector: give llamacpp the argument"
                f" 'pooling', one of {', '.join(POOLINGS)}"
            )
        raise InvalidArgument(f"llama.cpp makes no vectors with this model: {reply.error.message}")
    return dimensions_of(base64.b64decode(reply.data[0].embedding))


def vectors(
    ask: Ask, inputs: Sequence[list[int]], side_by_side: int, dimensions: int | None
) -> Iterator[tuple[int, bytes]]:
    """Yield the vectors of all inputs, with their numbers, call by call; raises what the core says is wrong."""
    for first in range(0, len(inputs), side_by_side):
        part = inputs[first : first + side_by_side]
        reply = _asked(ask, part)
        if reply.error is not None:
            raise reply.error.exception()
        by_index = {embedding.index: embedding.embedding for embedding in reply.data}
        if by_index.keys() != set(range(len(part))):
            raise EngineError(f"llama.cpp gave {len(by_index)} vectors for {len(part)} inputs")
        for index, vector in sorted(by_index.items()):
            yield first + index, shortened(base64.b64decode(vector), dimensions)


def _asked(ask: Ask, inputs: Sequence[list[int]]) -> _Reply:
    data = ask(msgspec.json.encode({"input": inputs, "encoding_format": "base64"}))
    try:
        return _REPLY.decode(data)
    except msgspec.MsgspecError as error:
        raise EngineError(f"llama.cpp sent what could not be read ({error}): {data[:200]!r}") from error
