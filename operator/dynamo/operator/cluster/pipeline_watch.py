"""kopf as the source of events: login, watches and life cycle, in its own thread; handlers only mark pipelines.

Some things end kopf (a watched CRD is deleted, rights are narrowed, a watch delivers an error
500): then `watch` waits until every kind can be read and starts it again in this process,
and sweeps, since nobody delivers what happened meanwhile. Nothing else stops for it.

kopf takes every task that was made in its loop for one of its own, and cancels it when it ends; in the main thread it
takes the process's signals. Among our tasks it cancelled reconciles, probes and whoever waited for it. So `run_kopf`
gives it a thread and an event loop, where it can only end itself.

kopf's own liveness stays green while its watches are dead, and bookmarks never reach its
handlers. But a version that the sweep has listed must be delivered before long: `WatchLag` says whether it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import kopf
import uvloop

from dynamo.operator.cluster.pipeline_cache import PipelineCache
from dynamo.operator.kube.client import Api
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.login import Login
from dynamo.operator.kube.resources import CHILDREN, PIPELINES, PODS, Key, Resource
from dynamo.operator.metrics import Metrics

log = logging.getLogger(__name__)

WATCHED = (PIPELINES, *CHILDREN, PODS)
"""By kopf and by `informer`."""
BACKOFFS = (1.0, 1.0, 2.0, 3.0, 5.0)
"""Between kopf's attempts at a request that failed."""
PAUSE_SECONDS = 2.0
"""Between two starts of kopf, and between two checks whether a kind is there."""


class Handlers:
    """Holds what kopf calls; for pipelines only, since `informer` follows their children."""

    def __init__(self, mark: Mark, cache: PipelineCache | None = None) -> None:
        self._mark = mark
        self._cache = cache if cache is not None else PipelineCache()
        self._seen: dict[Key, tuple[Any, ...]] = {}
        self._delivered: dict[Key, int] = {}

    def delivered(self) -> dict[Key, int]:
        """Return the latest version of each pipeline that this run of kopf has delivered; from any thread."""
        return self._delivered.copy()

    def pipeline(self, body: Mapping[str, Any], deleted: bool) -> None:
        """Cache and mark a pipeline: a new spec is urgent, our own status that comes back as an event isn't."""
        metadata = body["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        mark = metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp"), deleted
        urgent = self._seen.get(key) != mark
        if deleted:
            self._seen.pop(key, None)
            self._delivered.pop(key, None)
            self._cache.gone(key)
        else:
            self._cache.put(body)
            self._seen[key] = mark
            self._delivered[key] = int(metadata["resourceVersion"])
        self._mark(key, urgent)

    def ended(self) -> None:
        """Drop the cache after kopf's end: nothing keeps it up to date."""
        self._cache.clear()

    def registry(self, login: Login) -> kopf.OperatorRegistry:
        """Return handlers for a new run of kopf, which begins with a LIST; nothing is registered globally."""
        self._delivered = {}
        registry = kopf.OperatorRegistry()

        async def on_pipeline(event: Any, body: Any, **_: Any) -> None:
            self.pipeline(body, event["type"] == "DELETED")

        async def on_login(**_: Any) -> kopf.ConnectionInfo:
            # Asked at its start and after a 401: what was read before is worth nothing.
            return login.info(0.0)

        kopf.on.login(registry=registry)(on_login)
        kopf.on.event(*_selector(PIPELINES), registry=registry, id="pipeline")(on_pipeline)
        return registry


def kopf_settings() -> kopf.OperatorSettings:
    """Return settings with which kopf writes nothing: no scanning, peering, events or annotations."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.watching.server_timeout, settings.watching.client_timeout = 290, 310
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    # A server that comes back is asked within seconds, also after a long absence: kopf tries on after the last of them.
    settings.networking.error_backoffs = BACKOFFS
    # Objects that came to rest needn't be waited for when kopf ends.
    settings.queueing.exit_timeout = 1.0
    # It would kill the process ten minutes after an error that we survive.
    settings.process.ultimate_exiting_timeout = None
    settings.persistence.finalizer = "dynamo.dev/unused"
    return settings


async def wait_for_kinds(api: Api, namespaces: tuple[str, ...], pause: float = PAUSE_SECONDS) -> None:
    """Wait until pipelines can be read everywhere; log once a minute what is missing."""
    tries = 0
    for namespace in namespaces or (None,):
        while (error := await _unreadable(api, PIPELINES, namespace)) is not None:
            if tries % 30 == 0:
                log.warning("waiting for %s: %s", PIPELINES.plural, error)
            tries += 1
            await asyncio.sleep(pause)


async def watch(
    api: Api,
    login: Login,
    namespaces: tuple[str, ...],
    handlers: Handlers,
    metrics: Metrics,
    after: Callable[[], Awaitable[None]],
    restart: asyncio.Event,
    pause: float = PAUSE_SECONDS,
) -> None:
    """Run kopf until cancelled, again whenever it ends or `restart` is set; `after` is awaited before each restart."""
    while True:
        await wait_for_kinds(api, namespaces, pause)
        restart.clear()
        try:
            await run_kopf(handlers.registry(login), kopf_settings(), namespaces, restart)
            log.warning("the watch of pipelines ended; restarting it")
        except Exception as error:
            # Whatever ends kopf is survived: the pipelines' state is in the cluster, not here.
            log.warning("the watch of pipelines failed (%s: %s); restarting it", type(error).__name__, error)
        handlers.ended()
        metrics.watch_restarts += 1
        await asyncio.sleep(pause)
        await after()


async def _unreadable(api: Api, resource: Resource, namespace: str | None) -> ApiError | None:
    try:
        await api.exists(resource, namespace)
    except ApiError as error:
        return error
    return None


def _selector(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.api_version.rpartition("/")[2], resource.plural


Versions = Mapping[Key, int]
"""resourceVersions; a server's only grow, also from an object to its namesake."""


