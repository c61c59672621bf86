"""The `dynamo-worker` process: flags, model, engine, runtime; serves until it is told to leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from dynamo.engine_catalog import names
from dynamo.llm import LocalModel, open_model
from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.errors import DynamoException, EngineError, InvalidArgument
from dynamo.runtime.process import event_loop
from dynamo.runtime.process.legacy_flags import PLANES
from dynamo.runtime.process.logs import configure_logging
from dynamo.runtime.process.settings import command
from dynamo.runtime.process.shutdown import ShutdownSignal
from dynamo.runtime.process.tracing import Tracing, tracing_from_env
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engines import (
    OPENAI,
    PYTHON,
    check_engine,
    check_installed,
    check_nodes,
    check_source,
    create_engine,
    create_node,
    loading_none,
    server_model_name,
    takes_text,
    weights_of,
)
from dynamo.worker.instance.serving import CLOSE_SECONDS, Serving, serve_engine, serve_node
from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

_HELP: Final = "Serve one engine as an instance of an endpoint."
_EPILOG: Final = f"""\b
Engines: {", ".join(names())}.

\b
Examples:
  dynamo-worker --engine mocker --model-name demo
  dynamo-worker --engine llamacpp --model-path model.gguf --endpoint dyn://chat.backend.generate
  dynamo-worker --engine mocker --role prefill --endpoint dyn://chat.prefill.generate --system-port 9090

etcd and NATS are found by ETCD_ENDPOINTS and NATS_SERVER. When every live frontend can route here, one line
'ready {{…}}' is printed.
"""
_GROUPS: Final = {
    "Engine and model": ("engine", "model_", "context_", "kv_cache", "chat_template", "dyn_", "python_"),
    "Where it serves": ("endpoint", "role", "load_metrics", "num_workers", "migration_", "discovery_"),
    "Several GPUs and nodes": ("tensor_", "num_nodes", "node_rank", "leader_"),
    "Health and leaving": ("system_", "health_", "canary_", "graceful_"),
}
_READY_POLL: Final = 0.05
_READY_POLL_MOST: Final = 0.5
"""Hundreds of instances in one process that wait for a busy frontend must not keep it busy themselves."""
_READY_LIMIT: Final = 120.0


def make_command() -> click.Command:
    """Make the click command; `-v` is added here since it is counted."""
    made = command(WorkerSettings, run, name="dynamo-worker", help=_HELP, epilog=_EPILOG, former=PLANES, groups=_GROUPS)
    made.params.append(click.Option(["-v", "--verbose"], count=True, help="More log lines; twice for all of them."))
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script, or `python -m dynamo.worker`."""
    make_command().main(None if argv is None else list(argv))


def run(settings: WorkerSettings) -> None:
    """Run until told to leave. What goes wrong is one line on stderr: exit code 2 for flags, 1 for the rest."""
    try:
        configure_logging(settings.verbose)
        settings.check()
        check_engine(settings.engine)
        check_nodes(settings)
        check_source(settings)
        _check_several(settings)
    except DynamoException as error:
        raise click.UsageError(error.message) from error
    try:
        event_loop.run(_work(settings))
    except DynamoException as error:
        log.debug("the worker ends", exc_info=True)
        raise click.ClickException(error.message) from error
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # nothing foreseen: still one line, and the way to learn more
        log.debug("the worker ends", exc_info=True)
        raise click.ClickException(f"unexpected {type(error).__name__}: {error} (-vv shows where)") from error


