"""Sessions that stay with a worker: the bindings, and whole frontends."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.frontend.routing.session_affinity import Key, Sessions, SessionSettings

A, B = ("m", "a"), ("m", "b")
TEXT = "/v1/completions"
HELLO = {"model": "m", "prompt": "hello", "max_tokens": 2}
AFFINITY = {"router_session_affinity_ttl_secs": 60}
MODES: list[dict[str, Any]] = [{}, {"router_mode": "least-loaded"}, {"router_mode": "kv", "use_kv_events": False}]
modes = pytest.mark.parametrize("mode", MODES, ids=["round-robin", "least-loaded", "kv"])


def test_a_binding_lasts_from_its_first_request_to_the_ttl_after_its_last() -> None:
    """However long a request takes."""
    sessions = Sessions(SessionSettings(10, limit=100))
    assert sessions.find(A, 0.0) is None
    sessions.sent(A, 7, 0.0)
    assert sessions.find(A, 1000.0) == 7
    sessions.ended(A, 1000.0)
    assert [sessions.find(A, at) for at in (1009.0, 1010.0)] == [7, None]
    assert sessions.find(("other", "a"), 1001.0) is None


def test_hard_goes_back_and_soft_moves() -> None:
    """Where the bound worker was only passed over; where it is gone both move."""
    for mode, expected in (("hard", 7), ("soft", 8)):
        sessions = Sessions(SessionSettings(10, mode, 100))
        sessions.sent(A, 7, 0.0)
        sessions.sent(A, 8, 1.0, stays=True)
        assert sessions.find(A, 2.0) == expected
        sessions.sent(A, 9, 3.0)
        assert sessions.find(A, 4.0) == 9


def test_a_closed_session_is_forgotten_at_once() -> None:
    """Its last request says so."""
    sessions = Sessions(SessionSettings(10, limit=100))
    sessions.sent(A, 7, 0.0)
    sessions.ended(A, 1.0, closes=True)
    assert (sessions.find(A, 1.0), len(sessions)) == (None, 0)


def test_old_bindings_go_as_new_ones_come() -> None:
    """Without a timer; a request that runs for long doesn't keep those behind it."""
    sessions = Sessions(SessionSettings(10, limit=1000))
    sessions.sent(A, 7, 0.0)
    for number in range(100):
        sessions.sent(("m", str(number)), 1, 0.0)
        sessions.ended(("m", str(number)), 0.0)
    for number in range(200, 320):
        sessions.sent(("m", str(number)), 1, 20.0)
        sessions.ended(("m", str(number)), 20.0)
    assert len(sessions) == 121
    assert sessions.find(A, 20.0) == 7


@given(
    st.lists(st.tuples(st.sampled_from(["sent", "ended", "close"]), st.integers(0, 9), st.integers(1, 3)), max_size=80)
)
def test_never_more_than_the_limit_and_never_a_wrong_worker(steps: list[tuple[str, int, int]]) -> None:
    """What is found is where the session's last request went."""
    sessions, last, now = Sessions(SessionSettings(5, "soft", 4)), dict[Key, int](), 0.0
    for what, session, instance in steps:
        key, now = ("m", str(session)), now + 1.0
        if what == "sent":
            sessions.sent(key, instance, now)
            last[key] = instance
            assert sessions.find(key, now) == instance
        else:
            sessions.ended(key, now, closes=what == "close")
        assert len(sessions) <= 4
        assert all(sessions.find(key, now) in (None, where) for key, where in last.items())


