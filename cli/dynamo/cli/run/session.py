"""What `dynamo-run` starts: a worker, a frontend, or both in one process.

Where one side is elsewhere this is the other deployable itself, with the flags that
`settings.py` made. Else both live on one in-memory runtime here, and a chat talks to
the frontend's own ASGI app, so that nothing listens on a port. An engine over several nodes is the exception: this
process leads them, and they find it in etcd.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import replace
from typing import Any, Final, TypeVar

from dynamo.cli.asgi_client import Client, RequestError
from dynamo.cli.batch.ledger import BatchError
from dynamo.cli.conversation import Conversation
from dynamo.cli.run.batch import Batch, prepared, work
from dynamo.cli.run.chat import answer_pipe, chat, first_model
from dynamo.cli.run.grammar import BATCH, DYN, WORKER
from dynamo.cli.run.loading import loading, moves
from dynamo.cli.run.settings import Run, RunSettings, frontend_settings, over_nodes, worker_settings
from dynamo.engine_catalog import traits_of
from dynamo.frontend.app import Application
from dynamo.frontend.assembly import frontend
from dynamo.frontend.http.connection import CONNECTION
from dynamo.frontend.routing.model_pool import ModelPool
from dynamo.frontend.settings import FrontendSettings
from dynamo.llm.models.paths import is_of_hub
from dynamo.llm.models.sources import BUILT_IN_NAME
from dynamo.llm.tokenizer.byte_level import ByteTokenizer
from dynamo.runtime import DistributedRuntime, DynamoException, RuntimeConfig, configure_logging
from dynamo.runtime.process import event_loop
from dynamo.runtime.process.shutdown import ShutdownSignal
from dynamo.runtime.process.tasks import unless_dead
from dynamo.runtime.process.tracing import tracing_from_env
from dynamo.worker import main as worker_process
from dynamo.worker.engine import Engine
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.serving import serve_engine

USER_ERRORS: Final = (DynamoException, RequestError, BatchError, OSError)
"""What ends a run with one sentence and exit code 1."""
CLOSE_SECONDS: Final = 3.0
HOLD_SECONDS: Final = 10.0
"""How long a request of a process-local run waits for the model to be opened by the frontend."""
T = TypeVar("T")


def start(run: Run) -> int:
    """Do what the line says; the exit code. Raises `USER_ERRORS`, `KeyboardInterrupt` and click's errors."""
    verbosity = run.words.verbosity
    if run.roles.input == WORKER:
        worker_process.run(replace(worker_settings(run.roles, run.settings, run.model), verbose=verbosity))
        return 0
    settings = replace(
        frontend_settings(run.roles, run.settings, run.template), verbose=verbosity, model_aliases=_aliases(run)
    )
    if run.roles.input not in ("http", "grpc"):
        _quiet_logging(verbosity)
        if run.roles.input != BATCH:
            # Not on uvloop: a terminal's prompt wants the standard loop's signals.
            return asyncio.run(event_loop.watched(_talk(run, for_conversation(settings))))
        with prepared(run) as batch:
            return event_loop.run(_talk(run, replace(settings, worker_wait_timeout_secs=HOLD_SECONDS), batch))
    if run.roles.output == DYN:
        from dynamo.frontend import process as frontend_process

        frontend_process.run(settings)
        return 0
    configure_logging(verbosity)
    return event_loop.run(_serve(run, replace(settings, worker_wait_timeout_secs=HOLD_SECONDS)))


def _aliases(run: Run) -> dict[str, str] | None:
    """Return the engine's name for the model that it makes up: who asks for `echo_full` or `mocker` means that."""
    own = run.model or run.settings.model_name
    return None if own or not run.roles.process_local else {run.roles.output: BUILT_IN_NAME}


def for_conversation(settings: FrontendSettings) -> FrontendSettings:
    """Return settings for one person's prompts, which no second tokenizer library, loaded for seconds, makes faster."""
    return replace(settings, tokenizer="default") if settings.tokenizer == "auto" else settings


def _quiet_logging(verbosity: int) -> None:
    """Log little: a conversation is not interrupted by what is only interesting."""
    configure_logging(verbosity, env={"DYN_LOG": "warn", **os.environ})


