"""Each time limit: what it ends, what is said of it, and that another worker takes over where one may."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dynamo.frontend.errors import FirstTokenTimeout, StreamTimeout
from dynamo.frontend.generation.token_timeouts import Progress, TokenWatch, period
from dynamo.frontend.limits.settings import TokenLimits
from dynamo.runtime.errors import DynamoException

TEXT = "/v1/completions"
ASKED = {"model": "m", "prompt": "hello", "max_tokens": 5}
STREAM = {**ASKED, "stream": True}


class Attempt:
    """One that has as many tokens as it is told."""

    def __init__(self, tokens: int = 0) -> None:
        self.tokens = tokens
        self.error: DynamoException | None = None

    def stalled(self, error: DynamoException) -> None:
        self.error = error


@pytest.mark.parametrize(
    ("limits", "first", "between", "apart"),
    [
        (TokenLimits(), float("inf"), float("inf"), None),
        (TokenLimits(first=4.0), 4.0, float("inf"), 0.5),
        (TokenLimits(between=2.0), 2.0, 2.0, 0.25),
        (TokenLimits(first=60.0, between=40.0), 60.0, 40.0, 1.0),
    ],
)
def test_limits(limits: TokenLimits, first: float, between: float, apart: float | None) -> None:
    """The first token's limit is the other one's where it isn't set; a sweep comes an eighth of the shortest apart."""
    assert (limits.of(begun=False), limits.of(begun=True), period(limits)) == (first, between, apart)


def test_progress_is_what_counts() -> None:
    """An attempt is late when it has as many tokens as a limit ago, however long it runs."""
    progress, speaks = Progress(TokenLimits(first=5.0, between=2.0)), Attempt()
    progress.enter(speaks, 0.0)
    for now in range(1, 50):
        speaks.tokens += 1
        assert progress.late(float(now)) == []
    assert progress.late(50.9) == []
    ((late, error),) = progress.late(51.0)
    assert (late, type(error)) == (speaks, StreamTimeout)


def test_first_and_later_tokens() -> None:
    """Tokens of attempts before this one are no first token of this one."""
    progress = Progress(TokenLimits(first=5.0, between=2.0))
    waits, migrated, speaks = Attempt(), Attempt(7), Attempt()
    for one in (waits, migrated, speaks):
        progress.enter(one, 0.0)
    speaks.tokens = 1
    assert progress.late(1.0) == []
    found = dict(progress.late(3.0))
    assert list(found) == [speaks]
    assert isinstance(found[speaks], StreamTimeout)
    assert {type(error) for error in dict(progress.late(5.0)).values()} == {FirstTokenTimeout, StreamTimeout}
    progress.postpone(2.0)
    assert [one for one, _ in progress.late(5.0)] == [speaks]
    for one in (waits, migrated, speaks):
        progress.leave(one)
        progress.leave(one)
    assert len(progress) == 0


@pytest.fixture
def zombies() -> Any:
    """Engines that say `tokens` tokens and hang, though their process answers pings."""

    def make(engines: Any, tokens: int) -> Any:
        class Zombie(engines):  # type: ignore[misc]
            async def speak(self, incoming: Any, payload: dict[str, Any]) -> None:
                for token in payload["token_ids"][:tokens]:
                    incoming.send(self.say(payload, token, None))
                await asyncio.Event().wait()

        return Zombie()

    return make


def events(answer: Any) -> list[dict[str, Any]]:
    found = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(one) for one in found]


def hits(site: Any, limit: str) -> float:
    found: float = site.metric("timeouts_total", type=limit)
    return found


@pytest.mark.parametrize(
    "settings", [{"first_token_timeout_secs": 0.4}, {"backend_stream_timeout_secs": 0.4}], ids=["first", "stream"]
)
def test_no_first_token_is_504(make_site: Any, engines: Any, zombies: Any, within: Any, settings: Any) -> None:
    """It says which limit it was; the worker is told to stop."""
    site, zombie = make_site(**settings), zombies(engines, 0)
    site.worker(zombie)
    for body in (ASKED, STREAM):
        answer = site.post(TEXT, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "first_token_timeout")
        assert "0.4 s: the time limit for a first token" in answer.json()["error"]["message"]
    within("the worker has stopped", lambda: zombie.running == 0)
    assert (zombie.cancelled, len(zombie.seen)) == (2, 2)
    assert hits(site, "first_token") == 2
    assert site.metric("requests_total", error_type="response_timeout") == 2


def test_a_worker_that_hangs_is_passed_over(make_site: Any, engines: Any, zombies: Any) -> None:
    """Every request is answered by the other one, whichever it came to first."""
    site, zombie, good = make_site(first_token_timeout_secs=0.3), zombies(engines, 0), engines()
    site.worker(zombie)
    site.worker(good)
    assert [site.post(TEXT, ASKED).status_code for _ in range(4)] == [200] * 4
    assert len(zombie.seen) == hits(site, "first_token") == 2
    assert len(good.seen) == 4


