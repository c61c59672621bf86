"""Credentials of pipelines, kept as they should be: `Access`, the shell around `secret` and `etcd_users`.

A reconcile asks `grant` what to write, writes it, and `settle`s: then the user is in etcd. `keep`
runs beside the reconciles: it has etcd ask for sign-in, removes users that nobody needs, and has
pipelines reconciled again whose user etcd has lost, or whose keys the platform has replaced.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from dynamo.operator.api.conditions import Reason, Trouble
from dynamo.operator.cluster.changes import applied, belongs
from dynamo.operator.cluster.objects import ChangeWriter
from dynamo.operator.cluster.writes import Apply, Conflict
from dynamo.operator.credentials import permissions
from dynamo.operator.credentials.etcd_auth import EtcdAuth, EtcdError
from dynamo.operator.credentials.etcd_users import Leftovers, Owner
from dynamo.operator.credentials.nats_servers import NatsServers
from dynamo.operator.credentials.nats_trust import Trust
from dynamo.operator.credentials.platform import Platform, PlatformError, tls_context
from dynamo.operator.credentials.secret import (
    EtcdUser,
    Material,
    PipelineIdentity,
    data_in,
    data_of,
    etcd_user,
    manifest,
)
from dynamo.operator.kube.client import Api, Object
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import PIPELINES, PODS, SECRETS
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import Manifest, RenderContext
from dynamo.operator.settings import Settings

log = logging.getLogger(__name__)

ROUND_SECONDS: Final = 60.0
SOON_SECONDS: Final = 5.0
"""Between two rounds while users wait for their pods to end."""

Mark = Callable[[Owner], None]


class NoAccess(Exception):  # noqa: N818 - says what there isn't
    """Raised when a pipeline can't have its credentials now."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


@dataclass(frozen=True)
class Grant:
    """Credentials of a pipeline: the write that its Secret needs, and the user that etcd must have then."""

    owner: Owner
    change: Apply | Conflict | None = None
    user: EtcdUser | None = None


