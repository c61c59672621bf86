"""A program's `generate` behind a model that it registered: from the frontends' requests and to their deltas.

What comes from elsewhere (a program of the user's that calls the endpoint by itself) reaches `generate` as it is, and
what that yields goes back as it is.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, Literal

import msgspec

from dynamo.llm.exceptions import HttpError, on_the_wire
from dynamo.llm.handlers.calling import call, passes_context
from dynamo.llm.handlers.outputs import Mistake, Piece, read_chunk, read_output
from dynamo.llm.handlers.requests import text_request, tokens_request
from dynamo.llm.protocols import PreprocessedRequest, TextRequest, delta, output_dict
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException, EngineError, InvalidArgument
from dynamo.runtime.offers import Generate

_FORM: Final = "write 'async def generate(request):' and yield each piece"
Take = Callable[[Any], Any]
"""An item as it is yielded to an item as it is sent."""


def adapter(model_input: Literal["tokens", "text"]) -> Callable[[Generate], Generate]:
    """What stands around a `generate` that takes tokens, or text."""
    read = _tokens if model_input == "tokens" else _text

    def adapt(generate: Generate) -> Generate:
        passes = passes_context(generate)

        async def run(payload: Any, context: Context) -> AsyncIterator[Any]:
            request, take = read(payload)
            with _told():
                output = call(generate, passes, request, context)
                async for item in _items(output):
                    yield take(item)

        return run

    return adapt


async def _items(output: Any) -> AsyncIterator[Any]:
    """Of a generator, which is closed however its reader leaves; of a coroutine its one result."""
    if inspect.isawaitable(output):
        output = await output
    if not isinstance(output, AsyncIterator):
        if inspect.isgenerator(output) or not isinstance(output, (dict, str)):
            raise Mistake(f"generate returned {type(output).__name__}, no async generator: {_FORM}")
        yield output
        return
    try:
        async for item in output:
            yield item
    finally:
        if (close := getattr(output, "aclose", None)) is not None:
            await close()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What `generate` raises, as it travels: `HttpError` keeps its status, `ValueError` is the client's mistake."""
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


def _tokens(payload: Any) -> tuple[Any, Take]:
    if not isinstance(payload, dict) or "model" not in payload or "token_ids" not in payload:
        return payload, _as_it_is
    try:
        request = msgspec.convert(payload, PreprocessedRequest)
    except msgspec.ValidationError:
        return payload, _as_it_is
    return {**payload, **tokens_request(request)}, _output


def _text(payload: Any) -> tuple[Any, Take]:
    if not isinstance(payload, dict) or payload.keys() != {"model", "kind", "body"}:
        return payload, _as_it_is
    try:
        return text_request(msgspec.convert(payload, TextRequest)), _chunk
    except msgspec.ValidationError:
        return payload, _as_it_is


def _as_it_is(item: Any) -> Any:
    return item


def _output(item: Any) -> Any:
    """The item itself, which frontends read, where that holds tokens and nothing else; programs see their own names."""
    piece: Piece = read_output(item)
    if piece.extras is None and piece.finish is None:
        return item
    return {**item, **output_dict([*piece])}


def _chunk(item: Any) -> Any:
    piece = read_chunk(item)
    return delta(piece.produced, piece.finish, piece.extras)
