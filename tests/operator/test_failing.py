"""An API server that fails for good: after a few tries the status has its words, and loses them once it works."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import web
from tests.operator.apiserver import refusal
from tests.operator.pipelines import SMALLEST
from tests.operator.reconcile.test_reconciler import KEY, Bench, on, run
from tests.operator.test_leadership import FIRST, until

from dynamo.operator.api.conditions import Reason
from dynamo.operator.controller import Controller
from dynamo.operator.kube.errors import TRIES, ApiError, about, failing
from dynamo.operator.kube.resources import Key
from dynamo.operator.metrics import Metrics
from dynamo.operator.reconcile.reconciler import Outcome
from dynamo.operator.workqueue import Attempt, Backoff, WorkQueue

FULL = "Internal error occurred: failed to allocate a serviceIP: range is full"
EDITED: dict[str, Any] = {**SMALLEST, "frontend": {"port": 8080}}


async def tried(bench: Bench, times: int) -> list[Outcome | ApiError]:
    """So many reconciles in a row, as the loop makes them."""
    results: list[Outcome | ApiError] = []
    for failures in range(times):
        try:
            results.append(await bench.reconciler.reconcile(KEY, Attempt(failures)))
        except ApiError as error:
            results.append(error)
    return results


def test_a_write_that_fails_for_good_is_told() -> None:
    """Not at once; then with the API server's words, and the rest is made. Nothing is written at rest."""

    async def case(bench: Bench) -> None:
        bench.server.fault = on("PATCH", "/services/", lambda: refusal(500, FULL))
        early = await tried(bench, TRIES - 1)
        assert all(isinstance(outcome, ApiError) and FULL in str(outcome) for outcome in early)
        ready = bench.condition("Ready")
        assert ready is not None
        assert ready["reason"] == "Starting"
        assert bench.server.names("Deployment") == []
        await tried(bench, TRIES + 2)
        for kind, status in (("Ready", "False"), ("Reconciling", "True")):
            condition = bench.condition(kind)
            assert condition is not None
            assert (condition["status"], condition["reason"]) == (status, "ApiServerFailing")
            assert condition["message"] == f"Service llama-frontend: {FULL} (HTTP 500)"
        assert bench.server.names("Deployment") == ["llama-frontend"]
        bench.server.play()
        await bench.reconciler.reconcile(KEY, Attempt(TRIES))
        written = len(bench.server.writes)
        outcome = await bench.reconciler.reconcile(KEY, Attempt(TRIES))
        assert (outcome.failed, outcome.writes, len(bench.server.writes)) == (True, 0, written)
        bench.server.fault = lambda method, path: None
        await bench.settle()
        assert bench.condition("Reconciling") is None
        ready = bench.condition("Ready")
        assert ready is not None
        assert ready["reason"] == "Serving"

    run(case)


@pytest.mark.parametrize("code", [409, 429, 500, 503])
def test_a_read_that_fails_for_good_is_told(code: int) -> None:
    """What can't be seen isn't called ready."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        bench.server.fault = on("GET", "/pods", lambda: refusal(code, "etcd is away"))
        await tried(bench, TRIES)
        condition = bench.condition("Ready")
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("False", "ApiServerFailing")
        assert "etcd is away" in condition["message"]
        bench.server.fault = lambda method, path: None
        await bench.settle()
        condition = bench.condition("Ready")
        assert condition is not None
        assert condition["reason"] == "Serving"

    run(case)


def test_a_creation_that_is_a_conflict_for_good_is_told() -> None:
    """409 says that something has the name, and nothing has: an admission webhook may do that."""

    async def case(bench: Bench) -> None:
        bench.server.fault = on("PATCH", "/services/", lambda: refusal(409, "the webhook says no"))
        await tried(bench, TRIES)
        condition = bench.condition("Reconciling")
        assert condition is not None
        assert (condition["reason"], "the webhook says no" in condition["message"]) == ("ApiServerFailing", True)

    run(case)


def test_a_status_that_can_not_be_written_either_is_tried_once_a_look() -> None:
    """The error goes to the loop, which waits longer each time and says it."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        bench.ask(EDITED)
        asked: list[str] = []

        def fault(method: str, path: str) -> web.Response | None:
            if method != "PATCH" or not ("/deployments/" in path or path.endswith("/status")):
                return None
            asked.append(path.rpartition("/")[2])
            return refusal(500, "no")

        bench.server.fault = fault
        outcomes = await tried(bench, TRIES + 1)
        assert all(isinstance(outcome, ApiError) for outcome in outcomes)
        assert asked.count("status") == len(outcomes)

    run(case)


