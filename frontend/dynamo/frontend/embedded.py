"""A frontend inside a program: what `HttpService` and `run_input` ask for by name
(`dynamo.llm.serving.upper_layers`)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import click

from dynamo.frontend.server import serve_http
from dynamo.frontend.settings import FrontendSettings, flags_of
from dynamo.llm.serving.upper_layers import HttpFrontend
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.settings import build, options_among
from dynamo.runtime.process.settings import options as click_options
from dynamo.runtime.process.shutdown import ShutdownSignal
from dynamo.runtime.runtime import DistributedRuntime


def settings_of(options: Mapping[str, Any]) -> FrontendSettings:
    """Return settings with these options, the others as their variables say; `InvalidArgument` where one can't be."""
    params = click_options(FrontendSettings)
    reader = click.Command("frontend", params=params, callback=lambda **values: build(FrontendSettings, **values))
    try:
        with reader.make_context("frontend", flags_of(options_among(FrontendSettings, options))) as context:
            return cast("FrontendSettings", reader.invoke(context))
    except click.ClickException as error:
        raise InvalidArgument(error.format_message()) from error


async def serve(
    runtime: DistributedRuntime, options: Mapping[str, Any], *, on_ready: Callable[[str], None], until: asyncio.Event,
    signals: bool = False, on_grpc: Callable[[str], None] = lambda address: None,
) -> None:  # fmt: skip
    """See `HttpFrontend`."""
    leaving = ShutdownSignal()
    handles = signals and threading.current_thread() is threading.main_thread()  # elsewhere there are none
    with leaving.handling() if handles else contextlib.nullcontext():
        waiting = asyncio.get_running_loop().create_task(_leave_when(until, leaving), name="frontend until")
        try:
            await serve_http(runtime, settings_of(options), on_ready=on_ready, leaving=leaving, on_grpc=on_grpc)
        finally:
            waiting.cancel()


async def _leave_when(until: asyncio.Event, leaving: ShutdownSignal) -> None:
    await until.wait()
    leaving.signal()


_: HttpFrontend = serve