class Access:
    """Holds what it knows of etcd's users; forgetting that costs calls, nothing else."""

    def __init__(self, api: Api, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._settings, self._clock = api, settings, clock
        self._platform = Platform(api, settings, clock)
        self.servers = NatsServers(api, settings.nats_server)
        self._session: aiohttp.ClientSession | None = None
        self._etcd: tuple[Material, EtcdAuth] | None = None
        self._ready = False
        """etcd was seen to ask for sign-in."""
        self._setting_up = asyncio.Lock()
        self._known: set[str] = set()
        """Users that are in etcd, as far as we know."""
        self._current: dict[Owner, str] = {}
        """Whom a pipeline's Secret names; empty where it needs nobody in etcd."""
        self._given: Material | None = None
        self._leftovers = Leftovers()
        self._woken = asyncio.Event()
        self._last_error = ""

    async def close(self) -> None:
        """End the session."""
        if self._session is not None:
            await self._session.close()

    # -- for a reconcile

    async def grant(self, context: RenderContext, trust: Trust | None = None) -> Grant | None:
        """Return what a pipeline gets, None where that is nothing; `trust`: of the namespace's own NATS.

        Raises `NoAccess`, `ApiError`.
        """
        identity = PipelineIdentity.of(self._settings.platform, context)
        shared = self._settings.share_namespaces
        if problem := permissions.refused(identity.owner.namespace, identity.dynamo_namespace, shared=shared):
            raise NoAccess(Trouble(Reason.INVALID_SPEC, f"spec.namespace: {problem}", final=True))
        if not identity.servers:
            return None
        name = naming.credentials_name(context.pipeline.name)
        live = await self._api.get(SECRETS, context.kubernetes_namespace, name)
        try:
            material = await self._platform.material()
        except PlatformError as error:
            if live is not None:
                return None  # what runs goes on; `keep` logs it
            raise NoAccess(Trouble(Reason.CREDENTIALS_UNAVAILABLE, str(error), final=False)) from error
        material = trust.given_to(material) if trust is not None else material
        grant = self._granted(context, identity, material, live)
        if grant.user is not None and live is None:
            await self._asked_first()
        return grant

    async def trusted(
        self,
        context: RenderContext,
        live: Sequence[Object] | None,
        writer: ChangeWriter,
        before: Callable[[], Awaitable[None]],
    ) -> Trust | Trouble | None:
        """Return the trust of the namespace's own NATS, once it is written; None without one. Raises as `grant`."""
        if live is None:
            return None
        try:
            return await self.servers.ready(context, live, writer, before)
        except PlatformError as error:
            raise NoAccess(Trouble(Reason.CREDENTIALS_UNAVAILABLE, str(error), final=False)) from error

    def gone(self, owner: Owner) -> None:
        """Note that a pipeline was deleted: its user goes as soon as its pods have."""
        if self._current.pop(owner, None):
            self._woken.set()

    async def settle(self, grant: Grant) -> None:
        """Create the user in etcd after the Secret was written. Raises `NoAccess` where that matters now."""
        user = grant.user
        self._current[grant.owner] = user.name if user else ""
        if user is not None and user.name not in self._known:
            try:
                etcd = await self._signed_in()
                await etcd.ensure(user.name, user.password, user.ranges)
            except (EtcdError, PlatformError) as error:
                if isinstance(grant.change, Apply):
                    raise _no_user(error) from error
                log.warning("%s/%s: could not check its user in etcd: %s", *grant.owner, error)
                return
            self._known.add(user.name)

    async def _asked_first(self) -> None:
        """Check that etcd takes users before a pipeline gets its Secret: with it, its pods would be made."""
        try:
            await self._signed_in()
        except (EtcdError, PlatformError) as error:
            raise _no_user(error) from error

    def _granted(
        self, context: RenderContext, identity: PipelineIdentity, material: Material, live: Manifest | None
    ) -> Grant:
        ours = live if live is not None and belongs(live, context.pipeline.name, context.uid) else {}
        data = data_of(
            material, identity=identity, live=data_in(ours), draw=lambda: os.urandom(32), now=int(time.time())
        )
        wanted = manifest(context, data)
        change = next(applied([wanted], [live] if live else [], context.pipeline.name, context.uid), None)
        if change is None and not ours:
            raise ApiError(
                0, f"waiting for the Secret {wanted['metadata']['name']} of a deleted pipeline to be removed"
            )
        return Grant(identity.owner, change, etcd_user(data, identity))

    # -- beside the reconciles

    async def keep(self, mark: Mark) -> None:
        """Look after etcd's users until cancelled; `mark` has a pipeline reconciled again."""
        if not (self._settings.etcd_sign_in or self._settings.nats_sign_in):
            return
        while True:
            wait = SOON_SECONDS
            try:
                wait = await self._round(mark)
                self._last_error = ""
            except (EtcdError, PlatformError, ApiError) as error:
                self._log_error(str(error))
            except Exception:  # a defect here must not end the operator
                log.exception("could not maintain credentials")
            await self._next(wait)

    async def _next(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    async def _round(self, mark: Mark) -> float:
        material = await self._platform.material()
        if self._given is not None and material != self._given:
            log.info("the platform's keys have changed; renewing the credentials of all pipelines")
            for owner in list(self._current):
                mark(owner)
        self._given = material
        if material.etcd_admin is None:
            return ROUND_SECONDS
        etcd = await self._signed_in(again=True)
        was_full = self._settings.etcd_sign_in.own_server and await self._made_room(etcd)
        users = await etcd.names()
        for owner, user in self._current.items():
            if user and user not in users:
                log.warning("etcd has lost the user of %s/%s; creating it again", *owner)
                mark(owner)
        self._known &= users
        waiting = await self._cleared(etcd, users)
        return SOON_SECONDS if waiting or was_full else ROUND_SECONDS

    async def _made_room(self, etcd: EtcdAuth) -> bool:
        done = await etcd.make_room()
        if done:
            log.warning("%s", done)
        return bool(done)

    async def _cleared(self, etcd: EtcdAuth, users: set[str]) -> bool:
        """Remove who is not needed; True while some still wait. Pipelines are listed after users, never before."""
        waiting = False
        alive = await self._alive()
        for user, owner in self._leftovers.orphans(self._settings.platform, users, alive).items():
            if await self._has_pods(owner):
                waiting = True
            else:
                await self._removed(etcd, user)
        now = self._clock()
        for user in self._leftovers.replaced(self._settings.platform, users, self._needed(), now):
            await self._removed(etcd, user)
        return waiting

    def _needed(self) -> dict[Owner, str]:
        return {owner: user for owner, user in self._current.items() if user}

    async def _removed(self, etcd: EtcdAuth, user: str) -> None:
        await etcd.remove(user)
        self._known.discard(user)
        log.info("removed the user %s from etcd", user)

    async def _alive(self) -> list[Owner]:
        owners: list[Owner] = []
        for namespace in self._settings.namespaces or (None,):
            heads = await self._api.items(PIPELINES, namespace, heads_only=True)
            owners += [Owner(h["metadata"]["namespace"], h["metadata"]["name"]) for h in heads]
        return owners

    async def _has_pods(self, owner: Owner) -> bool:
        """Return whether pods are left: they finish their streams, and leave etcd, before their user goes."""
        selector = f"{naming.PIPELINE}={owner.name}"
        return bool(await self._api.items(PODS, owner.namespace, selector, heads_only=True))

    async def _signed_in(self, *, again: bool = False) -> EtcdAuth:
        """Return etcd with our own sign-in; an etcd of the platform's requires it from then on."""
        material = await self._platform.material()
        if material.etcd_admin is None:
            raise PlatformError("etcd has no credentials for the operator")
        if self._session is None:
            self._session = aiohttp.ClientSession()
        if self._etcd is None or self._etcd[0] != material:
            context = tls_context(material.etcd_files)
            self._etcd = (material, EtcdAuth(self._session, self._settings.etcd, material.etcd_admin, context))
            self._ready = False
        etcd = self._etcd[1]
        async with self._setting_up:
            if again or not self._ready:
                self._ready = False
                await self._set_up(etcd)
                self._ready = True
        return etcd

    async def _set_up(self, etcd: EtcdAuth) -> None:
        if self._settings.etcd_sign_in.own_server:
            if await etcd.set_up(secrets.token_hex(8)):
                log.info("enabled authentication in etcd")
                self._known.clear()
        elif not await etcd.asks_for_sign_in():
            raise EtcdError(
                "etcd does not require authentication, although pipelines are configured to sign in: run "
                "etcdctl auth enable, or set etcd.auth.enabled=false if everybody who reaches etcd may use it"
            )

    def _log_error(self, text: str) -> None:
        if text != self._last_error:
            log.warning("%s", text)
        self._last_error = text


def _no_user(error: Exception) -> NoAccess:
    message = f"could not create its user in etcd: {error}; trying again"
    return NoAccess(Trouble(Reason.CREDENTIALS_UNAVAILABLE, message, final=False))
