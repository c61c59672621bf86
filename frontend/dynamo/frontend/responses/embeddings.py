"""One request for vectors: sent to some instance, gathered, and written as OpenAI's answer.

The attempts are those of any request (`generation.py`). Since the client has seen nothing before the end, and the
same inputs always give the same vectors, a worker that is lost costs no migration: all inputs go to another one.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dynamo.frontend.desk import Desk
from dynamo.frontend.generation import Choice
from dynamo.llm.embeddings import EmbeddingRequest, numbers_of, read_vectors
from dynamo.llm.protocols import TextRequest
from dynamo.runtime.errors import DynamoException, EngineError

log = logging.getLogger(__name__)


class Embedding(Choice):
    """The vectors of one request, as they come."""

    __slots__ = ("_inputs", "vectors")

    def __init__(self, request: EmbeddingRequest | TextRequest, inputs: int, desk: Desk, waiting: Waiting) -> None:
        super().__init__(0, request, desk, waiting)
        self._inputs = inputs
        self.vectors: dict[int, bytes] = {}
        if isinstance(request, EmbeddingRequest):
            self.prompt_tokens = request.tokens

    @property
    def tokens(self) -> int:
        """How far the attempt is, for limits on workers that say nothing."""
        return len(self.vectors)

    def on_item(self, data: Any, last: bool) -> None:
        """Some vectors."""
        if self._closed:
            return
        try:
            self._add(data)
        except Exception as error:  # whatever a foreign engine put into the item must end this request only
            log.warning("[%s] unreadable vectors", self._desk.context.id(), exc_info=True)
            self._end_with(EngineError(f"a worker sent what can't be read: {error}"))

    def _add(self, data: Any) -> None:
        item = read_vectors(data)
        for index, vector in item.found:
            if not 0 <= index < self._inputs or not vector:
                raise ValueError(f"a vector for input {index} of {self._inputs}")
            self.vectors[index] = vector
        if item.prompt_tokens is not None and isinstance(self._request, TextRequest):
            self.prompt_tokens = int(item.prompt_tokens)

    def on_end(self, error: DynamoException | None) -> None:
        """The stream is over."""
        if self._closed:
            return
        self._call = None
        if error is None and len(self.vectors) < self._inputs:
            error = EngineError(f"the engine gave {len(self.vectors)} vectors for {self._inputs} inputs")
        if error is None:
            self._finish(abandon=False)
        else:
            self._failed(error)

    def _failed(self, error: DynamoException) -> None:
        self.vectors.clear()  # nothing was promised: the next attempt begins anew
        super()._failed(error)


class Waiting:
    """What becomes of one request: told by routing, by its gate, and by a frontend that leaves."""

    def __init__(self) -> None:
        self.over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        """Why there are no vectors; None: they are there."""
        self._embedding: Embedding | None = None

    def start(self, embedding: Embedding) -> None:
        """Send it on its way, unless it was refused meanwhile."""
        if not self.over.done():
            self._embedding = embedding
            embedding.start()

    def finished(self, choice: Choice) -> None:
        self._end(None)

    def failed(self, choice: Choice, error: Exception) -> None:
        self._end(error)

    def refused(self, error: Exception) -> None:
        """It failed, or was not even begun."""
        self.cancel()
        self._end(error)

    def cancel(self) -> None:
        """Nobody wants the vectors any more: free the engine."""
        embedding, self._embedding = self._embedding, None
        if embedding is not None:
            embedding.cancel()

    def _end(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(error)

    def text(self, choice: Choice, text: str) -> None:
        """No text comes of vectors."""

    def tokens(
        self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        """Neither do tokens."""


def answer(model: str, vectors: Sequence[bytes], prompt_tokens: int, *, as_base64: bool) -> Iterator[bytes]:
    """OpenAI's answer in parts, so that a large one is never whole in memory."""
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors):
        comma = b"," if index else b""
        yield comma + b'{"object":"embedding","index":%d,"embedding":' % index + _numbers(vector, as_base64) + b"}"
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    yield b'],"model":' + msgspec.json.encode(model) + b',"usage":' + msgspec.json.encode(usage) + b"}"


def _numbers(vector: bytes, as_base64: bool) -> bytes:
    return b'"' + base64.b64encode(vector) + b'"' if as_base64 else msgspec.json.encode(numbers_of(vector))


def pieces(parts: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The parts together, in pieces of at least `size` bytes; the last one may be shorter."""
    held = bytearray()
    for part in parts:
        held += part
        if len(held) >= size:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
