"""One attempt at one worker: counted while it runs, and never longer."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any

import pytest

from dynamo.frontend.generation.attempt import Attempt
from dynamo.frontend.generation.request_scope import RequestScope
from dynamo.frontend.metrics import ModelMeter
from dynamo.frontend.routing.hints import NO_HINTS
from dynamo.frontend.routing.model_set import ModelSet, Worker
from dynamo.llm.model_card import ModelCard
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException, NoInstances
from dynamo.runtime.load_balancing import RouterMode
from dynamo.runtime.names import EndpointPath, InstanceKey

KEY = InstanceKey(EndpointPath("test", "backend", "generate"), 7)
REQUEST = PreprocessedRequest(model="m", token_ids=[1, 2, 3])


class View:
    """One instance that can be asked."""

    version, synced = 1, True

    def routable(self, path: EndpointPath) -> list[InstanceKey]:
        return [KEY]

    def pending(self, key: InstanceKey) -> None:
        """Nobody listens."""

    def loaded(self, key: InstanceKey) -> None:
        """Nobody listens."""

    def failed(self, key: InstanceKey, reason: str) -> None:
        """Nobody listens."""

    def batch(self) -> AbstractContextManager[None]:
        return nullcontext()


class Call:
    """A stream that counts how often it was cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


class Opener:
    """Keeps what was opened, and what is to be done after the messages at hand."""

    def __init__(self) -> None:
        self.call, self.opened, self.later = Call(), list[Any](), list[Any]()

    def open(self, instance: InstanceKey, payload: Any, *, context: Context, on_item: Any, on_end: Any) -> Call:
        self.opened.append((instance, payload, on_item, on_end))
        return self.call

    def after_batch(self, callback: Any) -> None:
        self.later.append(callback)


class Owner:
    """Hears what the worker sends."""

    tokens = 0

    def on_item(self, data: Any, last: bool) -> None:
        """Not called here."""

    def on_end(self, error: DynamoException | None) -> None:
        """Not called here."""

    def stalled(self, error: DynamoException) -> None:
        """Not called here."""


class World:
    """A model set with one worker, and an attempt there."""

    def __init__(self) -> None:
        self.models = ModelSet(ModelCard(name="m", context_length=100), View(), RouterMode.ROUND_ROBIN, Random(1))
        self.worker = self.models.workers[KEY] = Worker(id=KEY.id, key=KEY)
        self.opener, self.owner = Opener(), Owner()
        scope = RequestScope(self.models, self.opener, Context(), ModelMeter("m"), time.monotonic)
        self.attempt = Attempt(self.owner, scope, self.models, NO_HINTS)


def test_it_counts_from_its_choice_until_it_leaves() -> None:
    """Leaving twice is leaving once; its worker's key stays known."""
    world = World()
    assert world.attempt.choose(REQUEST, set()) is world.worker
    world.attempt.open(REQUEST, Context())
    assert world.worker.open_streams == 1
    for _ in range(2):
        world.attempt.leave()
    assert (world.worker.open_streams, world.attempt.key, world.opener.call.cancelled) == (0, KEY, 0)


def test_items_go_straight_to_the_owner() -> None:
    """Nothing stands between the stream and it."""
    world = World()
    world.attempt.choose(REQUEST, set())
    world.attempt.open(REQUEST, Context())
    ((instance, payload, on_item, on_end),) = world.opener.opened
    assert (instance, payload) == (KEY, REQUEST)
    assert (on_item, on_end) == (world.owner.on_item, world.owner.on_end)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_stream_is_ended_at_once_or_after_the_messages_at_hand(at_once: bool) -> None:
    """It counts no more in either case."""
    world = World()
    world.attempt.choose(REQUEST, set())
    world.attempt.open(REQUEST, Context())
    (world.attempt.cancel if at_once else world.attempt.abandon)()
    assert (world.worker.open_streams, world.opener.call.cancelled, len(world.opener.later)) == (
        0, int(at_once), int(not at_once),
    )  # fmt: skip


def test_without_a_worker_nothing_is_counted() -> None:
    """The only one is excluded."""
    world = World()
    with pytest.raises(NoInstances):
        world.attempt.choose(REQUEST, {KEY})
    world.attempt.leave()
    assert (world.worker.open_streams, world.attempt.key) == (0, None)