def test_silence_in_mid_stream_is_one_error(make_site: Any, engines: Any, zombies: Any, within: Any) -> None:
    """What came is kept, then one event says why there is no more; a whole answer is 504."""
    site, zombie = make_site(first_token_timeout_secs=9, backend_stream_timeout_secs=0.3), zombies(engines, 2)
    site.worker(zombie)
    *texts, last = events(site.post(TEXT, STREAM))
    assert "".join(text["choices"][0]["text"] for text in texts) == "he"
    assert (last["error"]["code"], "0.3 s" in last["error"]["message"]) == ("stream_timeout", True)
    whole = site.post(TEXT, ASKED)
    assert (whole.status_code, whole.json()["error"]["code"]) == (504, "stream_timeout")
    within("the worker has stopped", lambda: zombie.running == 0)
    assert hits(site, "inter_token") == 2


def test_silence_in_mid_stream_migrates(make_site: Any, engines: Any, zombies: Any) -> None:
    """Where the limit of migrations allows: the other worker is asked for the rest."""
    site = make_site(backend_stream_timeout_secs=0.3, migration_limit=1)
    zombie, good = zombies(engines, 2), engines()
    site.worker(zombie)
    site.worker(good)
    answers = [site.post(TEXT, STREAM) for _ in range(2)]
    assert all(answer.text.endswith("[DONE]\n\n") for answer in answers)
    assert len(zombie.seen) == hits(site, "inter_token") == 1
    rest = next(one for one in good.seen if len(one["token_ids"]) == 7)
    assert rest["stop_conditions"]["max_tokens"] == 3


def test_slow_is_not_silent(make_site: Any, engines: Any) -> None:
    """A stream may take many limits, as long as tokens come."""
    site = make_site(backend_stream_timeout_secs=2)
    site.worker(engines(delay=0.1))
    answer = site.post(TEXT, {**STREAM, "prompt": "x" * 30, "max_tokens": 30})
    assert answer.text.endswith("[DONE]\n\n")
    assert hits(site, "inter_token") == 0


def test_nobody_is_watched_for_longer_than_it_runs(make_site: Any, engines: Any, within: Any) -> None:
    """However requests end, the watch is empty, and its timer stops."""
    made: list[TokenWatch] = []
    own = TokenWatch.__init__

    def init(self: TokenWatch, *arguments: Any) -> None:
        own(self, *arguments)
        made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenWatch, "__init__", init)
        site, engine = make_site(backend_stream_timeout_secs=0.2), engines(delay=0.01)
        site.worker(engine)
        assert site.post(TEXT, {**ASKED, "n": 3}).status_code == 200
        with site.client().completions.create(model="m", prompt="x" * 500, max_tokens=500, stream=True) as stream:
            next(iter(stream))
        (watch,) = made
        within("nobody is watched", lambda: len(watch) == 0)
        within("it sleeps", lambda: watch._timer is None)


def test_a_default_deadline_and_the_request_s_own(make_site: Any, engines: Any, zombies: Any) -> None:
    """504 that says whose limit it was; the header wins, in both directions."""
    site = make_site(request_timeout_secs=0.3)
    site.worker(zombies(engines, 0))
    default = site.post(TEXT, ASKED)
    own = site.post(TEXT, ASKED, headers={"x-request-timeout-ms": "150"})
    for answer, said in ((default, "0.3 s, by the default of this frontend"), (own, "0.15 s, by x-request-timeout-ms")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")
        assert said in answer.json()["error"]["message"]
    longer = site.post(TEXT, ASKED, headers={"x-request-timeout-ms": "700"})
    assert "0.7 s, by x-request-timeout-ms" in longer.json()["error"]["message"]
    assert hits(site, "request") == 3


def test_a_deadline_while_the_body_arrives(make_site: Any) -> None:
    """However slowly it trickles: 504 at the time that the request set."""
    site = make_site()
    with site.socket() as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-timeout-ms: 300\r\n")
        slow.sendall(b"content-length: 1000\r\n\r\n{")
        answer = slow.recv(65536).decode()
    assert answer.startswith("HTTP/1.1 504 ")
    assert "before its body was here (0.3 s, by x-request-timeout-ms)" in answer
    assert hits(site, "request") == 1


def test_the_grace_of_a_frontend_that_leaves(make_site: Any, engines: Any, zombies: Any, within: Any) -> None:
    """Who isn't done at its end is told so: 503 before the first token, an event after it."""
    site, mute, speaks = make_site(graceful_shutdown_timeout_secs=0.3), zombies(engines, 0), zombies(engines, 1)
    site.worker(mute)
    site.worker(speaks)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(site.post, TEXT, STREAM) for _ in range(2)]
        within("both run", lambda: (mute.running, speaks.running) == (1, 1))
        site.call(site.leaving.signal)
        answers = sorted((one.result(20) for one in asked), key=lambda one: one.status_code)
    assert [answer.status_code for answer in answers] == [200, 503]
    assert events(answers[0])[-1]["error"]["code"] == answers[1].json()["error"]["code"] == "shutdown"
    assert "0.3 s" in answers[1].json()["error"]["message"]
    assert answers[1].headers["retry-after"]


def test_headers_and_bodies_are_counted(make_site: Any) -> None:
    """By their names."""
    site = make_site(header_timeout_secs=0.2, body_timeout_secs=0.2)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
    for sent in (head, head + b"content-length: 10\r\n\r\n{"):
        with site.socket() as slow:
            slow.sendall(sent)
            assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
    assert (hits(site, "headers"), hits(site, "body")) == (1, 1)
