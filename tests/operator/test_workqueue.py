"""What is due when, how fast we may ask, and what a refusal means: the pure parts of the loop."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.operator.api.conditions import Reason
from dynamo.operator.intervals import Intervals
from dynamo.operator.kube.errors import Gone, Refused, Retry, error_of, verdict
from dynamo.operator.kube.resources import Key
from dynamo.operator.manifests.context import Tracing
from dynamo.operator.namespace_turns import Budget
from dynamo.operator.settings import Settings, SettingsError
from dynamo.operator.workqueue import Attempt, Backoff, WorkQueue

A, B = Key("serving", "a"), Key("serving", "b")


def test_marks_coalesce() -> None:
    """Any number of events while it waits are one reconcile; one that comes meanwhile is one more, a little later."""
    queue = WorkQueue(Backoff(spacing=0.25))
    for _ in range(5):
        queue.mark(A, 1.0)
    assert queue.take(1.0) == A
    assert queue.take(1.0) is None
    queue.mark(A, 1.5)
    assert queue.take(99.0) is None
    queue.succeeded(A, 2.0, 0.5)
    assert queue.take(2.0) is None
    assert queue.take(2.25) == A


def test_pods_that_start_are_not_looked_at_one_by_one() -> None:
    """While a pipeline is on its way its news come together for longer; a new spec doesn't wait for them."""
    queue = WorkQueue(Backoff(spacing=0.25, underway=0.6))
    queue.mark(A, 0.0)
    queue.take(0.0)
    queue.succeeded(A, 1.0, 0.5, underway=True)
    queue.mark(A, 1.1)
    assert queue.next_due() == 1.6
    queue.mark(A, 1.2, urgent=True)
    assert queue.take(1.25) == A
    queue.mark(A, 1.3, urgent=True)
    queue.succeeded(A, 2.0, 0.5, underway=True)
    assert queue.take(2.25) == A
    queue.mark(A, 2.3)
    queue.succeeded(A, 3.0, 0.5, underway=True)
    assert queue.take(3.25) is None
    assert queue.take(3.6) == A
    queue.succeeded(A, 4.0, 0.5)
    queue.mark(A, 4.0)
    assert queue.take(4.25) == A


def test_a_backoff_is_no_waiting() -> None:
    """Whoever asks how long work waits doesn't count the time that it is meant to wait."""
    queue = WorkQueue(Backoff(first_retry=100, last_retry=100))
    queue.mark(A, 0.0)
    assert queue.oldest(3.0) == 3.0
    queue.take(3.0)
    queue.failed(A, 3.0, 1.0)
    queue.mark(A, 4.0)
    assert queue.oldest(50.0) == 0.0
    assert queue.oldest(110.0) == pytest.approx(7.0)


def test_a_thousand_marks_leave_no_trace() -> None:
    """The order of the dues is kept, whatever was due before, and what no longer holds is thrown away."""
    queue = WorkQueue(Backoff(spacing=0.0, resync=600))
    for step in range(1000):
        queue.mark(A, float(step))
        queue.mark(B, float(step))
        assert {queue.take(float(step)), queue.take(float(step))} == {A, B}
        assert queue.take(float(step)) is None
        queue.succeeded(A, float(step), 0.5)
        queue.succeeded(B, float(step), 0.5, 1000.0)
    assert len(queue._heap) < 100
    assert queue.next_due() == 999.0 + 600.0


def test_the_resync_comes_by_itself() -> None:
    """Give or take a tenth."""
    queue = WorkQueue(Backoff(resync=100))
    queue.mark(A, 0.0)
    queue.take(0.0)
    queue.succeeded(A, 0.0, 0.0)
    assert queue.next_due() == pytest.approx(90)
    assert queue.take(90.0) == A


def test_failures_wait_longer_and_noise_does_not_shorten_it() -> None:
    """Pods that restart don't hurry a pipeline that can't succeed; a new spec does."""
    queue = WorkQueue(Backoff(first_retry=1, last_retry=8))
    queue.mark(A, 0.0)
    waits, now = [], 0.0
    for _ in range(6):
        assert queue.take(now) == A
        queue.mark(A, now)
        queue.failed(A, now, 1.0)
        queue.mark(A, now)
        due = queue.next_due()
        assert due is not None
        waits.append(due - now)
        now = due
    assert waits == [1, 2, 4, 8, 8, 8]
    queue.take(now)
    queue.failed(A, now, 1.0)
    queue.mark(A, now, urgent=True)
    assert queue.take(now + queue.backoff.spacing) == A


