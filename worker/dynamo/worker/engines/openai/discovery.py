"""What a server is, which model it serves and how much it takes: asked once, when it is ready."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
import msgspec

from dynamo.runtime.errors import EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.engines.openai.arguments import AUTO, PLAIN, Upstream, upstream

if TYPE_CHECKING:
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)
_ASK_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.5
_REPORT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 1 << 20
_MOST_MODELS: Final = 1000


class ServerFacts(NamedTuple):
    """Facts of a server that is ready."""

    api: str
    model: str
    context_length: int | None
    adapters: tuple[str, ...] = ()
    """Names under which the server serves adapters of the model."""


class Listing(NamedTuple):
    """What a server's list of models says of one of them now."""

    served: bool
    context_length: int | None = None
    adapters: tuple[str, ...] = ()


def served_name(settings: WorkerSettings, stop: threading.Event | None = None) -> str:
    """Return the server's own name of its model, for a worker that is given none; blocks until the server is ready.

    Raises as `discover`, and `EngineShutdown` where `stop` is set meanwhile.
    """
    server = upstream(settings.arguments())
    if server.command:
        raise InvalidArgument("name the model by --model-name: the server that 'command' starts does not run yet")

    async def look() -> str:
        async with aiohttp.ClientSession(headers=server.headers(), cookie_jar=aiohttp.DummyCookieJar()) as session:
            return str(_chosen(await _ready(session, server, stop), server.model)["id"])

    return asyncio.run(look())


async def discover(
    session: aiohttp.ClientSession, server: Upstream, tell: Callable[[str], None] = lambda why: None
) -> ServerFacts:
    """Wait until the server lists a model, and look at what it is; `tell` hears what is waited for, and its end.

    Raises `EngineError` where it is not ready in time, `InvalidArgument` where it doesn't serve what is asked for.
    """
    models = await _ready(session, server, tell=tell)
    tell("")
    chosen = _chosen(models, server.model)
    api = server.api if server.api != AUTO else await _kind(session, server)
    context = _context(chosen) or await _context_of_props(session, server, api)
    return ServerFacts(api, str(chosen["id"]), context, adapters_of(models, str(chosen["id"])))


async def _ready(
    session: aiohttp.ClientSession, server: Upstream, stop: threading.Event | None = None,
    tell: Callable[[str], None] = lambda why: None,
) -> list[dict[str, Any]]:  # fmt: skip
    began, reported = time.monotonic(), time.monotonic()
    while True:
        status, body = await ask(session, f"{server.root}/v1/models")
        if status in (401, 403):
            raise InvalidArgument(f"{server.root} refuses the key ({status}): name its variable by 'api_key_env'")
        if status == 404:
            raise InvalidArgument(f"{server.root}/v1/models: 404. Is the url that of an OpenAI-compatible server?")
        data = body.get("data") if isinstance(body, dict) else None
        if status == 200 and isinstance(data, list) and data:
            return [model for model in data[:_MOST_MODELS] if isinstance(model, dict) and model.get("id")]
        if stop is not None and stop.is_set():
            raise EngineShutdown(f"no longer waiting for {server.root}")
        now, why = time.monotonic(), _refusal(status)
        if now - began >= server.ready_secs:
            raise EngineError(f"{server.root} {why} after {server.ready_secs:g} s: start it, or check the url")
        waits = f"waits for {server.root}, which {why}"
        tell(waits)  # without the seconds: a pipeline's status has this sentence, and is written when it changes
        if now - reported >= _REPORT_SECONDS:
            reported = now
            log.info("%s (%.0f of %g s)", waits, now - began, server.ready_secs)
        await asyncio.sleep(_PAUSE_SECONDS)


def _refusal(status: int) -> str:
    """Return what a server without a usable list of models does."""
    if status == 200:
        return "lists no model at /v1/models"
    return f"answers {status} at /v1/models" if status else "does not answer"


def _chosen(models: list[dict[str, Any]], wanted: str) -> dict[str, Any]:
    names = [str(model["id"]) for model in models]
    if wanted:
        for model in models:
            if model["id"] == wanted:
                return model
        raise InvalidArgument(f"the server has no model {wanted!r}; it has {', '.join(names[:20])}")
    own = [model for model in models if not model.get("parent")]  # vLLM lists adapters with the model that they adapt
    models = own or models
    if len(models) > 1:
        log.warning("the server has %d models, and %r is served: choose by 'server_model'", len(names), names[0])
    if not models:
        raise InvalidArgument("the server lists no model with an id")
    return models[0]


def _context(model: dict[str, Any]) -> int | None:
    meta = model.get("meta") if isinstance(model.get("meta"), dict) else {}
    for value in (model.get("max_model_len"), model.get("context_length"), (meta or {}).get("n_ctx")):
        if type(value) is int and value > 1:
            return value
    return None


async def _context_of_props(session: aiohttp.ClientSession, server: Upstream, api: str) -> int | None:
    if api != "llamacpp":
        return None
    status, props = await ask(session, f"{server.root}/props")
    settings = props.get("default_generation_settings") if status == 200 and isinstance(props, dict) else None
    value = settings.get("n_ctx") if isinstance(settings, dict) else None
    return value if type(value) is int and value > 1 else None


async def _kind(session: aiohttp.ClientSession, server: Upstream) -> str:
    """Tell the kind of server by a route that only that kind has."""
    status, props = await ask(session, f"{server.root}/props")
    if status == 200 and isinstance(props, dict) and "default_generation_settings" in props:
        return "llamacpp"
    for route in ("/model_info", "/get_model_info"):  # the latter of older versions
        status, about = await ask(session, server.root + route)
        if status == 200 and isinstance(about, dict) and "model_path" in about:
            return "sglang"
    status, about = await ask(session, f"{server.root}/version")
    if status == 200 and isinstance(about, dict) and set(about) == {"version"}:
        return "vllm"
    return PLAIN


async def ask(session: aiohttp.ClientSession, url: str) -> tuple[int, Any]:
    """Return status and JSON of a route; 0 where there is no answer, None where it is no JSON or too long."""
    try:
        timeout = aiohttp.ClientTimeout(total=_ASK_SECONDS)
        async with session.get(url, timeout=timeout, allow_redirects=False) as response:
            body = await response.content.read(_MOST_BYTES)
            return response.status, msgspec.json.decode(body)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return 0, None
    except msgspec.MsgspecError:
        return response.status, None


def adapters_of(models: list[Any], name: str) -> tuple[str, ...]:
    """Return the models that adapt another one, as vLLM and SGLang list them."""
    listed = [model for model in models if isinstance(model, dict) and model.get("parent") == name]
    names = (model.get("id") for model in listed)
    return tuple(dict.fromkeys(other for other in names if isinstance(other, str) and other not in ("", name)))


async def listing(session: aiohttp.ClientSession, server: Upstream, facts: ServerFacts) -> Listing:
    """Return whether a server still lists its model, the context that it gives that now, and its adapters."""
    status, body = await ask(session, f"{server.root}/v1/models")
    data = body.get("data") if status == 200 and isinstance(body, dict) else None
    models = data[:_MOST_MODELS] if isinstance(data, list) else []
    for model in models:
        if isinstance(model, dict) and model.get("id") == facts.model:
            context = _context(model) or await _context_of_props(session, server, facts.api)
            return Listing(True, context, adapters_of(models, facts.model))
    return Listing(False)
