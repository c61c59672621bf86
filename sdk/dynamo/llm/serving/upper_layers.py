"""Parts of other layers that a program of `dynamo.llm` may ask for: found by name when they are first needed.

`HttpService`, `run_input` and the like start a frontend, an engine or a chat, which stand above this layer and are
installed as extras. This layer says what it needs of each (the types below); their `embedded` modules give it, and say
that they do to the type checker. So nothing of them is imported, or needs to be installed, before somebody asks.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, cast

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.runtime import DistributedRuntime

Failed = Callable[[], Awaitable[BaseException]]
"""Waits until an engine dies by itself, and says why."""
EngineOn = Callable[[DistributedRuntime, str], AbstractAsyncContextManager[Failed]]
"""Serves an engine whose model is loaded at an endpoint (`dyn://…`) of a runtime, while inside."""


class HttpFrontend(Protocol):
    """`dynamo.frontend.embedded:serve`."""

    async def __call__(
        self, runtime: DistributedRuntime, options: Mapping[str, Any], *, on_ready: Callable[[str], None],
        until: asyncio.Event, signals: bool = False, on_grpc: Callable[[str], None] = lambda address: None,
    ) -> None:  # fmt: skip
        """Serve HTTP for the models of `runtime` until the event is set, or (`signals`) SIGTERM or SIGINT comes.

        `options` are fields of the frontend's settings; what they leave out is as its variables say, else its default.
        `on_ready(url)` once requests are answered; right before, `on_grpc(HOST:PORT)` where the options ask for gRPC.
        Raises `InvalidArgument` where it can't be served.
        """


class EngineHost(Protocol):
    """`dynamo.worker.embedded:prepare`."""

    async def __call__(self, options: Mapping[str, Any]) -> EngineOn:
        """Load what the worker's settings name; `options` are fields of these. `InvalidArgument` says what is wrong."""


class Talk(Protocol):
    """`dynamo.cli.embedded:talk`."""

    async def __call__(self, runtime: DistributedRuntime, way: str, options: Mapping[str, Any], model: str) -> None:
        """Chat in this terminal (`text`), or answer one prompt from a pipe (`stdin`), with a model of `runtime`."""


_PARTS: Final = {
    "frontend": ("dynamo.frontend.embedded", "serve", "frontend"),
    "engine": ("dynamo.worker.embedded", "prepare", "worker"),
    "talk": ("dynamo.cli.embedded", "talk", "cli"),
}
"""Module, name in it, and the extra that brings it."""


def http_frontend(asked: str) -> HttpFrontend:
    """The frontend; `InvalidArgument` where it isn't installed, for what was `asked`."""
    return cast("HttpFrontend", _found("frontend", asked))


def engine_host(asked: str) -> EngineHost:
    """What runs an engine in this process; likewise."""
    return cast("EngineHost", _found("engine", asked))


def talk(asked: str) -> Talk:
    """The conversation of `dynamo-run`; likewise."""
    return cast("Talk", _found("talk", asked))


def _found(part: str, asked: str) -> Any:
    module, name, extra = _PARTS[part]
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f'{asked} needs {error.name}, which is not installed: pip install "dynamo-pipelines[{extra}]"'
        ) from error