class WatchLag:
    """Remembers for each pipeline the first listed version that hasn't been delivered, and since when."""

    def __init__(self) -> None:
        self._missed: dict[Key, tuple[int, float]] = {}

    def listed(self, versions: Versions, delivered: Versions, now: float) -> None:
        """Note a LIST's versions; forget those that were delivered since the last one, or are gone."""
        before = {key: missing for key, missing in self._missed.items() if delivered.get(key, 0) < missing[0]}
        self._missed = {key: before.get(key, (at, now)) for key, at in versions.items() if delivered.get(key, 0) < at}

    def late(self, delivered: Versions, now: float) -> dict[Key, float]:
        """Return the seconds since the LIST, for each pipeline that hasn't been delivered by now."""
        return {key: now - since for key, (at, since) in self._missed.items() if delivered.get(key, 0) < at}


STOP_SECONDS = 5.0
"""How long kopf may take to end when asked; then its tasks are cancelled, and it has as long again."""

# kopf would ask for the user's name, and images have a user without one (platforms choose any number).
_IDENTITY: Any = "dynamo-operator"
DEEPEST: Final = 50_000
"""Calls within each other. The API server lets 10,000 mappings within each other pass, and kopf reads every pipeline by
recursion: at Python's own limit of 1,000, one pipeline would end the watch of all."""
STACK_BYTES: Final = 256 << 20
"""Of kopf's thread, for as many calls in C; only what is used of it takes memory."""
MAIN_STACK_BYTES: Final = 64 << 20
"""Of the main thread: the limit holds for all threads, and 8 MB hold fewer lists within each other than it allows."""

Mark = Callable[[Key, bool], None]


async def run_kopf(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    namespaces: tuple[str, ...],
    enough: asyncio.Event,
) -> None:
    """Run kopf until cancelled, until `enough` is set or until kopf ends; raises what ended it."""
    run, limit = _KopfRun(asyncio.get_running_loop()), sys.getrecursionlimit()
    _start(partial(run.main, registry, settings, namespaces))
    waiting = asyncio.create_task(enough.wait())
    try:
        first: tuple[asyncio.Future[Any], ...] = (run.ended, waiting)
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if run.ended.done():
            run.ended.result()
    finally:
        waiting.cancel()
        if not run.ended.done():
            await run.stop()
        if run.ended.done():
            sys.setrecursionlimit(limit)


def _start(what: Callable[[], None]) -> None:
    """Start a thread whose stack is as large as `DEEPEST` asks for."""
    _let_the_main_stack_grow()
    sys.setrecursionlimit(max(DEEPEST, sys.getrecursionlimit()))
    before = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=what, name="kopf", daemon=True).start()
    finally:
        threading.stack_size(before)


def _let_the_main_stack_grow() -> None:
    """Raise the soft limit of the main thread's stack, which Linux reads whenever it grows; as far as one may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = MAIN_STACK_BYTES if hard == resource.RLIM_INFINITY else min(MAIN_STACK_BYTES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))


class Relay:
    """Carries marks from kopf's thread to the loop that it was made in; a pipeline waits there only once."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._home = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: dict[Key, bool] = {}

    def __call__(self, key: Key, urgent: bool) -> None:
        """Mark a pipeline, from any thread."""
        with self._lock:
            alone = not self._waiting
            self._waiting[key] = self._waiting.get(key, False) or urgent
        if alone:
            _call(self._home, self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            marks, self._waiting = self._waiting, {}
        for key, urgent in marks.items():
            self._mark(key, urgent)


class _KopfRun:
    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self._home, self._loop = home, uvloop.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = home.create_future()

    def main(self, registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, where: tuple[str, ...]) -> None:
        """Run the thread's body. `ended` is set before the loop is tidied up, which may wait for a name server."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run(registry, settings, where))

    async def stop(self) -> None:
        """Asks, then insists; what then still runs is left alone, since it holds nothing that the process needs."""
        for _ in range(2):
            _call(self._loop, self._cancel)
            await asyncio.wait([self.ended], timeout=STOP_SECONDS)
            if self.ended.done():
                self.ended.exception()
                return
        log.error("kopf has not stopped within %.0f s; abandoning its thread", 2 * STOP_SECONDS)

    async def _run(
        self, registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, where: tuple[str, ...]
    ) -> None:
        error: BaseException | None = None
        self._task = asyncio.current_task()
        try:
            await kopf.operator(
                registry=registry,
                settings=settings,
                identity=_IDENTITY,
                standalone=True,
                clusterwide=not where,
                namespaces=where,
            )
        except asyncio.CancelledError:
            pass
        except BaseException as failure:
            error = failure
        _call(self._home, lambda: self._end(error))

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], object]) -> None:
    """Call in the loop's thread; do nothing where the loop has been closed, since then nobody waits."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(what)
