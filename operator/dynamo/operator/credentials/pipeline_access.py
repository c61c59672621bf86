"""Credentials of pipelines, kept as they should be: `Access`, the shell around `secret` and `etcd_users`.

A look asks `grant` what to write, writes it, and `settle`s: then the user is in etcd. `keep`
runs beside the looks: it has etcd ask for sign-in, removes users that nobody needs, and has
pipelines looked at again whose user etcd has lost, or whose keys the platform has replaced.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp

from dynamo.operator.answers import ApiError
from dynamo.operator.changes import Apply, Conflict, applied, belongs
from dynamo.operator.conditions import Reason
from dynamo.operator.credentials import rights
from dynamo.operator.credentials.etcd_auth import EtcdAuth, EtcdError
from dynamo.operator.credentials.etcd_users import Leftovers, Owner
from dynamo.operator.credentials.platform import Platform, PlatformError, tls_context
from dynamo.operator.credentials.secret import EtcdUser, Material, Place, data_in, data_of, etcd_user, limited, manifest
from dynamo.operator.kinds import PIPELINES, PODS, SECRETS
from dynamo.operator.kube import Api
from dynamo.operator.resources import naming
from dynamo.operator.resources.site import Manifest, Scene
from dynamo.operator.settings import Settings
from dynamo.operator.status import Trouble

log = logging.getLogger(__name__)

ROUND_SECONDS: Final = 60.0
SOON_SECONDS: Final = 5.0
"""Between two rounds while users wait for their pods to end."""

Mark = Callable[[Owner], None]


class NoAccess(Exception):  # noqa: N818 - says what there isn't
    """A pipeline can't have its credentials now."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


@dataclass(frozen=True)
class Grant:
    """What a pipeline gets: the write that its Secret needs, and the user that etcd must have then."""

    owner: Owner
    change: Apply | Conflict | None = None
    user: EtcdUser | None = None


