"""Tests that are coroutines: `@on_loop`; `@with_one(make)` where the first argument is opened on their loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

Test = Callable[..., Coroutine[Any, Any, None]]


def on_loop(test: Test) -> Callable[..., None]:
    """Run the test on a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def with_one(make: Callable[[], AbstractAsyncContextManager[Any]]) -> Callable[[Test], Callable[..., None]]:
    """Run it so, with what `make` opens before its fixtures."""

    def decorate(test: Test) -> Callable[..., None]:
        async def main(**kwargs: Any) -> None:
            async with make() as made:
                await test(made, **kwargs)

        def run(**kwargs: Any) -> None:
            asyncio.run(main(**kwargs))

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        own = inspect.signature(test)
        run.__signature__ = own.replace(parameters=[*own.parameters.values()][1:])  # type: ignore[attr-defined]
        return run

    return decorate
