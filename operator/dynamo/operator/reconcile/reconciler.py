"""Reconciles a pipeline: reads it, plans, compares, writes what differs, and reports its status.

Level-based: nothing is remembered between two reconciles, so each may be cut off anywhere and the
next goes on. At rest it writes nothing. `controller.py` calls `Reconciler.reconcile` for every
pipeline that was marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from dynamo.operator.api.body import REFUSED, Read, known_status, read
from dynamo.operator.api.conditions import Reason, Trouble
from dynamo.operator.api.v1alpha1 import DynamoPipeline, Metadata
from dynamo.operator.cluster.changes import belongs, changes, is_creation, since
from dynamo.operator.cluster.object_store import ObjectStore
from dynamo.operator.cluster.objects import (
    ChangeWriter,
    ClusterReader,
    ExpectVersion,
    NameTakenError,
    StaleError,
    gathered,
)
from dynamo.operator.cluster.observe import Observed, observe, why_not
from dynamo.operator.cluster.pipeline_cache import PipelineCache
from dynamo.operator.cluster.rollout_hold import HELD, due
from dynamo.operator.cluster.writes import Change
from dynamo.operator.credentials.etcd_users import Owner
from dynamo.operator.credentials.pipeline_access import Access, NoAccess
from dynamo.operator.kube.client import Api, Object
from dynamo.operator.kube.errors import ApiError, Refused, failing, verdict
from dynamo.operator.kube.resources import PIPELINES, Key
from dynamo.operator.manifests.context import MissingImageError, RenderContext, RenderError
from dynamo.operator.manifests.frontend import frontend_url, health_port
from dynamo.operator.manifests.nats import NAME as NATS
from dynamo.operator.manifests.render import manifests, with_images
from dynamo.operator.namespace_turns import ComputeThread, TooLong, effort
from dynamo.operator.plan.plan import plan
from dynamo.operator.plan.servers import remarking_components
from dynamo.operator.plan.workload import Plan
from dynamo.operator.reconcile.frontend_poller import FrontendPoller
from dynamo.operator.reconcile.ownership import OtherInstallations, Ownership, OwnershipResolver
from dynamo.operator.reconcile.status import TERM, failed_status, is_on_its_way, status, with_term
from dynamo.operator.reconcile.status_writer import StatusWriter
from dynamo.operator.settings import Settings
from dynamo.operator.workqueue import Attempt

T = TypeVar("T")
_FIRST = Attempt()
PROGRESS_SECONDS = 30.0
"""While a pipeline is on its way, reconcile it again after so long even if no event asks for it."""


@dataclass(frozen=True)
class Outcome:
    """Result of a reconcile."""

    gone: bool = False
    writes: int = 0
    failed: bool = False
    """Try again, later each time."""
    seconds: float | None = None
    """When to reconcile again; not before, if it failed."""
    underway: bool = False
    """Its pods are still starting: their reports needn't each cause a reconcile."""


class _UncertainError(Exception):
    """Raised when the cached pipeline may be old, and what it asks for isn't safe to write."""


