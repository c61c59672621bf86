"""Parts of the layers above that a program of `dynamo.llm` may ask for: entry points, loaded when first needed.

`HttpService`, `run_input` and the like start a frontend, an engine or a chat, which stand above this layer and are
installed as extras. This layer says what it needs of each (the types below); their `embedded` modules give it, and say
that they do to the type checker. pyproject.toml declares them. So nothing of them is imported, or needs to be
installed, before somebody asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, cast

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.extras import install_hint
from dynamo.runtime.runtime import DistributedRuntime

Failed = Callable[[], Awaitable[BaseException]]
"""Waits until an engine dies by itself, and says why."""
EngineOn = Callable[[DistributedRuntime, str], AbstractAsyncContextManager[Failed]]
"""Serves an engine whose model is loaded at an endpoint (`dyn://…`) of a runtime, while inside."""


class HttpFrontend(Protocol):
    """Type of the entry point `frontend`."""

    async def __call__(
        self, runtime: DistributedRuntime, options: Mapping[str, Any], *, on_ready: Callable[[str], None],
        until: asyncio.Event, signals: bool = False, on_grpc: Callable[[str], None] = lambda address: None,
    ) -> None:  # fmt: skip
        """Serve HTTP for the models of `runtime` until the event is set, or (`signals`) SIGTERM or SIGINT comes.

        Those of `options` count that are options of the frontend, by their names, and not None. What they leave out
        is as its variables say, else its default.
        `on_ready(url)` once requests are answered; right before, `on_grpc(HOST:PORT)` where the options ask for gRPC.
        Raises `InvalidArgument` where it can't be served.
        """


class EngineHost(Protocol):
    """Type of the entry point `worker`."""

    async def __call__(self, options: Mapping[str, Any]) -> EngineOn:
        """Load what the worker's settings name; `options` as above. `InvalidArgument` says what is wrong."""


class Talk(Protocol):
    """Type of the entry point `cli`."""

    async def __call__(self, runtime: DistributedRuntime, way: str, options: Mapping[str, Any], model: str) -> None:
        """Chat in this terminal (`text`), or answer one prompt from a pipe (`stdin`), with a model of `runtime`."""


GROUP: Final = "dynamo.layers"
"""Entry points under which a layer above offers itself; each is named as the extra that brings what it needs."""


def http_frontend(asked: str) -> HttpFrontend:
    """Return the frontend; `InvalidArgument` says what to install where it is missing for what was `asked`."""
    return cast("HttpFrontend", _load("frontend", asked))


def engine_host(asked: str) -> EngineHost:
    """Return what runs an engine in this process; likewise."""
    return cast("EngineHost", _load("worker", asked))


def talk(asked: str) -> Talk:
    """Return the conversation of `dynamo-run`; likewise."""
    return cast("Talk", _load("cli", asked))


def _load(extra: str, asked: str) -> Any:
    from importlib.metadata import entry_points  # 30 ms, which `import dynamo.llm` doesn't pay

    entry = next(iter(entry_points(group=GROUP, name=extra)), None)
    if entry is None:
        raise _missing(f"the {extra}", extra, asked)
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        raise _missing(str(error.name), extra, asked) from error


def _missing(what: str, extra: str, asked: str) -> InvalidArgument:
    return InvalidArgument(f"{asked} needs {what}, which is not installed: {install_hint(extra)}")