def test_an_edit_is_observed_though_the_api_server_fails() -> None:
    """At the first try already; and it isn't ready by what was seen of the template before."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        bench.ask(EDITED)
        bench.server.fault = on("PATCH", "/deployments/", lambda: refusal(500, "no"))
        await tried(bench, 1)
        ready = bench.condition("Ready")
        assert ready is not None
        generation = bench.server.one("DynamoPipeline", "llama")["metadata"]["generation"]
        assert (ready["observedGeneration"], ready["status"]) == (generation, "False")
        assert bench.status["observedGeneration"] == generation

    run(case)


def test_an_edited_frontend_is_not_ready_by_its_counts_of_before() -> None:
    """The reconcile that writes a new template has seen the old one's pods; only the Deployment's own answer counts."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        bench.ask(EDITED)
        await bench.reconcile()
        ready = bench.condition("Ready")
        assert ready is not None
        assert (ready["observedGeneration"], ready["status"], ready["reason"]) == (2, "False", "RollingOut")
        await bench.settle()
        ready = bench.condition("Ready")
        assert ready is not None
        assert ready["status"] == "True"

    run(case)


@pytest.mark.parametrize("code", [400, 422, 500])
def test_a_secrets_words_are_never_repeated(code: int) -> None:
    """The server may quote what was sent."""
    said = about(ApiError(code, 'Secret "s" is invalid: data: Invalid value: "hunter2"'), "Secret", "s")
    assert str(said) == "Secret s can't be written"
    failure = failing(said, TRIES)
    assert failure is not None
    assert failure.trouble.message == f"Secret s can't be written (HTTP {code})"
    assert "hunter2" in str(about(ApiError(code, "hunter2"), "Service", "s"))
    assert "exceeded quota" in str(about(ApiError(403, "exceeded quota"), "Secret", "s"))


def test_a_namespace_that_is_being_deleted_is_no_trouble() -> None:
    """However long it takes: what it holds goes with it."""
    assert failing(ApiError(403, "namespace x is being terminated"), 100) is None
    assert failing(ApiError(500, "no"), TRIES - 2) is None
    failure = failing(ApiError(0, "the API server did not answer", retry_after=7), TRIES - 1)
    assert failure is not None
    assert (failure.trouble.reason, failure.seconds) == (Reason.API_SERVER_FAILING, 7)


class _Failing:
    """Reconciles that fail in turn with these."""

    def __init__(self, *messages: str) -> None:
        self.messages, self.seen = list(messages), list[int]()

    async def reconcile(self, key: Key, attempt: Attempt = FIRST) -> Outcome:
        self.seen.append(attempt.failures)
        if not self.messages:
            return Outcome()
        raise ApiError(403, self.messages.pop(0))


def test_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each try in a namespace that is being deleted may name another object; what is another error is said."""
    ends = [f'"{name}" is forbidden: namespace x is being terminated' for name in "abc"]
    reconciler = _Failing(*ends, "other", "other")

    async def main() -> None:
        controller = Controller(Metrics(), queue=WorkQueue(Backoff(first_retry=0.001, last_retry=0.001, spacing=0.0)))
        # What the server asks for would make this a test of minutes.
        controller.queue.failed = _soon(controller.queue)  # type: ignore[method-assign]
        task = asyncio.create_task(controller.run(reconciler))
        controller.mark(Key("x", "llama"))
        await until(lambda: len(reconciler.seen) > 5)
        task.cancel()

    with caplog.at_level(logging.WARNING, "dynamo.operator.controller"):
        asyncio.run(main())
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "x/llama: the namespace x is being deleted; trying again",
        "x/llama: other; trying again",
    ]
    assert reconciler.seen == [0, 1, 2, 3, 4, 5]


def _soon(queue: WorkQueue) -> Any:
    failed = queue.failed
    return lambda key, now, jitter, at_least=None: failed(key, now, jitter)
