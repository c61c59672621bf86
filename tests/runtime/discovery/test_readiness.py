"""When a worker is Ready, as a table; time is an argument."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.runtime.discovery.membership import ClientRecord
from dynamo.runtime.discovery.readiness import Clients, Written
from dynamo.runtime.discovery.store import Change, Entry
from dynamo.runtime.names import client_key, client_prefix

ME = 77
WRITTEN = Written("e", 100, at=0.0)


def client(id: int = 1, namespace: str | None = "ns", **more: object) -> Entry:  # noqa: A002
    fields = {"kind": "frontend", "epoch": "e", "revision": 100, **more}
    return Entry(client_key(namespace, id), msgspec.json.encode(ClientRecord(**fields)), 1)  # type: ignore[arg-type]


def clients(*entries: Entry, now: float = 0.0) -> Clients:
    known = Clients()
    for namespace in ("ns", None):
        prefix = client_prefix(namespace)
        known.snapshot(prefix, [e for e in entries if e.key.startswith(prefix)], now)
    return known


def test_nobody_to_wait_for() -> None:
    """With no frontend there, a worker is ready at once."""
    assert clients().judge(ME, WRITTEN, 0.0) == (True, [], [])


@pytest.mark.parametrize(
    ("known", "ready", "reason"),
    [
        ([client(revision=100)], True, ""),
        ([client(revision=99)], False, "has not seen"),
        ([client(epoch="older", revision=500)], False, "has not seen"),
        ([client(pending=[ME])], False, "still loading"),
        ([client(pending=[1])], True, ""),
        ([client(failed={ME: "no tokenizer.json"})], False, "no tokenizer.json"),
        ([client(failed={1: "x"})], True, ""),
        ([client(), client(2, revision=99)], False, "frontend 00000000000002"),
        ([client(namespace=None, revision=99)], False, "has not seen"),
        ([client(kind="other", revision=1, pending=[ME])], True, ""),
    ],
)  # fmt: skip
def test_every_live_frontend_counts(known: list[Entry], ready: bool, reason: str) -> None:
    """Ready means covered by every frontend of the namespace or of all, neither pending nor failed there."""
    readiness = clients(*known).judge(ME, WRITTEN, 1.0)
    assert readiness.ready is ready
    assert reason in " ".join(readiness.reasons)
    assert bool(readiness.reasons) is not ready


def test_a_frontend_that_lags_is_left_out_and_named() -> None:
    """More than ten seconds behind: it no longer counts, and is reported."""
    known = clients(client(revision=99))
    assert not known.judge(ME, WRITTEN, 10.0).ready
    late = known.judge(ME, WRITTEN, 10.1)
    assert late.ready
    assert "frontend 00000000000001" in late.lagging[0]


def test_a_late_frontend_has_ten_seconds_of_its_own() -> None:
    """The lag of a frontend that starts later is counted from its start."""
    known = clients(client(revision=99), now=100.0)
    assert not known.judge(ME, WRITTEN, 105.0).ready
    assert known.judge(ME, WRITTEN, 110.1).ready


@pytest.mark.parametrize("why", [{"pending": [ME]}, {"failed": {ME: "broken"}}])
def test_loading_and_failure_are_no_lag(why: dict[str, Any]) -> None:
    """A frontend that still loads, or failed to, keeps the worker out however long it takes."""
    assert not clients(client(**why)).judge(ME, WRITTEN, 10_000.0).ready


def test_changes_are_followed() -> None:
    """Readiness follows the frontends' own keys; one whose key goes away has ten seconds to come back."""
    known = clients(client(pending=[ME]))
    entry = client()
    known.change([Change(entry.key, entry.value, 2)], 1.0)
    assert known.judge(ME, WRITTEN, 1.0).ready
    entry = client(failed={ME: "x"})
    known.change([Change(entry.key, entry.value, 3)], 1.0)
    assert not known.judge(ME, WRITTEN, 1.0).ready
    known.change([Change(entry.key, None, 4)], 2.0)
    assert "x" in known.judge(ME, WRITTEN, 12.0).reasons[0]
    assert known.judge(ME, WRITTEN, 12.1) == (True, [], [])


@pytest.mark.parametrize("before", [{"pending": [ME]}, {"failed": {ME: "x"}}, {"revision": 99}])
def test_a_frontend_that_leaves_is_not_waited_for(before: dict[str, Any]) -> None:
    """It says that it goes, and then its key goes."""
    known = clients(client(**before))
    assert not known.judge(ME, WRITTEN, 1.0).ready
    entry = client(**before, leaving=True)
    known.change([Change(entry.key, entry.value, 3)], 1.0)
    assert known.judge(ME, WRITTEN, 1.0) == (True, [], [])
    known.change([Change(entry.key, None, 4)], 1.0)
    assert known.judge(ME, WRITTEN, 1.0) == (True, [], [])


def test_a_frontend_that_had_come_so_far_may_leave() -> None:
    """What it had acknowledged before it left holds nobody up."""
    known = clients(client())
    known.change([Change(client().key, None, 4)], 2.0)
    assert known.judge(ME, WRITTEN, 2.0).ready


def test_who_has_left_is_forgotten() -> None:
    """Frontends come and go for months."""
    known = clients()
    for number in range(100):
        known.change([Change(client(number).key, client(number).value, number)], float(number))
        known.change([Change(client(number).key, None, number)], float(number))
    assert len(known._seen) <= 11


def test_frontends_of_a_replaced_store_are_remembered_for_a_while() -> None:
    """An emptied store does not make a worker ready before the frontends had ten seconds to come back."""
    known = clients(client(epoch="e"))
    known.snapshot(client_prefix("ns"), [], 50.0)
    again = Written("f", 5, at=51.0)
    assert not known.judge(ME, again, 55.0).ready
    assert known.judge(ME, again, 62.0).ready
    back = client(epoch="f", revision=6)
    known.change([Change(back.key, back.value, 6)], 56.0)
    assert known.judge(ME, again, 56.0) == (True, [], [])


def test_a_listed_absence_is_a_departure() -> None:
    """A frontend that is no longer listed after an outage has as long to come back."""
    known = clients(client(revision=1))
    known.snapshot(client_prefix("ns"), [], 1.0)
    assert not known.judge(ME, WRITTEN, 10.0).ready
    assert known.judge(ME, WRITTEN, 11.1).ready


def test_an_unreadable_client_holds_nobody_up() -> None:
    """A client of a version that can't be read is ignored."""
    assert clients(Entry(client_key("ns", 1), b"?", 1)).judge(ME, WRITTEN, 0.0).ready


@pytest.mark.parametrize(
    ("known", "covered"),
    [
        ([], True),
        ([client(), client(2, kind="other", revision=101)], True),
        ([client(), client(2, kind="other", revision=99)], False),
        ([client(epoch="older", revision=500)], False),
    ],
)
def test_a_write_is_covered_when_every_client_has_applied_it(known: list[Entry], covered: bool) -> None:
    """Who leaves asks for all clients, frontends or not."""
    assert clients(*known).cover("e", 100) is covered
