"""A program's `generate` behind a model that it registered: from the frontends' requests and to their deltas.

What comes from elsewhere (a program of the user's that calls the endpoint by itself) reaches `generate` as it is, and
what that yields goes back as it is.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final, Literal

import msgspec

from dynamo.llm.exceptions import HttpError, on_the_wire
from dynamo.llm.processing.embeddings import KIND, EmbeddingRequest
from dynamo.llm.protocols import PreprocessedRequest, TextRequest, delta, output_dict
from dynamo.llm.serving.handler_io import Mistake, check_vectors, read_chunk, read_output, text_request, tokens_request
from dynamo.runtime.context import Context
from dynamo.runtime.endpoint import Generate
from dynamo.runtime.errors import DynamoException, EngineError, InvalidArgument
from dynamo.runtime.request_plane.generator_handler import call, wanted_context

_FORM: Final = "write 'async def generate(request):' and yield each piece"
Send = Callable[[AsyncIterator[Any]], AsyncIterator[Any]]
"""Items as they are yielded to items as they are sent."""


def adapter(model_input: Literal["tokens", "text"]) -> Callable[[Generate], Generate]:
    """Return what stands around a `generate` that takes tokens, or text."""
    read = _tokens if model_input == "tokens" else _text

    def adapt(generate: Generate) -> Generate:
        wants = wanted_context(generate, starred=False)

        async def run(payload: Any, context: Context) -> AsyncIterator[Any]:
            request, send = read(payload)
            with _told():
                async with aclosing(_items(call(generate, wants, request, context))) as items:
                    async for item in send(items):
                        yield item

        return run

    return adapt


async def _items(output: Any) -> AsyncGenerator[Any, None]:
    """Yield the items of a generator, which is closed however its reader leaves; of a coroutine its one result."""
    if inspect.isawaitable(output):
        output = await output
    if isinstance(output, dict | str):
        yield output
        return
    if not isinstance(output, AsyncIterator):
        raise Mistake(f"generate returned {type(output).__name__}, no async generator: {_FORM}")
    try:
        async for item in output:
            yield item
    finally:
        if (close := getattr(output, "aclose", None)) is not None:
            await close()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Translate what `generate` raises, as it travels.

    `HttpError` keeps its status, `ValueError` is the client's mistake.
    """
    try:
        yield
    except DynamoException:
        raise
    except HttpError as error:
        raise on_the_wire(error) from error
    except Mistake as error:
        raise EngineError(f"this model's program {error}") from error
    except ValueError as error:
        raise InvalidArgument(f"ValueError: {error}") from error


def _tokens(payload: Any) -> tuple[Any, Send]:
    if not isinstance(payload, dict) or "model" not in payload or "token_ids" not in payload:
        return payload, _as_they_are
    if _wants_vectors(payload):
        return payload, _vectors
    try:
        request = msgspec.convert(payload, PreprocessedRequest)
    except msgspec.ValidationError:
        return payload, _as_they_are
    return {**payload, **tokens_request(request)}, _outputs


def _text(payload: Any) -> tuple[Any, Send]:
    if not isinstance(payload, dict) or payload.keys() != {"model", "kind", "body"}:
        return payload, _as_they_are
    try:
        request = msgspec.convert(payload, TextRequest)
    except msgspec.ValidationError:
        return payload, _as_they_are
    return text_request(request), _vectors if request.kind == KIND else _deltas


def _wants_vectors(payload: Any) -> bool:
    """Tell whether it has tokens of several inputs, as requests for vectors have."""
    try:
        return bool(msgspec.convert(payload, EmbeddingRequest).token_ids)
    except msgspec.ValidationError:
        return False


def _as_they_are(items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    return items


async def _vectors(items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the dicts themselves, which frontends read."""
    async for item in items:
        check_vectors(item)
        yield item


async def _outputs(items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the dicts themselves, which frontends read: programs find their own names in them."""
    async for item in items:
        piece = read_output(item)
        yield item if piece.extras is None and piece.finish is None else {**item, **output_dict([*piece])}


async def _deltas(items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the deltas, the end last: the usage may follow the finish reason."""
    finish: str | None = None
    extras: dict[str, Any] = {}
    async for item in items:
        piece = read_chunk(item)
        if finish is not None and piece.produced:
            raise Mistake(f"yields more text after finish_reason {finish!r}: yield it before")
        if finish is None and piece.finish is None:
            yield delta(piece.produced, None, piece.extras)
            continue
        if piece.produced:
            yield delta(piece.produced)
        finish, extras = finish or piece.finish, extras | (piece.extras or {})
    if finish is not None:
        yield delta("", finish, extras or None)