class Reconciler:
    """Holds what all reconciles share; `reconcile` may run for different pipelines at the same time."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        clock: Callable[[], datetime] | None = None,
        access: Access | None = None,
        store: ObjectStore | None = None,
        cache: PipelineCache | None = None,
        ownership: OwnershipResolver | None = None,
        expect_version: ExpectVersion | None = None,
        poller: FrontendPoller | None = None,
        term: int = 0,
    ) -> None:
        self.api, self.settings, self.term = api, settings, term
        self._cache = cache if cache is not None else PipelineCache()
        self.reader = ClusterReader(api, store, expect_version)
        self.status_writer = StatusWriter(api, settings.identity, self._cache.wrote)
        self._clock = clock or (lambda: datetime.now(UTC))
        self.access = access or Access(api, settings)
        others = OtherInstallations(settings.intervals.takeover)
        self.ownership = ownership or OwnershipResolver(api, settings.installation, settings.identity, others)
        self.poller, self.compute = poller, ComputeThread()

    async def reconcile(self, key: Key, attempt: Attempt = _FIRST) -> Outcome:
        """Bring a pipeline one step closer to its spec; raises `ApiError` for what passes by itself."""
        body = self._cache.of(key)
        if body is not None:
            with suppress(_UncertainError):
                outcome = await self._reconcile(body, True, attempt)
                if outcome.failed and REFUSED not in body:
                    self._cache.gone(key)  # perhaps because it is old
                return outcome
        body = await self.api.get(PIPELINES, key.namespace, key.name)
        if body is None:
            self._forget(key)
            return Outcome(gone=True)
        return await self._reconcile(body, False, attempt)

    def _forget(self, key: Key) -> None:
        """Drop what is remembered of a pipeline that was deleted."""
        self._cache.gone(key)
        self.access.gone(Owner(key.namespace, key.name))
        self.status_writer.gone(key)
        self.ownership.gone(key)
        self.compute.gone(key)
        if self.poller is not None:
            self.poller.gone(key)

    async def _reconcile(self, body: Object, is_cached: bool, attempt: Attempt) -> Outcome:
        if body["metadata"].get("deletionTimestamp"):
            return Outcome()
        now = self._clock()
        ownership = await self.ownership.resolve(body, now)
        if ownership is Ownership.THEIRS:
            return Outcome(seconds=self.ownership.pause)
        if ownership is Ownership.ABANDONED:
            claimed = await self._claimed(body, now)
            if claimed is None:
                return Outcome(failed=True)
            body = claimed
        return await _Reconciliation(self, body=body, now=now, is_cached=is_cached, attempt=attempt).run()

    def close(self) -> None:
        """End what works beside the event loop."""
        self.compute.close()

    async def _claimed(self, body: Object, now: datetime) -> Object | None:
        """Return the pipeline with our name in its status; None where somebody else was quicker."""
        try:
            return await self.status_writer.claim(body, self.ownership.us, now)
        except ApiError as error:
            if error.code in (404, 409):
                return None
            raise


class _Comparison(NamedTuple):
    """The wanted state, the observed state, and what to write therefore."""

    wanted: Plan
    observed: Observed
    todo: list[Change]
    live: Sequence[Object]
    judged: Sequence[Change] | None = None
    """What an old view may write at most; None: it isn't old."""


