"""One request for vectors: sent to some instance, gathered, and written as OpenAI's answer.

The attempts are those of any request (`generation/retries.py`). Since the client has seen nothing before the end, and
the same inputs always give the same vectors, a worker that is lost costs no migration: all inputs go to another one.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dynamo.frontend.generation.migration import MigrationState
from dynamo.frontend.generation.request_scope import RequestScope
from dynamo.frontend.generation.retries import Retries
from dynamo.llm.processing.embeddings import EmbeddingRequest, numbers_of, read_vectors
from dynamo.llm.protocols import TextRequest
from dynamo.runtime.errors import DynamoException, EngineError

log = logging.getLogger(__name__)


class Embedding:
    """The vectors of one request, as they come."""

    __slots__ = ("_closed", "_inputs", "_request", "_retries", "_scope", "_waiting", "prompt_tokens", "vectors")

    def __init__(
        self, request: EmbeddingRequest | TextRequest, inputs: int, scope: RequestScope, waiting: Waiting
    ) -> None:
        self._request, self._inputs, self._scope, self._waiting = request, inputs, scope, waiting
        self._retries: Retries | None = None
        self._closed = False
        self.vectors: dict[int, bytes] = {}
        self.prompt_tokens = request.tokens if isinstance(request, EmbeddingRequest) else 0

    @property
    def tokens(self) -> int:
        """Return how far the attempt is, for limits on workers that say nothing."""
        return len(self.vectors)

    def start(self) -> None:
        """Send the request to a worker."""
        settings = self._scope.migration
        migration = MigrationState(self._request, settings) if settings.limit > 0 else None
        self._retries = Retries(self, 0, self._request, self._scope, migration)
        self._retries.start()

    def cancel(self) -> None:
        """End it; `Waiting` hears nothing more."""
        self._closed = True
        retries, self._retries = self._retries, None
        if retries is not None:
            retries.cancel()

    def chosen(self, awaits_first_token: bool) -> None:
        """Hear that an attempt has its worker, whose load counts the prompt until the end: vectors come all at once."""

    def on_item(self, data: Any, last: bool) -> None:
        """Take some vectors."""
        if self._closed:
            return
        try:
            self._add(data)
        except Exception as error:  # whatever a foreign engine put into the item must end this request only
            log.warning("[%s] unreadable vectors", self._scope.context.id(), exc_info=True)
            self.stalled(EngineError(f"a worker sent what can't be read: {error}"))

    def _add(self, data: Any) -> None:
        item = read_vectors(data)
        for index, vector in item.vectors:
            if not 0 <= index < self._inputs or not vector:
                raise ValueError(f"a vector for input {index} of {self._inputs}")
            self.vectors[index] = vector
        if item.prompt_tokens is not None and isinstance(self._request, TextRequest):
            self.prompt_tokens = int(item.prompt_tokens)

    def on_end(self, error: DynamoException | None) -> None:
        """Hear that the stream is over."""
        if self._closed:
            return
        if error is None and len(self.vectors) < self._inputs:
            error = EngineError(f"the engine gave {len(self.vectors)} vectors for {self._inputs} inputs")
        retries = self._retries
        assert retries is not None
        if error is None:
            self._closed, self._retries = True, None
            retries.finish(abandon=False)
            self._waiting.finished()
        else:
            self.vectors.clear()  # nothing was promised: the next attempt begins anew
            retries.failed(error)

    def stalled(self, error: DynamoException) -> None:
        """Give the worker up: it has said nothing for too long, or what can't be read."""
        self.vectors.clear()
        if self._retries is not None:
            self._retries.give_up(error)

    def failed(self, error: DynamoException) -> None:
        """Hear that no other attempt is made."""
        self._closed, self._retries = True, None
        self._waiting.failed(error)


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

    def finished(self) -> None:
        """Hear that all vectors are here."""
        self._end(None)

    def failed(self, error: Exception) -> None:
        """Hear that no attempt is left."""
        self._end(error)

    def refused(self, error: Exception) -> None:
        """End it with the error: it failed, or was not even begun."""
        self.cancel()
        self._end(error)

    def cancel(self) -> None:
        """Free the engine: nobody wants the vectors any more."""
        embedding, self._embedding = self._embedding, None
        if embedding is not None:
            embedding.cancel()

    def _end(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(error)


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
    """Return the parts together, in pieces of at least `size` bytes; the last one may be shorter."""
    held = bytearray()
    for part in parts:
        held += part
        if len(held) >= size:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