def ask(site: Any, engines: list[Any], headers: dict[str, str], **body: Any) -> int:
    """Which engine a request went to."""
    before = [len(engine.seen) for engine in engines]
    answer = site.post(TEXT, {**HELLO, **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    (index,) = [i for i, engine in enumerate(engines) if len(engine.seen) > before[i]]
    return index


@modes
def test_a_session_stays_with_its_worker(make_site: Any, engines: Any, mode: dict[str, Any]) -> None:
    """Whatever it asks, under each of NVIDIA Dynamo's headers; others are spread as always."""
    site = make_site(**mode, **AFFINITY)
    three = [engines() for _ in range(3)]
    for engine in three:
        site.worker(engine)
    for name in ("x-dynamo-session-id", "x-claude-code-session-id", "session-id", "x-session-id"):
        results = {ask(site, three, {name: f"s {name}"}, prompt=f"{number} words") for number in range(4)}
        assert len(results) == 1, name
    control = {"session_control": {"session_id": "s"}}
    assert len({ask(site, three, {}, prompt=f"{number} words", nvext=control) for number in range(4)}) == 1
    assert len({ask(site, three, {"x-dynamo-session-id": f"s{number}"}) for number in range(12)}) > 1


def test_without_the_flag_a_session_is_only_a_name(make_site: Any, engines: Any) -> None:
    """As with NVIDIA Dynamo."""
    site = make_site()
    two = [engines(), engines()]
    for engine in two:
        site.worker(engine)
    assert {ask(site, two, {"x-dynamo-session-id": "s"}) for _ in range(4)} == {0, 1}


@modes
def test_a_session_whose_worker_left_has_another(make_site: Any, engines: Any, mode: dict[str, Any]) -> None:
    """And stays there."""
    site = make_site(**mode, **AFFINITY)
    two = [engines(), engines()]
    runtimes = [site.worker(engine) for engine in two]
    first = ask(site, two, {"x-dynamo-session-id": "s"})
    site.stop_worker(runtimes[first])
    assert ask(site, two, {"x-dynamo-session-id": "s"}) != first
    three = [*two, engines()]
    site.worker(three[2])
    assert {ask(site, three, {"x-dynamo-session-id": "s"}) for _ in range(4)} == {1 - first}


@pytest.mark.parametrize(("mode", "returns"), [("hard", True), ("soft", False)])
def test_a_session_yields_while_its_worker_is_busy(
    make_site: Any, engines: Any, within: Any, mode: str, returns: bool
) -> None:
    """Then it goes elsewhere, and back again or not, as the mode says."""
    site = make_site(**AFFINITY, router_session_affinity_mode=mode, active_prefill_tokens_threshold=50)
    two = [engines(), engines()]
    runtimes = [site.worker(engine) for engine in two]

    async def hold(engine: Any) -> None:
        engine.hold = asyncio.Event()

    session = {"x-dynamo-session-id": "s"}
    first = ask(site, two, session)
    site.run(hold(two[first]))
    pinned = {**HELLO, "prompt": "x" * 100, "stream": True}
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(site.post, TEXT, pinned, headers=session)
        within("its worker is busy", lambda: two[first].running == 1)
        assert ask(site, two, session) == 1 - first
        site.call(two[first].hold.set)
        assert long.result(20).status_code == 200
    assert (ask(site, two, session) == first) is returns
    assert len(runtimes) == 2


def test_the_last_request_ends_a_session(make_site: Any, engines: Any) -> None:
    """By header or by `session_control`: the next one of that name goes wherever its turn is."""
    site = make_site(**AFFINITY)
    two = [engines(), engines()]
    for engine in two:
        site.worker(engine)
    closing: list[tuple[dict[str, str], dict[str, Any]]] = [
        ({"x-dynamo-session-id": "s", "x-dynamo-session-final": "true"}, {}),
        ({}, {"nvext": {"session_control": {"session_id": "s", "action": "close"}}}),
    ]
    for headers, body in closing:
        assert {ask(site, two, headers, **body) for _ in range(4)} == {0, 1}


@pytest.mark.parametrize(
    ("headers", "nvext", "param"),
    [
        ({"x-dynamo-session-id": "x" * 257}, None, "x-dynamo-session-id"),
        ({"x-session-id": "a\tb"}, None, "x-session-id"),
        ({}, {"session_control": {"session_id": ""}}, "nvext.session_control.session_id"),
        ({}, {"session_control": {"session_id": "s", "action": "end"}}, "nvext.session_control.action"),
        ({}, {"session_control": "s"}, "nvext.session_control"),
    ],
)
def test_bad_sessions_name_the_field(
    make_site: Any, engines: Any, headers: dict[str, str], nvext: Any, param: str
) -> None:
    """400."""
    site = make_site(**AFFINITY)
    site.worker(engines())
    answer = site.post(TEXT, {**HELLO, "nvext": nvext}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