class _Reconciliation:
    """Reconciles a pipeline once, for its `Reconciler`; holds what it has read and counts what it writes."""

    def __init__(self, reconciler: Reconciler, body: Object, now: datetime, is_cached: bool, attempt: Attempt) -> None:
        self._shared, self._body, self._now, self._attempt = reconciler, body, now, attempt
        self._text = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self._settings, self._reader, self._access = reconciler.settings, reconciler.reader, reconciler.access
        self._is_cached = is_cached
        """The body comes from the watch, and may be old."""
        metadata = body["metadata"]
        self._namespace, self._name, self._uid = metadata["namespace"], metadata["name"], metadata["uid"]
        self._key = Key(self._namespace, self._name)
        self._generation = int(metadata.get("generation") or 0)
        self._status: Object = known_status(body)
        self._is_status_unwritable = False
        """The status can't be written now."""
        self._writer = ChangeWriter(reconciler.api, self._reader, self._namespace, attempt)
        self._writes = 0
        """Of the status; the children's are counted by `_writer`."""
        self._wait: float | None = None
        self._nats: list[Object] | None = None
        """The namespace's own, where the pipeline uses it."""

    async def run(self) -> Outcome:
        try:
            trouble = await self._reconcile()
        except StaleError:
            return Outcome(writes=self._written, failed=True)
        failed, underway = trouble is not None, trouble is None and is_on_its_way(self._status)
        waits = [seconds for seconds in (self._wait, self._writer.wait) if seconds is not None]
        seconds = max(waits, default=None)
        return Outcome(writes=self._written, failed=failed, seconds=seconds, underway=underway)

    async def _reconcile(self) -> Trouble | None:
        """Reconcile, and report in the status what we may not even read."""
        result = await self._read()
        pipeline = result.pipeline
        if pipeline is None:
            return await self._unusable("; ".join(result.problems))
        try:
            return await self._carry_out(pipeline)
        except (ApiError, StaleError) as error:
            refusal = self._refusal(error)
            if refusal is None or self._is_status_unwritable:
                raise
            self._wait = refusal.seconds
            return await self._failed(pipeline, refusal.trouble)

    def _refusal(self, error: ApiError | StaleError) -> Refused | None:
        """Return what the status reports: a missing right at once, any other error once it has failed too often."""
        cause = error if isinstance(error, ApiError) else error.__cause__
        if not isinstance(cause, ApiError):
            return None
        judgement = verdict(cause) if cause.code == 403 else None
        return judgement if isinstance(judgement, Refused) else failing(cause, self._attempt.failures)

    async def _read(self) -> Read:
        """Read the spec with the types; a large one beside the event loop."""
        pods = self._settings.max_pods
        size = 0 if REFUSED in self._body else len(msgspec.json.encode(self._body.get("spec"))) / 1024
        try:
            return await self._shared.compute.run(self._key, self._generation, size, partial(read, self._body, pods))
        except TooLong as error:
            return Read(None, (str(error),))

    async def _unusable(self, problems: str) -> Trouble:
        """Report an object that the CRD would refuse: it may have come in before a rule, or past it."""
        trouble = Trouble(Reason.INVALID_SPEC, problems, final=True)
        shell = DynamoPipeline.model_construct(metadata=Metadata.model_construct(**self._body["metadata"]))
        return await self._failed(shell, trouble)

    async def _carry_out(self, pipeline: DynamoPipeline) -> Trouble | None:
        """Act on what the store shows, as long as that can do no harm; else on what the server says now."""
        try:
            if self._attempt.is_quiet and is_on_its_way(self._status):
                beside = self._access.servers.places(pipeline, self._namespace)
                await self._reader.refresh([self._key, *beside], self._now)
            comparison = await self._compared(pipeline, await self._reader.known(self._key, self._now))
            if self._may_write(judged := await self._due(pipeline, comparison)):
                with suppress(NameTakenError):
                    return await self._settled(pipeline, comparison._replace(judged=judged))
            if self._is_cached:
                raise _UncertainError
            return await self._settled(pipeline, await self._compared_anew(pipeline))
        except (RenderError, TooLong) as error:
            reason = Reason.MISSING_IMAGE if isinstance(error, MissingImageError) else Reason.INVALID_SPEC
            return await self._failed(pipeline, Trouble(reason, str(error), final=True))

    def _may_write(self, todo: Sequence[Change]) -> bool:
        """Return whether an old view can do no harm: a name that exists already can't be created again.

        But what a pipeline that we know lacks may have been collected with it, before its own end was delivered.
        """
        is_new = not self._status.get("conditions")
        return not todo or (all(is_creation(change) for change in todo) and (is_new or not self._is_cached))

    async def _settled(self, pipeline: DynamoPipeline, comparison: _Comparison) -> Trouble | None:
        """Write the changes, then the status."""
        context = RenderContext.of(pipeline, comparison.wanted, self._settings.cluster)
        self._nats = await self._access.servers.live(pipeline, self._namespace, self._reader)
        if self._nats is not None:
            is_held = len(await self._due(pipeline, comparison)) < len(comparison.todo)
            nats = why_not(self._nats, NATS) or (HELD if is_held else None)
            comparison = comparison._replace(observed=replace(comparison.observed, nats=nats))
        if self._shared.poller is not None:
            self._shared.poller.expect(self._key, health_port(context), remarking_components(pipeline))
        url = frontend_url(context, comparison.live)
        status_of = partial(status, pipeline, comparison.wanted, now=self._text, url=url)
        if self._status.get("conditions") or self._shared.term:
            if comparison.todo:
                await self._take_over(status_of(comparison.observed, previous=self._status))
            trouble = await self._write_or_observe(context, comparison, status_of)
        else:
            # Not after the work: without a condition, kstatus and Argo CD would take the object for done.
            first = self._write_status(status_of(comparison.observed, previous=self._status))
            trouble, _ = await gathered([self._write_changes(context, comparison), first])
        new_status = status_of(
            since(comparison.observed, comparison.todo, self._writer.deployment), previous=self._status, trouble=trouble
        )
        await self._write_status(new_status)
        if trouble is None and self._wait is None and self._writer.wait is None and is_on_its_way(new_status):
            self._wait = PROGRESS_SECONDS
        return trouble

    async def _take_over(self, new_status: Object) -> None:
        """Write the status first after a change of leaders, so that writes of the former leader come too late.

        It is the status as it was with the new term, or a new pipeline's first status, which nothing may precede.
        """
        if self._shared.term and self._status.get(TERM) != self._shared.term:
            await self._write_status(
                new_status if not self._status.get("conditions") else {**self._status, TERM: self._shared.term}
            )

    async def _write_or_observe(
        self, context: RenderContext, comparison: _Comparison, status_of: Callable[..., Object]
    ) -> Trouble | None:
        """Write the changes; report an edit as observed also while the API server fails at what follows from it."""
        try:
            return await self._write_changes(context, comparison)
        except ApiError:
            new_status = status_of(
                since(comparison.observed, comparison.todo, self._writer.deployment), previous=self._status
            )
            if new_status["observedGeneration"] != self._status.get("observedGeneration"):
                await self._write_status(new_status)
            raise

    async def _compared_anew(self, pipeline: DynamoPipeline) -> _Comparison:
        live = await self._reader.listed(self._key, self._now)
        comparison = await self._compared(pipeline, live)
        intent = await self._computed(pipeline, partial(manifests, pipeline, comparison.wanted, self._settings.cluster))
        unlabelled = await self._reader.namesakes(self._namespace, intent, live)
        return await self._compared(pipeline, live, unlabelled) if unlabelled else comparison

    async def _computed(self, pipeline: DynamoPipeline, what: Callable[[], T]) -> T:
        return await self._shared.compute.run(self._key, self._generation, effort(pipeline), what)

    async def _compared(
        self, pipeline: DynamoPipeline, live: list[Object], others: Sequence[Object] = ()
    ) -> _Comparison:
        return await self._computed(pipeline, partial(self._compare, pipeline, live, others))

    def _compare(self, pipeline: DynamoPipeline, live: list[Object], others: Sequence[Object]) -> _Comparison:
        """Compare the plan with the labelled objects and `others` under the names we need; raises `RenderError`."""
        cluster = self._settings.cluster
        wanted = with_images(plan(pipeline, self._settings.environment(self._namespace)), pipeline, cluster)
        # An object whose label somebody took away runs all the same: to start it again would end its workers.
        known = [item for item in others if belongs(item, self._name, self._uid)]
        poller = self._shared.poller
        lost, remarks = (poller.lost(self._key), poller.remarks(self._key)) if poller else ((), {})
        observed = observe([*live, *known], self._now, lost, remarks)
        everything = [*live, *others]
        todo = changes(pipeline, plan=wanted, cluster=cluster, live=everything, sets=observed.sets)
        return _Comparison(wanted, observed, todo, everything)

    async def _write_changes(self, context: RenderContext, comparison: _Comparison) -> Trouble | None:
        trouble = await self._admitted(context)  # which may have replaced NATS
        return trouble or await self._writer.write_all(await self._due(context.pipeline, comparison))

    async def _due(self, pipeline: DynamoPipeline, comparison: _Comparison) -> list[Change]:
        """Return what may be written now."""
        nats = await self._access.servers.live(pipeline, self._namespace, self._reader) if comparison.todo else None
        now = due(comparison.todo, comparison.wanted, comparison.live, comparison.observed.sets, nats)
        return [change for change in now if comparison.judged is None or change in comparison.judged]

    async def _admitted(self, context: RenderContext) -> Trouble | None:
        """Write the pipeline's own credentials before everything that needs them."""
        try:
            trust = await self._access.trusted(context, self._nats, self._writer, self._before_credentials)
            if isinstance(trust, Trouble):
                return trust
            grant = await self._access.grant(context, trust)
            if grant is None:
                return None
            if grant.change is not None:
                await self._before_credentials()
            if grant.change is not None and (trouble := await self._writer.write(grant.change)) is not None:
                return trouble
            await self._access.settle(grant)
        except NoAccess as error:
            return error.trouble
        return None

    async def _before_credentials(self) -> None:
        if self._status.get("conditions"):
            await self._take_over(self._status)

    async def _failed(self, pipeline: DynamoPipeline, trouble: Trouble) -> Trouble:
        await self._write_status(failed_status(pipeline, trouble, self._status, self._text))
        return trouble

    async def _write_status(self, new_status: Object) -> None:
        new_status = with_term(
            self._shared.ownership.with_operator(self._key, self._status, new_status), self._status, self._shared.term
        )
        if new_status == self._status:
            return
        wait = self._shared.status_writer.due(self._key, self._status, new_status, self._now)
        if wait:
            self._wait = min(wait, self._wait or wait)
            return
        try:
            self._body = await self._shared.status_writer.write(self._body, self._status, new_status, self._now)
        except ApiError as error:
            self._is_status_unwritable = True
            if error.code in (404, 409):
                raise StaleError from error
            raise
        self._status = new_status
        self._writes += 1

    @property
    def _written(self) -> int:
        return self._writes + self._writer.count
