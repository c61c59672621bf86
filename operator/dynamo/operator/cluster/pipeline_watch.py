"""kopf as the source of events: login, watches and life cycle; its handlers only mark pipelines.

Some things end kopf (a watched CRD is deleted, rights are narrowed, a watch delivers an error
500): then `watch` waits until every kind can be read and starts it again in this process,
and sweeps, since nobody delivers what happened meanwhile. Nothing else stops for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kopf

from dynamo.operator.answers import ApiError
from dynamo.operator.dirty import Key
from dynamo.operator.kinds import CHILDREN, PIPELINES, PODS, Resource
from dynamo.operator.kube import Api
from dynamo.operator.latest import Latest
from dynamo.operator.life import Mark, live
from dynamo.operator.login import Login
from dynamo.operator.metrics import Metrics

log = logging.getLogger(__name__)

WATCHED = (PIPELINES, *CHILDREN, PODS)
"""By kopf and by `mirroring`."""
BACKOFFS = (1.0, 1.0, 2.0, 3.0, 5.0)
"""Between kopf's attempts at a request that failed."""
PAUSE_SECONDS = 2.0
"""Between two starts of kopf, and between two looks whether a kind is there."""


class Handlers:
    """What kopf calls; of pipelines only: `mirroring` tells what becomes of their children."""

    def __init__(self, mark: Mark, latest: Latest | None = None) -> None:
        self._mark = mark
        self._latest = latest if latest is not None else Latest()
        self._seen: dict[Key, tuple[Any, ...]] = {}
        self._heard: dict[Key, int] = {}

    def heard(self) -> dict[Key, int]:
        """The latest version of each pipeline that was delivered by this life of kopf; from any thread."""
        return self._heard.copy()

    def pipeline(self, body: Mapping[str, Any], deleted: bool) -> None:
        """A new spec is urgent; our own status comes back as an event too, and isn't."""
        metadata = body["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        mark = metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp"), deleted
        urgent = self._seen.get(key) != mark
        if deleted:
            self._seen.pop(key, None)
            self._heard.pop(key, None)
            self._latest.gone(key)
        else:
            self._latest.told(body)
            self._seen[key] = mark
            self._heard[key] = int(metadata["resourceVersion"])
        self._mark(key, urgent)

    def ended(self) -> None:
        """kopf tells no more: what it told isn't to be believed."""
        self._latest.clear()

    def registry(self, login: Login) -> kopf.OperatorRegistry:
        """For a new life of kopf, which begins with a LIST; nothing is registered globally."""
        self._heard = {}
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
    """No scanning, no peering, no events, no annotation: kopf writes nothing."""
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
    """Until pipelines can be read everywhere; says once a minute what is missing."""
    said = 0
    for namespace in namespaces or (None,):
        while (error := await _unreadable(api, PIPELINES, namespace)) is not None:
            if said % 30 == 0:
                log.warning("waiting for %s: %s", PIPELINES.plural, error)
            said += 1
            await asyncio.sleep(pause)


async def watch(
    api: Api,
    login: Login,
    namespaces: tuple[str, ...],
    handlers: Handlers,
    metrics: Metrics,
    after: Callable[[], Awaitable[None]],
    again: asyncio.Event,
    pause: float = PAUSE_SECONDS,
) -> None:
    """Runs kopf until cancelled, anew whenever it ends or `again` is set; `after` is awaited when it is about to."""
    while True:
        await wait_for_kinds(api, namespaces, pause)
        again.clear()
        try:
            await live(handlers.registry(login), kopf_settings(), namespaces, again)
            log.warning("the watches ended; starting them again")
        except Exception as error:
            # Whatever ends kopf is survived: the pipelines' state is in the cluster, not here.
            log.warning("the watches failed (%s: %s); starting them again", type(error).__name__, error)
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