async def _serve(run: Run, settings: FrontendSettings) -> int:
    """Serve in=http and in=grpc with an engine in this process; the exit code."""
    from dynamo.frontend.server import open_port, serve_http  # with FastAPI, which no conversation needs

    sockets, leaving = [open_port(settings)], ShutdownSignal()
    try:
        async with _local(run) as (runtime, engine):
            grpc: list[str] = []
            serving = serve_http(
                runtime, settings, on_ready=lambda url: _say_ready(url, *grpc), sockets=sockets, on_grpc=grpc.append,
                leaving=leaving,
            )  # fmt: skip
            with leaving.handling():
                await unless_dead(engine.failed, serving)
    finally:
        for sock in sockets:
            sock.close()
    return 130 if leaving.number == signal.SIGINT else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _say_ready(url: str, grpc: str = "") -> None:
    said = {"url": url} | ({"grpc": grpc} if grpc else {})
    event_loop.calm_collector()
    sys.stdout.write(f"ready {json.dumps(said)}\n")
    sys.stdout.flush()
    _say(f"serving on {f'{grpc} (gRPC) and ' if grpc else ''}{url}/v1 (Ctrl-C ends)")


async def _talk(run: Run, settings: FrontendSettings, batch: Batch | None = None) -> int:
    """Serve in=text, in=stdin and in=batch, with an engine in this process or with workers elsewhere."""
    if run.roles.output == DYN:
        async with await _connected(run.settings) as runtime:
            return await converse(run, runtime, settings, batch)
    async with _local(run) as (runtime, engine):
        return await unless_dead(engine.failed, converse(run, runtime, settings, batch))


async def converse(
    run: Run, runtime: DistributedRuntime, settings: FrontendSettings, batch: Batch | None = None
) -> int:
    async with frontend(runtime, settings) as services:
        client = Client(Application(services), CONNECTION)
        wanted = run.template.get("model") or run.settings.model_name
        served = lambda: [models.name for models in services.pool.served()]  # noqa: E731
        elsewhere = run.roles.output == DYN
        say = _say if elsewhere or not moves(sys.stderr) else lambda line: None
        async with loading("" if elsewhere else run.model):
            model = await first_model(served, wanted, say, more_may_come=elsewhere)
        if batch is not None:
            return await work(batch, client, model, run.template, ignore_eos=run.roles.output == "echo_core")
        continues = _computes(run) and continues_text(services.pool, model)
        talk = Conversation(model, run.template, run.roles.output == "echo_core", continues)
        if talk.note:
            _say(f"note: {talk.note}")
        return await (chat if run.roles.input == "text" else answer_pipe)(client, talk)


def _computes(run: Run) -> bool:
    """Tell whether answers are a model's: echoes and simulations have nothing to continue."""
    return run.roles.output == DYN or traits_of(run.roles.output).loads_weights


def continues_text(pool: ModelPool, name: str) -> bool:
    """Tell whether a model has a tokenizer of its own and no chat template."""
    models = next((models for models in pool.served() if models.name == name), None)
    preprocessor = models.model.preprocessor if models is not None and models.model is not None else None
    if preprocessor is None or isinstance(preprocessor.tokenizer, ByteTokenizer):
        return False
    return preprocessor.template_text is None


@contextlib.asynccontextmanager
async def _local(run: Run) -> AsyncGenerator[tuple[DistributedRuntime, Engine], None]:
    """Open a runtime, without servers unless the engine has other nodes, and the engine on it."""
    settings = worker_settings(run.roles, run.settings, run.model)
    fetched = is_of_hub(run.model)
    if fetched and sys.stderr.isatty():
        _say(f"loading {run.model} ...")  # the download has a line of its own that moves
    async with loading("" if fetched else run.model):
        model = await worker_process.loaded_model(settings)
    engine = create_engine(settings, model)
    tracing = tracing_from_env("dynamo-run")
    opening = _connected(run.settings) if over_nodes(run.settings) else DistributedRuntime.in_memory()
    async with await opening as runtime:
        runtime.tracing = tracing
        async with loading(run.model):
            serving = await serve_engine(runtime, engine, model, settings)
        try:
            yield runtime, engine
        finally:
            await serving.stop(CLOSE_SECONDS)


def _connected(settings: RunSettings) -> Coroutine[Any, Any, DistributedRuntime]:
    """Connect a runtime to etcd and NATS."""
    return DistributedRuntime.create(replace(RuntimeConfig.from_env(), discovery_backend=settings.discovery_backend))