class Access:
    """Holds what it knows of etcd's users; forgetting that costs calls, nothing else."""

    def __init__(self, api: Api, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._settings, self._clock = api, settings, clock
        self._platform = Platform(api, settings, clock)
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
        self._said = ""

    async def close(self) -> None:
        """Ends the session."""
        if self._session is not None:
            await self._session.close()

    # -- for a look

    async def grant(self, scene: Scene) -> Grant | None:
        """None where the platform gives nothing. Raises `NoAccess`, `ApiError`."""
        place = Place.of(self._settings.platform, scene)
        if not place.servers:
            return None
        name = naming.credentials_name(scene.pipeline.name)
        live = await self._api.get(SECRETS, scene.kubernetes_namespace, name)
        try:
            material = await self._platform.material()
        except PlatformError as error:
            if live is not None:
                return None  # what runs goes on; `keep` says it
            raise NoAccess(Trouble(Reason.CONFIG_MISSING, str(error), final=False)) from error
        problem = rights.refused(place.owner.namespace, place.dynamo_namespace) if limited(material, place) else None
        if problem:
            raise NoAccess(Trouble(Reason.INVALID_SPEC, f"spec.namespace: {problem}", final=True))
        return self._granted(scene, place, material, live)

    def gone(self, owner: Owner) -> None:
        """A pipeline is no more: its user goes as soon as its pods have."""
        if self._current.pop(owner, None):
            self._woken.set()

    async def settle(self, grant: Grant) -> None:
        """After the Secret was written: its user is in etcd. Raises `NoAccess` where that matters now."""
        user = grant.user
        self._current[grant.owner] = user.name if user else ""
        if user is not None and user.name not in self._known:
            try:
                etcd = await self._signed_in()
                await etcd.ensure(user.name, user.password, user.ranges)
            except (EtcdError, PlatformError) as error:
                if isinstance(grant.change, Apply):
                    message = f"its user in etcd can't be made: {error}; trying again"
                    raise NoAccess(Trouble(Reason.CONFIG_MISSING, message, final=False)) from error
                log.warning("%s/%s: its user in etcd can't be looked at: %s", *grant.owner, error)
                return
            self._known.add(user.name)

    def _granted(self, scene: Scene, place: Place, material: Material, live: Manifest | None) -> Grant:
        ours = live if live is not None and belongs(live, scene.pipeline.name, scene.uid) else {}
        data = data_of(material, place, data_in(ours), lambda: os.urandom(32), int(time.time()))
        wanted = manifest(scene, data)
        found = next(applied([wanted], [live] if live else [], scene.pipeline.name, scene.uid), None)
        if found is None and not ours:
            raise ApiError(0, f"the Secret {wanted['metadata']['name']} of a deleted pipeline has yet to go")
        return Grant(place.owner, found, etcd_user(data, place))

    # -- beside the looks

    async def keep(self, mark: Mark) -> None:
        """Until cancelled. `mark` has a pipeline looked at again."""
        if not (self._settings.etcd_sign_in or self._settings.nats_sign_in):
            return
        while True:
            wait = SOON_SECONDS
            try:
                wait = await self._round(mark)
                self._said = ""
            except (EtcdError, PlatformError, ApiError) as error:
                self._say(str(error))
            except Exception:  # a defect here must not end the operator
                log.exception("credentials could not be looked after")
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
            log.info("the platform's keys have changed; all pipelines get theirs anew")
            for owner in list(self._current):
                mark(owner)
        self._given = material
        if material.etcd_admin is None:
            return ROUND_SECONDS
        etcd = await self._signed_in(again=True)
        found = await etcd.names()
        for owner, user in self._current.items():
            if user and user not in found:
                log.warning("etcd has lost the user of %s/%s; making it again", *owner)
                mark(owner)
        self._known &= found
        waiting = await self._cleared(etcd, found)
        return SOON_SECONDS if waiting else ROUND_SECONDS

    async def _cleared(self, etcd: EtcdAuth, found: set[str]) -> bool:
        """Remove who is not needed; True while some still wait. Pipelines are listed after users, never before."""
        waiting = False
        alive = await self._alive()
        for user, owner in self._leftovers.orphans(self._settings.platform, found, alive).items():
            if await self._has_pods(owner):
                waiting = True
            else:
                await self._removed(etcd, user)
        now = self._clock()
        for user in self._leftovers.replaced(self._settings.platform, found, self._needed(), now):
            await self._removed(etcd, user)
        return waiting

    def _needed(self) -> dict[Owner, str]:
        return {owner: user for owner, user in self._current.items() if user}

    async def _removed(self, etcd: EtcdAuth, user: str) -> None:
        await etcd.remove(user)
        self._known.discard(user)
        log.info("removed the user %s from etcd", user)

    async def _alive(self) -> list[Owner]:
        found: list[Owner] = []
        for namespace in self._settings.namespaces or (None,):
            heads = await self._api.items(PIPELINES, namespace, heads_only=True)
            found += [Owner(h["metadata"]["namespace"], h["metadata"]["name"]) for h in heads]
        return found

    async def _has_pods(self, owner: Owner) -> bool:
        """They finish their streams first, and say goodbye in etcd."""
        selector = f"{naming.PIPELINE}={owner.name}"
        return bool(await self._api.items(PODS, owner.namespace, selector, heads_only=True))

    async def _signed_in(self, *, again: bool = False) -> EtcdAuth:
        """Our own sign-in; an etcd of the platform's asks for it from then on."""
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
                await self._set_up(etcd)
                self._ready = True
        return etcd

    async def _set_up(self, etcd: EtcdAuth) -> None:
        if self._settings.etcd_sign_in.own_server:
            if await etcd.set_up(secrets.token_hex(8)):
                log.info("etcd asks for sign-in from now on")
                self._known.clear()
        elif not await etcd.asks_for_sign_in():
            self._say("etcd lets anybody in, though the platform has credentials for it: enable its authentication")

    def _say(self, text: str) -> None:
        if text != self._said:
            log.warning("%s", text)
        self._said = text