async def loaded_model(settings: WorkerSettings) -> LocalModel:
    """Call `load_model` in a thread; whoever stops waiting (Ctrl-C) ends a download too, and what has come stays."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(load_model, settings, stop)
    finally:
        stop.set()


def load_model(settings: WorkerSettings, stop: threading.Event | None = None) -> LocalModel:
    """Load the model that the settings name; `InvalidArgument` says what is wrong with it."""
    check_engine(settings.engine)
    check_nodes(settings)
    check_source(settings)
    check_installed(settings.engine, settings.model_path)
    settings.check()
    name, source = settings.model_name, settings.model_path
    if settings.engine == PYTHON:
        if not source or takes_text(settings):
            name = name or Path(source or settings.python_file).stem
        if takes_text(settings):
            source = ""  # what the file does with its model, where it has one, is its own affair
    if settings.engine == OPENAI and not name:
        name = server_model_name(settings, stop)
    return open_model(
        source or None,
        name=name or None,
        context_length=settings.context_length,
        chat_template=settings.chat_template or None,
        weights=weights_of(settings.engine),
        stop=stop,
        described_by=settings.model_config or None,
    )


def _check_several(settings: WorkerSettings) -> None:
    if settings.num_workers > 1 and settings.engine not in loading_none():
        raise InvalidArgument(
            f"--num-workers {settings.num_workers}: engine {settings.engine!r} loads weights, which one process holds"
            f" once; only {', '.join(loading_none())} can be several in one"
        )


class _Instance(NamedTuple):
    """One of the instances that this process serves; each is a client of etcd and NATS of its own."""

    runtime: DistributedRuntime
    serving: Serving


async def _work(settings: WorkerSettings) -> None:
    tracing = tracing_from_env("dynamo-worker")
    model = await loaded_model(settings)
    leaving = ShutdownSignal()
    async with contextlib.AsyncExitStack() as ends:
        if settings.num_nodes == 1:
            started = [await _start(settings, model, number, ends, tracing) for number in range(settings.num_workers)]
        else:
            started = await _meeting(_start(settings, model, 0, ends, tracing), leaving)
        if started:
            await _until_told(started, settings, leaving)


async def _meeting(start: Coroutine[Any, Any, _Instance], leaving: ShutdownSignal) -> list[_Instance]:
    """Start a node, which waits for the others of its group; nothing where it is told to end meanwhile. One that has
    just started when it is told serves, and finds that it was."""
    leaving.listen()
    async with contextlib.AsyncExitStack() as stack:
        starting = stack.enter_context(_task(start))
        ending = stack.enter_context(_task(leaving.asked.wait()))
        await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return [starting.result()]
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return []


async def _start(
    settings: WorkerSettings, model: LocalModel, number: int, ends: contextlib.AsyncExitStack,
    tracing: Tracing | None,
) -> _Instance:  # fmt: skip
    if settings.system_port > 0:
        settings = replace(settings, system_port=settings.system_port + number)
    serve = _server_of(settings, model)
    config = RuntimeConfig.from_env().with_options(settings.discovery_backend, settings.direct_frames)
    runtime = await DistributedRuntime.create(config)
    runtime.tracing = tracing
    ends.push_async_callback(runtime.shutdown, CLOSE_SECONDS)
    return _Instance(runtime, await serve(runtime))


def _server_of(settings: WorkerSettings, model: LocalModel) -> Callable[[DistributedRuntime], Awaitable[Serving]]:
    """Return what serves an engine, or the part of one that a node has; made before anything is connected."""
    if settings.node_rank:
        node = create_node(settings, model)
        return lambda runtime: serve_node(runtime, node, model, settings)
    engine = create_engine(settings, model)
    return lambda runtime: serve_engine(runtime, engine, model, settings)


async def _until_told(started: Sequence[_Instance], settings: WorkerSettings, leaving: ShutdownSignal) -> None:
    """Serve until a signal (the second one leaves at once) or an engine's death."""
    leaving.listen()  # to the end of the process: a second signal while it closes must not kill it
    async with contextlib.AsyncExitStack() as stack:
        tasks = {
            name: stack.enter_context(_task(work))
            for name, work in {
                "told": leaving.asked.wait(), "now": leaving.now.wait(), "dead": _first_dead(started),
                "ready": _each(_say_ready(*instance) for instance in started),
            }.items()
        }  # fmt: skip
        await asyncio.wait([tasks["told"], tasks["dead"]], return_when=asyncio.FIRST_COMPLETED)
        dead = tasks["dead"].done()
        grace = 0.0 if dead else settings.graceful_shutdown_timeout_secs
        streams = sum(instance.runtime.server.active for instance in started)
        log.info("leaving: %d streams have up to %g s", streams, grace)
        stopping = stack.enter_context(_task(_each(instance.serving.stop(grace) for instance in started)))
        await asyncio.wait([stopping, tasks["now"]], return_when=asyncio.FIRST_COMPLETED)
        if dead:
            raise EngineError(f"the engine died: {_said(tasks['dead'].result())}")


def _said(error: BaseException) -> str:
    return error.message if isinstance(error, DynamoException) else f"{type(error).__name__}: {error}"


async def _first_dead(started: Sequence[_Instance]) -> BaseException:
    """Wait until one of the engines dies; why it did."""
    async with contextlib.AsyncExitStack() as stack:
        tasks = [stack.enter_context(_task(instance.serving.failed())) for instance in started]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        reason: BaseException = done.pop().result()
        return reason


async def _each(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*works)


@contextlib.contextmanager
def _task(work: Any) -> Any:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()


async def _say_ready(runtime: DistributedRuntime, serving: Serving) -> None:
    """Print the `ready` line once every live frontend can route here; say what is missing after a while."""
    waited, poll = 0.0, _READY_POLL
    while not (verdict := serving.served.readiness()).ready:
        await asyncio.sleep(poll)
        waited, poll = waited + poll, min(1.2 * poll, _READY_POLL_MOST)
        if waited >= _READY_LIMIT:
            waited = 0.0
            log.warning("not routable yet: %s", "; ".join(verdict.reasons))
    line = {"instance": runtime.id, "endpoint": str(serving.served.path), "system_port": serving.system_port}
    event_loop.calm_collector()
    with contextlib.suppress(OSError):  # whoever read the line may have gone; the worker serves on
        sys.stdout.write(f"ready {json.dumps(line)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
