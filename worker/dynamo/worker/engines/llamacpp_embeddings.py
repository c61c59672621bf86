"""llama.cpp as a maker of vectors: its arguments for that, and the calls of its server core. Used by `llamacpp.py`.

The core can't be told to stop in the middle of such a call, so a request with many inputs is several calls, each of as
many inputs as there are slots.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from dynamo.llm.embeddings import dimensions_of, shortened
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.worker.engines.llamacpp_chunks import error_of

ARGUMENTS: Final[dict[str, Any]] = {"embedding": False, "pooling": "", "is_matryoshka": False}
"""Names and defaults: llama.cpp's own for the first two, vLLM's for the third."""
POOLINGS: Final = ("mean", "cls", "last")
INPUT_TOKENS: Final = 512
"""Of an input at most, where nobody says more: llama.cpp's own default, since it computes an input in one piece, and a
model with a large vocabulary needs gigabytes for a long one."""
_UNPOOLED: Final = "'none'"


class Pooling(NamedTuple):
    """What the arguments say of vectors."""

    name: str
    """How an input's tokens become one vector; empty: as the model's file says."""
    may_cut: bool
    """The model was made for vectors that are cut (Matryoshka)."""

    @property
    def whole_inputs(self) -> bool:
        """An input must be computed in one piece."""
        return self.name != "last"


def pooling_of(given: dict[str, Any]) -> Pooling | None:
    """What checked arguments say; None: the engine makes text. `InvalidArgument` where they contradict each other."""
    name = given["pooling"]
    if not given["embedding"]:
        for other in ("pooling", "is_matryoshka"):
            if given[other]:
                raise InvalidArgument(f"llamacpp argument {other!r} needs 'embedding': true")
        return None
    if name and name not in POOLINGS:
        raise InvalidArgument(f"llamacpp argument 'pooling' must be one of {', '.join(POOLINGS)}, got {name!r}")
    return Pooling(name, given["is_matryoshka"])


def own_dimensions(ask: Callable[[dict[str, Any]], Any], token: int) -> int:
    """Numbers in a vector of this model, by asking for one; `InvalidArgument` where it makes none."""
    reply = ask({"input": [[token]], "encoding_format": "base64"})
    if error := error_of(reply):
        if _UNPOOLED in error.message:
            raise InvalidArgument(
                "the model's file doesn't say how an input's tokens become one vector: give llamacpp the argument"
                f" 'pooling', one of {', '.join(POOLINGS)}"
            )
        raise InvalidArgument(f"llama.cpp makes no vectors with this model: {error.message}")
    return dimensions_of(base64.b64decode(reply["data"][0]["embedding"]))


def vectors(
    ask: Callable[[dict[str, Any]], Any], inputs: Sequence[list[int]], side_by_side: int, dimensions: int | None
) -> Iterator[tuple[int, bytes]]:
    """The vectors of all inputs, with their numbers, call by call; raises what the core says is wrong."""
    for first in range(0, len(inputs), side_by_side):
        part = inputs[first : first + side_by_side]
        reply = ask({"input": part, "encoding_format": "base64"})
        if error := error_of(reply):
            raise error
        found = {one["index"]: one["embedding"] for one in reply["data"]}
        if found.keys() != set(range(len(part))):
            raise EngineError(f"llama.cpp gave {len(found)} vectors for {len(part)} inputs")
        for index, vector in sorted(found.items()):
            yield first + index, shortened(base64.b64decode(vector), dimensions)
