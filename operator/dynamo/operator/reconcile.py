"""One look at one pipeline: read, plan, compare, write what differs, say how it stands.

Level-based: nothing is remembered between two looks, so one may be cut off anywhere and the
next one goes on. At rest it writes nothing. `work.py` calls `Reconciler.reconcile` for every
pipeline that was marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from dynamo.operator.answers import ApiError, Gone, Refused, about, failing, verdict
from dynamo.operator.api.v1alpha1 import DynamoPipeline, Metadata
from dynamo.operator.asking import Asking
from dynamo.operator.bodies import parsed, problems
from dynamo.operator.changes import (
    Apply,
    Change,
    Conflict,
    Delete,
    Resize,
    batches,
    belongs,
    changes,
    is_creation,
    since,
    with_live_replicas,
)
from dynamo.operator.claims import Rivals, Standing
from dynamo.operator.conditions import Reason, Type
from dynamo.operator.credentials.access import Access, NoAccess
from dynamo.operator.credentials.etcd_users import Owner
from dynamo.operator.dirty import Key, Turn
from dynamo.operator.kinds import PIPELINES, PODS, ROUTES, resource_of
from dynamo.operator.kube import Api, Object
from dynamo.operator.latest import Latest
from dynamo.operator.mirror import Mirror
from dynamo.operator.observe import Observed, observe
from dynamo.operator.plan import plan
from dynamo.operator.reading import Missed, Reading, gathered
from dynamo.operator.resources.entrance import url as url_of
from dynamo.operator.resources.frontend import health_port
from dynamo.operator.resources.render import manifests, with_images
from dynamo.operator.resources.site import RenderError, Scene
from dynamo.operator.settings import Settings
from dynamo.operator.standing import Claims
from dynamo.operator.status import Trouble, failed_status, status
from dynamo.operator.voice import Voice
from dynamo.operator.workload import Plan

_FIRST = Turn()
PROGRESS_SECONDS = 30.0
"""While something is still to come, look again even if no event says so."""


@dataclass(frozen=True)
class Outcome:
    """How a look ended."""

    gone: bool = False
    writes: int = 0
    failed: bool = False
    """Try again, later each time."""
    seconds: float | None = None
    """When to look again; not before, if it failed."""
    underway: bool = False
    """Its pods are still to come: what they report needn't be looked at one by one."""


class _AgainError(Exception):
    """The pipeline changed or went under our hands."""


class _TakenError(_AgainError):
    """Something is there already under a name of what was to be created."""


class _UnsureError(Exception):
    """What the watches told isn't enough to write by."""


