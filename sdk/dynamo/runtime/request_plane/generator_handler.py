"""Handlers written as async generators, NVIDIA Dynamo's form, over the push-style one.

`async def handler(request)`, `handler(request, context)` or `handler(request, *, context)`: yield items, return to end
well, raise to fail. Each request runs in a task, which is cancelled as soon as the
client leaves, so a slot is free within one step.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from dynamo.runtime.context import Context
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.runtime.request_plane.peer import Incoming

_log: Final = logging.getLogger(__name__)


class Wants(enum.Enum):
    """Form in which a handler takes the request's context."""

    NO = 0
    SECOND = 1
    NAMED = 2


def from_generator(handler: Callable[..., Any]) -> Callable[[Incoming], None]:
    """Turn an async generator function (or a coroutine function: one item) into a low-level handler."""
    wants = wanted_context(handler)
    tasks = TaskOwner(_log)

    def start(incoming: Incoming) -> None:
        task = tasks.start(_run(handler, wants, incoming), "handler")
        incoming.on_cancel(lambda: _cancel(task))

    return start


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def wanted_context(handler: Callable[..., Any], *, starred: bool = True) -> Wants:
    """Read from its parameters how it takes its context: one called `context`, or a second one that must be given.

    Pure.

    `starred`: any number of them (`*args`) takes it, too. What can't be inspected takes none.
    """
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        return Wants.NO
    kinds = {p.name: p.kind for p in parameters}
    if kinds.get("context") is inspect.Parameter.KEYWORD_ONLY:
        return Wants.NAMED
    if starred and inspect.Parameter.VAR_POSITIONAL in kinds.values():
        return Wants.SECOND
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(places) >= 2 and (places[1].name == "context" or places[1].default is inspect.Parameter.empty):
        return Wants.SECOND
    named = any(p.name == "context" and p.kind is p.POSITIONAL_OR_KEYWORD for p in places[1:])
    return Wants.NAMED if named else Wants.NO


def call(handler: Callable[..., Any], wants: Wants, request: Any, context: Context) -> Any:
    """Return what `handler` returns, given its context as it wants it."""
    if wants is Wants.SECOND:
        return handler(request, context)
    if wants is Wants.NAMED:
        return handler(request, context=context)
    return handler(request)


async def _run(handler: Callable[..., Any], wants: Wants, incoming: Incoming) -> None:
    try:
        await _produce(handler, wants, incoming)
    except asyncio.CancelledError as error:
        incoming.fail(error)
    except Exception as error:  # whatever a handler raises belongs to this request alone
        incoming.fail(error)


async def _produce(handler: Callable[..., Any], wants: Wants, incoming: Incoming) -> None:
    output = call(handler, wants, incoming.payload, incoming.context)
    if isinstance(output, Awaitable):
        output = await output
    if not isinstance(output, AsyncIterator):
        incoming.finish(output)
        return
    try:
        async for item in output:
            incoming.send(item)
            if not incoming.open:
                return
    finally:
        close = getattr(output, "aclose", None)
        if close is not None:
            await close()
    incoming.finish()