def test_a_look_knows_how_it_comes_about() -> None:
    """How many before it failed, and whether it comes by itself after a while without news."""
    queue = WorkQueue(Backoff(first_retry=1, last_retry=1, quiet=20))
    queue.mark(A, 0.0)
    assert (queue.take(0.0), queue.attempt(A)) == (A, Attempt())
    queue.failed(A, 0.0, 1.0)
    assert (queue.take(1.0), queue.attempt(A)) == (A, Attempt(failures=1))
    queue.succeeded(A, 1.0, 0.5, 5.0)
    assert (queue.take(6.0), queue.attempt(A)) == (A, Attempt())
    queue.succeeded(A, 6.0, 0.5, 30.0)
    assert (queue.take(36.0), queue.attempt(A)) == (A, Attempt(is_quiet=True))
    queue.succeeded(A, 36.0, 0.5, 30.0)
    queue.mark(A, 60.0)
    assert (queue.take(66.0), queue.attempt(A)) == (A, Attempt())
    assert queue.attempt(B) == Attempt()


def test_the_server_may_ask_for_more() -> None:
    """Retry-After counts as at least that."""
    queue = WorkQueue()
    queue.mark(A, 0.0)
    queue.take(0.0)
    queue.failed(A, 0.0, 0.0, at_least=42)
    assert queue.next_due() == 42


def test_gone_is_forgotten_unless_made_anew() -> None:
    """A pipeline that was marked while its absence was noticed is reconciled once more."""
    queue = WorkQueue()
    queue.mark(A, 0.0)
    queue.take(0.0)
    queue.forget(A, 0.0)
    assert queue.known == frozenset()
    queue.mark(A, 1.0)
    queue.take(1.0)
    queue.mark(A, 1.0)
    queue.forget(A, 1.5)
    assert queue.take(1.5) == A


_STEPS = st.lists(st.tuples(st.sampled_from(["mark", "urgent", "take", "ok", "fail", "gone"]), st.sampled_from([A, B])))


@given(_STEPS)
def test_no_mark_is_ever_lost(steps: list[tuple[str, Key]]) -> None:
    """Whatever happens, one pipeline is never taken twice at once, and a marked one is taken in the end."""
    queue, running, now = WorkQueue(Backoff(last_retry=10, resync=50)), set[Key](), 0.0
    marked: set[Key] = set()
    for what, key in steps:
        now += 0.1
        if what in ("mark", "urgent"):
            queue.mark(key, now, urgent=what == "urgent")
            marked.add(key)
        elif what == "take":
            taken = queue.take(now)
            assert taken not in running
            running |= {taken} if taken else set()
            marked -= {taken} if taken else set()
        elif key in running:
            running.discard(key)
            if what == "ok":
                queue.succeeded(key, now, 0.5)
            elif what == "fail":
                queue.failed(key, now, 0.5)
            else:
                queue.forget(key, now)
    for key in running:
        queue.succeeded(key, now, 0.5)
    later = set()
    while (taken := queue.take(now + 60)) is not None:
        later.add(taken)
    assert marked <= later
    assert len(queue) == 0


@given(st.lists(st.floats(0, 5), max_size=60))
def test_the_budget_is_kept(gaps: list[float]) -> None:
    """In any stretch of time no more than burst plus rate times time goes out, in order."""
    budget, now, sent = Budget(rate=10, burst=5), 0.0, list[float]()
    for gap in gaps:
        now += gap / 20
        sent.append(now + budget.take(now))
    assert sent == sorted(sent)
    for i, start in enumerate(sent):
        for j in range(i, len(sent)):
            assert j - i + 1 <= 5 + 10 * (sent[j] - start) + 1 + 1e-6


ANSWERS = [
    (404, "", Gone),
    (410, "", Gone),
    (409, "conflict", Retry),
    (429, "slow down", Retry),
    (500, "etcd leader changed", Retry),
    (0, "no answer", Retry),
    (403, "namespace x is being terminated", Retry),
]


