"""Handlers written as async generators, the original's form, over the push-style one.

`async def handler(request)` or `handler(request, context)`: yield items, return to end
well, raise to fail. Each request runs in a task, which is cancelled as soon as the
client leaves, so a slot is free within one step.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from dynamo.runtime._peer import Incoming


def from_generator(handler: Callable[..., Any]) -> Callable[[Incoming], None]:
    """Turn an async generator function (or a coroutine function: one item) into a low-level handler."""
    wants_context = _wants_context(handler)
    tasks: set[asyncio.Task[None]] = set()

    def start(incoming: Incoming) -> None:
        task = asyncio.get_running_loop().create_task(_run(handler, wants_context, incoming))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        incoming.on_cancel(lambda: _cancel(task))

    return start


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _wants_context(handler: Callable[..., Any]) -> bool:
    """Whether `handler` takes `(request, context)`."""
    parameters = inspect.signature(handler).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return True
    return sum(p.kind in positional for p in parameters) >= 2


async def _run(handler: Callable[..., Any], wants_context: bool, incoming: Incoming) -> None:
    try:
        await _produce(handler, wants_context, incoming)
    except asyncio.CancelledError as error:
        incoming.fail(error)
    except Exception as error:  # whatever a handler raises belongs to this request alone
        incoming.fail(error)


async def _produce(handler: Callable[..., Any], wants_context: bool, incoming: Incoming) -> None:
    arguments = (incoming.payload, incoming.context) if wants_context else (incoming.payload,)
    output = handler(*arguments)
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