class Reconciler:
    """Holds what all looks share; `reconcile` may run for different pipelines at the same time."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        clock: Callable[[], datetime] | None = None,
        access: Access | None = None,
        mirror: Mirror | None = None,
        latest: Latest | None = None,
        claims: Claims | None = None,
        missed: Missed | None = None,
        asking: Asking | None = None,
    ) -> None:
        self._api, self._settings = api, settings
        self._latest = latest if latest is not None else Latest()
        self._reading, self._voice = Reading(api, mirror, missed), Voice(api, settings.identity, self._latest.wrote)
        self._clock = clock or (lambda: datetime.now(UTC))
        self._access = access or Access(api, settings)
        rivals = Rivals(settings.intervals.rival)
        self._claims = claims or Claims(api, settings.installation, settings.identity, rivals)
        self._asking = asking

    async def reconcile(self, key: Key, turn: Turn = _FIRST) -> Outcome:
        """Raises `ApiError` for what passes by itself."""
        body = self._latest.of(key)
        if body is not None:
            with suppress(_UnsureError):
                outcome = await self._look(body, True, turn)
                if outcome.failed:
                    self._latest.gone(key)  # perhaps because it is old
                return outcome
        body = await self._api.get(PIPELINES, key.namespace, key.name)
        if body is None:
            self._latest.gone(key)
            self._access.gone(Owner(key.namespace, key.name))
            self._voice.gone(key)
            self._claims.gone(key)
            if self._asking is not None:
                self._asking.gone(key)
            return Outcome(gone=True)
        return await self._look(body, False, turn)

    async def _look(self, body: Object, is_told: bool, turn: Turn) -> Outcome:
        if body["metadata"].get("deletionTimestamp"):
            return Outcome()
        now = self._clock()
        standing = await self._claims.standing(body, now)
        if standing is Standing.THEIRS:
            return Outcome(seconds=self._claims.pause)
        if standing is Standing.ABANDONED:
            claimed = await self._claimed(body, now)
            if claimed is None:
                return Outcome(failed=True)
            body = claimed
        shared = self._api, self._settings, self._reading, self._voice, self._access, self._claims
        return await _Look(*shared, body, now, is_told, turn, self._asking).run()

    async def _claimed(self, body: Object, now: datetime) -> Object | None:
        """The pipeline with our name in its status; None where somebody else was quicker."""
        try:
            return await self._voice.claim(body, self._claims.us, now)
        except ApiError as error:
            if error.code in (404, 409):
                return None
            raise


class _Seen(NamedTuple):
    """What is wanted, what is there, and what to write therefore."""

    wanted: Plan
    observed: Observed
    todo: list[Change]
    live: Sequence[Object]


class _Look:
    """One look at one pipeline; holds what it has read and counts what it writes."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        reading: Reading,
        voice: Voice,
        access: Access,
        claims: Claims,
        body: Object,
        now: datetime,
        is_told: bool,
        turn: Turn,
        asking: Asking | None,
    ) -> None:
        self._api, self._settings, self._reading = api, settings, reading
        self._voice, self._access, self._body, self._now = voice, access, body, now
        self._is_told = is_told
        """The body comes from the watch, and may be old."""
        metadata = body["metadata"]
        self._namespace, self._name, self._uid = metadata["namespace"], metadata["name"], metadata["uid"]
        self._key = Key(self._namespace, self._name)
        self._claims = claims
        self._status: Object = body.get("status") or {}
        self._turn, self._asking = turn, asking
        self._is_mute = False
        """The status can't be written now."""
        self._deployment: Object | None = None
        """The frontends' as the server has it since our write."""
        self._writes = 0
        self._wait: float | None = None

    async def run(self) -> Outcome:
        try:
            trouble = await self._judged_whole()
        except _AgainError:
            return Outcome(writes=self._writes, failed=True)
        failed, underway = trouble is not None, trouble is None and _is_on_its_way(self._status)
        return Outcome(writes=self._writes, failed=failed, seconds=self._wait, underway=underway)

    async def _judged_whole(self) -> Trouble | None:
        """What we may not even read goes into the status, too."""
        pipeline = parsed(self._body)
        if pipeline is None:
            return await self._unusable()
        try:
            return await self._carry_out(pipeline)
        except (ApiError, _AgainError) as error:
            found = self._worth_telling(error)
            if found is None or self._is_mute:
                raise
            self._wait = found.seconds
            return await self._failed(pipeline, found.trouble)

    def _worth_telling(self, error: ApiError | _AgainError) -> Refused | None:
        """What we may not do, at once; anything else when it has failed too often."""
        cause = error if isinstance(error, ApiError) else error.__cause__
        if not isinstance(cause, ApiError):
            return None
        found = verdict(cause) if cause.code == 403 else None
        return found if isinstance(found, Refused) else failing(cause, self._turn.failures)

    async def _unusable(self) -> Trouble:
        """The CRD refuses such objects; one may have come in before a rule, or past it."""
        trouble = Trouble(Reason.INVALID_SPEC, "; ".join(problems(self._body)), final=True)
        shell = DynamoPipeline.model_construct(metadata=Metadata.model_construct(**self._body["metadata"]))
        return await self._failed(shell, trouble)

    async def _carry_out(self, pipeline: DynamoPipeline) -> Trouble | None:
        """By what the mirror shows, as long as that can do no harm; else by what the server says now."""
        try:
            if self._turn.is_quiet and _is_on_its_way(self._status):
                await self._reading.asked_again(self._key, self._now)
            seen = self._compared(pipeline, await self._reading.known(self._key, self._now))
            if self._may_write(seen.todo):
                with suppress(_TakenError):
                    return await self._settled(pipeline, seen)
            if self._is_told:
                raise _UnsureError
            return await self._settled(pipeline, await self._compared_anew(pipeline))
        except RenderError as error:
            return await self._failed(pipeline, Trouble(Reason.INVALID_SPEC, str(error), final=True))

    def _may_write(self, todo: Sequence[Change]) -> bool:
        """Whether it can do no harm that the sight is old: what has the name already can't be created.

        But what a pipeline that we know lacks may have been collected with it, before its own end was told.
        """
        is_new = not self._status.get("conditions")
        return not todo or (all(is_creation(change) for change in todo) and (is_new or not self._is_told))

    async def _settled(self, pipeline: DynamoPipeline, seen: _Seen) -> Trouble | None:
        """Writes what there is to write, and says how it stands."""
        scene = Scene.of(pipeline, seen.wanted, self._settings.site)
        if self._asking is not None:
            self._asking.expects(self._key, health_port(scene))
        told = partial(status, pipeline, seen.wanted, now=self._text, url=url_of(scene, seen.live))
        if self._status.get("conditions"):
            trouble = await self._worked_off(scene, seen, told)
        else:
            # Not after the work: without a condition, kstatus and Argo CD would take the object for done.
            first = self._say(told(seen.observed, previous=self._status))
            trouble, _ = await gathered([self._work_off(scene, seen.todo), first])
        found = told(since(seen.observed, seen.todo, self._deployment), previous=self._status, trouble=trouble)
        await self._say(found)
        if trouble is None and self._wait is None and _is_on_its_way(found):
            self._wait = PROGRESS_SECONDS
        return trouble

    async def _worked_off(self, scene: Scene, seen: _Seen, told: Callable[..., Object]) -> Trouble | None:
        """An edit is observed also while the API server fails at what follows from it."""
        try:
            return await self._work_off(scene, seen.todo)
        except ApiError:
            found = told(since(seen.observed, seen.todo, self._deployment), previous=self._status)
            if found["observedGeneration"] != self._status.get("observedGeneration"):
                await self._say(found)
            raise

    async def _compared_anew(self, pipeline: DynamoPipeline) -> _Seen:
        live = await self._reading.listed(self._key, self._now)
        seen = self._compared(pipeline, live)
        intent = manifests(pipeline, seen.wanted, self._settings.site)
        unlabelled = await self._reading.namesakes(self._namespace, intent, live)
        return self._compared(pipeline, live, unlabelled) if unlabelled else seen

    def _compared(self, pipeline: DynamoPipeline, live: list[Object], others: Sequence[Object] = ()) -> _Seen:
        """With what bears our label and, under the names that we need, `others`; raises `RenderError`."""
        site = self._settings.site
        wanted = with_images(plan(pipeline, self._settings.environment(self._namespace)), pipeline, site)
        # One whose label somebody took away runs all the same: to start it anew would end its workers.
        known = [one for one in others if belongs(one, self._name, self._uid)]
        observed = observe([*live, *known], self._now, self._asking.lost(self._key) if self._asking else ())
        before = {c["name"]: c["desired"] for c in self._status.get("components", [])}
        wanted = with_live_replicas(wanted, observed.sets, before)
        everything = [*live, *others]
        return _Seen(wanted, observed, changes(pipeline, wanted, site, everything, observed.sets), everything)

    async def _work_off(self, scene: Scene, todo: Sequence[Change]) -> Trouble | None:
        return await self._admitted(scene) or await self._write(todo)

    async def _admitted(self, scene: Scene) -> Trouble | None:
        """The pipeline's own credentials come before everything that needs them."""
        try:
            grant = await self._access.grant(scene)
            if grant is None:
                return None
            if grant.change is not None and (trouble := await self._one(grant.change)) is not None:
                return trouble
            await self._access.settle(grant)
        except NoAccess as error:
            return error.trouble
        return None

    async def _failed(self, pipeline: DynamoPipeline, trouble: Trouble) -> Trouble:
        await self._say(failed_status(pipeline, trouble, self._status, self._text))
        return trouble

    async def _write(self, todo: Sequence[Change]) -> Trouble | None:
        """In order; what one refuses doesn't keep the others from being written."""
        worst: Trouble | None = None
        for batch in batches(todo):
            for trouble in await gathered(self._one(change) for change in batch):
                if trouble is not None and (worst is None or (trouble.final and not worst.final)):
                    worst = trouble
        return worst

    async def _one(self, change: Change) -> Trouble | None:
        if isinstance(change, Conflict):
            text = f"{change.kind} {change.name} exists and belongs to somebody else: rename the pipeline or remove it"
            return Trouble(Reason.NAME_TAKEN, text, final=True)
        if isinstance(change, Apply) and change.manifest["kind"] == ROUTES.kind and self._reading.no_routes:
            text = f"{ROUTES.kind}s can't be made here ({self._reading.no_routes}): install the Gateway API, "
            return Trouble(Reason.REFUSED, f"spec.frontend.httpRoute: {text}or use spec.frontend.ingress", final=True)
        try:
            await self._send(change)
        except ApiError as error:
            return self._judged(error, change)
        self._writes += 1
        return None

    async def _send(self, change: Apply | Resize | Delete) -> None:
        if isinstance(change, Apply):
            resource = resource_of(change.manifest["kind"])
            found = await self._api.apply(resource, change.manifest, change.uid)
            self._reading.wrote(resource, found)
            if resource.kind == "Deployment":
                self._deployment = found
            return
        target = change.target
        resource = resource_of(target.kind) if target.kind != PODS.kind else PODS
        if isinstance(change, Resize):
            found = await self._api.resize(resource, self._namespace, target.name, target.uid, change.replicas)
            self._reading.wrote(resource, found)
        else:
            await self._api.delete(resource, self._namespace, target.name, target.uid)
            self._reading.removed(resource, self._namespace, target.name)

    def _judged(self, error: ApiError, change: Change) -> Trouble:
        if isinstance(verdict(error), Gone) or _uid_differs(error):
            raise (_TakenError if is_creation(change) else _AgainError) from error
        if isinstance(change, Apply):
            error = about(error, change.manifest["kind"], change.manifest["metadata"]["name"])
        found = verdict(error)
        told = found if isinstance(found, Refused) else failing(error, self._turn.failures)
        if told is None:
            raise error
        self._wait = max(self._wait or 0.0, told.seconds or 0.0) or None
        return told.trouble

    async def _say(self, found: Object) -> None:
        found = self._claims.named(self._key, self._status, found)
        if found == self._status:
            return
        wait = self._voice.due(self._key, self._status, found, self._now)
        if wait:
            self._wait = min(wait, self._wait or wait)
            return
        try:
            self._body = await self._voice.say(self._body, self._status, found, self._now)
        except ApiError as error:
            self._is_mute = True
            if error.code in (404, 409):
                raise _AgainError from error
            raise
        self._status = found
        self._writes += 1

    @property
    def _text(self) -> str:
        return self._now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_on_its_way(found: Object) -> bool:
    return any(c["type"] == Type.RECONCILING for c in found.get("conditions", []))


def _uid_differs(error: ApiError) -> bool:
    """Another object bears the name now: 409, or 422 where the uid is compared as an immutable field."""
    return error.code == 409 or (error.code == 422 and "metadata.uid" in error.message)
