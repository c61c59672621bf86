"""`@with_one(make)` for tests that are coroutines, whose first argument is opened on their loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

Test = Callable[..., Coroutine[Any, Any, None]]


def with_one(make: Callable[[], AbstractAsyncContextManager[Any]]) -> Callable[[Test], Callable[..., None]]:
    """Run the test on a loop of its own, with what `make` opens before its fixtures."""

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