@pytest.mark.parametrize(("code", "message", "kind"), ANSWERS)
def test_what_passes_is_no_trouble(code: int, message: str, kind: type) -> None:
    """It is tried again, or looked at anew."""
    assert isinstance(verdict(error_of(code, json.dumps({"message": message}), {})), kind)


@pytest.mark.parametrize(
    ("code", "message", "reason", "final"),
    [
        (422, "immutable", Reason.ADMISSION_REJECTED, True),
        (400, "bad", Reason.ADMISSION_REJECTED, True),
        (500, "failed to create typed patch object (x)", Reason.ADMISSION_REJECTED, True),
        (
            500,
            "failed to convert new object (a/b; apps/v1, Kind=X) to proper version: cannot",
            Reason.ADMISSION_REJECTED,
            True,
        ),
        (500, "etcdserver: request is too large", Reason.ADMISSION_REJECTED, True),
        (413, "Request entity too large: limit is 3145728", Reason.ADMISSION_REJECTED, True),
        (403, "pods is forbidden: exceeded quota: q", Reason.QUOTA_EXCEEDED, False),
        (403, "is forbidden", Reason.FORBIDDEN, False),
    ],
)
def test_what_people_must_cure_is_trouble(code: int, message: str, reason: Reason, final: bool) -> None:
    """With the server's sentence."""
    found = verdict(error_of(code, json.dumps({"message": message}), {}))
    assert isinstance(found, Refused)
    assert found.trouble == (reason, message, final)


@given(st.integers(400, 599), st.text(max_size=40), st.text(max_size=8))
def test_any_answer_is_understood(code: int, body: str, after: str) -> None:
    """Proxies answer what they like; a verdict there is always."""
    verdict(error_of(code, body, {"Retry-After": after}))


FILE: dict[str, Any] = {
    "namespaces": [],
    "images": {
        "frontend": "f:1",
        "workers": {"default": "w:1"},
        "pullPolicy": "Always",
        "pullSecrets": [{"name": "p"}],
    },
    "pods": {"fsGroup": None, "networkPolicies": False, "gracefulShutdownTimeoutSeconds": 60},
    "etcd": {"endpoints": ["http://etcd:2379"], "secret": ""},
    "nats": {"url": "nats://nats:4222", "secret": "", "tlsSecret": ""},
    "leaderElection": {"enabled": True, "lease": "release-operator"},
}


def test_the_charts_file_is_read() -> None:
    """Every field that the chart writes."""
    found = Settings.of(json.dumps(FILE), {"POD_NAME": "op-1", "POD_NAMESPACE": "dynamo"})
    assert (found.cluster.pull_secrets, found.cluster.fs_group, found.cluster.network_policies) == (("p",), None, False)
    assert (found.lease, found.identity, found.own_namespace) == ("release-operator", "op-1", "dynamo")
    assert found.environment("x").grace_seconds == 60
    assert found.intervals == Intervals()
    assert str(found.installation) == "dynamo/release-operator"
    alone = Settings.of(json.dumps(FILE | {"leaderElection": {"enabled": False, "lease": "release-operator"}}), {})
    assert str(alone.installation) == "default/release-operator/alone"
    often = Settings.of(json.dumps(FILE | {"intervals": {"sweepSeconds": 2, "resyncSeconds": 5.5}}), {})
    assert often.intervals == Intervals(sweep=2.0, resync=5.5)
    assert found.cluster.tracing is None
    receiver = {"endpoint": "https://otel:4318", "protocol": "http/protobuf", "ratio": 0.5}
    traced = Settings.of(json.dumps(FILE | {"tracing": receiver}), {}).cluster
    assert traced.tracing == Tracing("https://otel:4318", "http/protobuf", 0.5)
    assert "https://otel:4318" in traced.connections


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "images"),
        ("a: [", "YAML"),
        (json.dumps(FILE | {"surprise": 1}), "surprise"),
        (json.dumps(FILE | {"intervals": {"sweepSeconds": 0}}), "intervals.sweepSeconds"),
        (json.dumps(FILE | {"tracing": {"endpoint": "http://x:1", "ratio": 2}}), "tracing.ratio"),
        ("[]", "the file"),
    ],
)
def test_a_wrong_file_names_the_field(text: str, said: str) -> None:
    """One sentence."""
    with pytest.raises(SettingsError, match=said):
        Settings.of(text, {})
