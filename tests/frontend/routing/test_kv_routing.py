"""KV-aware routing in a whole frontend: prompts go where their beginning was sent before, and nothing stays counted."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from dynamo.frontend.routing import model_set
from dynamo.frontend.routing.candidates import Candidate, LoadTicket
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.frontend.routing.kv_routing import KvRouting
from dynamo.llm import KvEventPublisher
from dynamo.llm.kv.active_requests import IDLE
from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv.index import Rank
from dynamo.llm.protocols import PrefillResult, PreprocessedRequest
from dynamo.runtime.names import EndpointPath, InstanceKey

KV = {"router_mode": "kv", "use_kv_events": False}
SYSTEM = "You answer in few words, and only with what you know for sure. " * 4


def ask(site: Any, text: str, **options: Any) -> Any:
    messages = [{"role": "system", "content": SYSTEM + text[:1] * 64}, {"role": "user", "content": text}]
    return site.client().chat.completions.create(model="m", messages=messages, max_tokens=3, **options)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[KvRouting]:
    """Every routing that a frontend makes from now on."""
    routings: list[KvRouting] = []

    class Recorded(KvRouting):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            routings.append(self)

    monkeypatch.setattr(model_set, "KvRouting", Recorded)
    return routings


def test_turns_of_a_chat_stay_with_their_worker(make_site: Any, engines: Any) -> None:
    """Four chats, three turns each, on three workers: each chat has one worker, and all workers have some chat."""
    site = make_site(**KV)
    workers = [engines() for _ in range(3)]
    for engine in workers:
        site.worker(engine, kv_cache_block_size=8)
    where: dict[str, Counter[int]] = {}
    for turn in range(3):
        for chat in "abcd":
            before = [len(engine.seen) for engine in workers]
            ask(site, chat + " and then?" * turn, stream=False)
            (now,) = [i for i, engine in enumerate(workers) if len(engine.seen) > before[i]]
            where.setdefault(chat, Counter())[now] += 1
    assert all(max(found.values()) == 3 for found in where.values())


def test_a_worker_that_leaves_is_not_preferred_any_more(make_site: Any, engines: Any) -> None:
    """The chat goes on elsewhere, also where its worker had all of it."""
    site = make_site(**KV)
    first, second = engines(), engines()
    runtime = site.worker(first)
    ask(site, "a")
    site.worker(second)
    site.stop_worker(runtime)
    assert ask(site, "a").choices[0].finish_reason == "length"
    assert len(second.seen) == 1


def test_however_a_request_ends_it_is_not_counted_any_more(
    make_site: Any, engines: Any, within: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, streamed, with several choices, cancelled by its client, or without any worker that takes it."""
    routings = recorded(monkeypatch)
    site = make_site(**KV)
    runtime = site.worker(engines(delay=0.01))
    ask(site, "a", stream=False, n=2)
    assert [c.choices[0].finish_reason for c in ask(site, "b", stream=True) if c.choices][-1] == "length"
    with site.client().completions.create(model="m", prompt="x" * 900, stream=True, max_tokens=100) as stream:
        next(iter(stream))
        assert len(routings[0].router.activity) == 1
    within("nothing runs", lambda: len(routings[0].router.activity) == 0)
    site.stop_worker(runtime)
    assert site.post("/v1/completions", {"model": "m", "prompt": "y", "max_tokens": 1}).status_code == 503
    assert (len(routings), list(routings[0].router.index.ranks)) == (1, [])


def test_log_probabilities_do_not_keep_the_prefill_counted(
    make_site: Any, engines: Any, within: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token ends a prefill on every way that a token can take."""
    routings = recorded(monkeypatch)
    site = make_site(**KV)
    runtime = site.worker(engines(delay=0.05))
    options = {"model": "m", "prompt": "x" * 200, "max_tokens": 100, "stream": True, "logprobs": 1}
    with site.client().completions.create(**options) as stream:
        next(iter(stream))
        load = routings[0].router.activity.load(Rank(runtime.id))
        assert (load.requests, load.prefill_tokens) == (1, 0)
    within("nothing runs", lambda: len(routings[0].router.activity) == 0)


@pytest.mark.parametrize("prompt", [[-1], [2**32], [2**70]])
def test_what_is_no_token_is_refused_and_nothing_stays(make_site: Any, engines: Any, prompt: list[int]) -> None:
    """A client's own token ids: a clear 400, and the next request is answered."""
    site = make_site(**KV)
    site.worker(engines())
    answer = site.post("/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 1})
    assert answer.status_code == 400, answer.text
    assert ask(site, "a").choices[0].finish_reason == "length"


def request_of(tokens: list[int]) -> PreprocessedRequest:
    return PreprocessedRequest(model="m", token_ids=tokens)


def test_a_ticket_counts_until_it_is_closed() -> None:
    """Load is there from the choice to the end; the prefill only until the first token."""
    routing = KvRouting(KvOptions(), 4, Random(1), lambda: 0.0)
    ticket = routing.ticket(request_of(list(range(10))))
    assert ticket.place([7]) == 0
    activity = routing.router.activity
    assert activity.load(Rank(7)) == (10, 2, 1)
    ticket.prefilled()
    assert activity.load(Rank(7)) == (0, 2, 1)
    ticket.close()
    ticket.close()
    assert activity.load(Rank(7)) == IDLE


def test_what_was_sent_is_forgotten_after_a_while() -> None:
    """Predictions last as long as they are told to; a prompt that comes again makes them younger."""
    routing = KvRouting(KvOptions(predict_seconds=100.0), 4, Random(1), lambda: 0.0)

    def overlap(at: float) -> int:
        found = routing.router.place("x", routing.router.prompt(range(8)), [Rank(7)], at)
        routing.router.ended("x")
        return found.overlap_blocks

    assert [overlap(at) for at in (0.0, 90.0, 180.0, 281.0)] == [0, 2, 2, 0]
    routing.left(InstanceKey(EndpointPath("a", "b", "c"), 7))
    assert overlap(282.0) == 0


def test_weight_0_takes_the_credit_for_caches_too() -> None:
    """As the original reads its older flag: load alone decides then."""
    assert KvOptions(overlap_score_weight=0.0).weights() == Weights(overlap_credit=0.0, prefill_load_scale=0.0)
    assert KvOptions(overlap_score_weight=2.0, overlap_score_credit=1.0).weights() == Weights(prefill_load_scale=2.0)


def test_all_weights_of_the_flags_reach_the_cost(make_site: Any, engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flag, one term."""
    made: list[KvOptions] = []

    class Recorded(KvRouting):
        def __init__(self, options: KvOptions, *arguments: Any) -> None:
            super().__init__(options, *arguments)
            made.append(options)

    monkeypatch.setattr(model_set, "KvRouting", Recorded)
    site = make_site(
        **KV, router_prefill_load_scale=2.0, router_kv_overlap_score_credit=0.5,
        router_kv_overlap_score_credit_decay=0.25, router_decode_active_request_weight=3.0,
        router_temperature=0.1, router_ttl_secs=7.0,
    )  # fmt: skip
    site.worker(engines())
    (options,) = made
    assert options.weights() == Weights(0.5, 0.25, 2.0, 3.0)
    assert (options.temperature, options.predict_seconds, options.track_output_blocks) == (0.1, 7.0, False)


def test_blocks_of_answers_count_where_that_is_asked_for() -> None:
    """As far as they are filled beyond the prompt's own blocks; looked at now and then, gone with the request."""
    now, produced = 0.0, 0
    routing = KvRouting(KvOptions(track_output_blocks=True), 4, Random(1), lambda: now)
    ticket = routing.ticket(request_of(list(range(10))))
    ticket.place([7])
    ticket.watch(lambda: produced)
    seen = []
    for now, produced in ((0.05, 100), (0.2, 1), (0.4, 2), (0.6, 5), (0.8, 6), (1.0, 14)):  # noqa: B007
        assert routing.outputs is not None
        routing.outputs.look()
        seen.append(routing.router.activity.load(Rank(7)).blocks)
    assert seen == [2, 2, 3, 3, 4, 6]
    ticket.close()
    assert routing.router.activity.load(Rank(7)) == IDLE


def test_a_long_answer_makes_its_worker_busy(make_site: Any, engines: Any, within: Any) -> None:
    """A short prompt whose answer fills more than a tenth of the cache; without the flag nobody would know."""
    for track, busy in ((True, 503), (False, 200)):
        site = make_site(**KV, router_track_output_blocks=track, active_decode_blocks_threshold=0.1)
        engine = engines(delay=0.02)  # so that it is far from its end, however slow this client is
        site.worker(engine, figures={"total_kv_blocks": 100}, kv_cache_block_size=4)
        options: dict[str, Any] = {"prompt": "abc", "max_tokens": 900, "stream": True}
        with site.client().completions.create(model="m", **options) as stream:
            for number, _ in enumerate(stream):
                if number == 80:
                    break
            answer = site.post("/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 1})
            assert answer.status_code == busy
        within("it is over", lambda: engine.running == 0)  # noqa: B023 - asked at once
        assert site.post("/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 1}).status_code == 200


def test_a_worker_that_publishes_late_is_followed(make_site: Any, engines: Any, within: Any) -> None:
    """A program makes its publisher when it is served already: from then on it isn't predicted."""
    site = make_site(router_mode="kv")
    runtime = site.worker(engines())
    unfollowed = "router_instances_without_kv_events"
    within("it is predicted", lambda: site.metric(unfollowed, reason="no_events") == 1)
    site.call(lambda: KvEventPublisher(runtime.endpoint("test.backend.generate"), runtime.id, 16))
    within("it is followed", lambda: site.metric("model_kv_snapshots_total") == 1)
    assert site.metric(unfollowed) == 0


def test_a_prompt_that_is_computed_elsewhere_is_only_decoded_there() -> None:
    """Nothing is to be prefilled, what is cached saves nothing, and its blocks count: it goes where least runs."""
    routing = KvRouting(KvOptions(), 4, Random(1), lambda: 0.0)
    first = routing.ticket(PreprocessedRequest(model="m", token_ids=[1] * 40))
    assert first.place([1, 2], [Rank(1)]) == 0
    first.prefilled()
    whole = PreprocessedRequest(model="m", token_ids=[1] * 40 + [2] * 40)
    handed = PreprocessedRequest(
        model="m", token_ids=whole.token_ids, prefill_result=PrefillResult(disaggregated_params={})
    )
    assert routing.ticket(whole).look([1, 2]) == 0  # ten of its blocks are there
    running = PreprocessedRequest(model="m", token_ids=[7] * 40)
    assert routing.ticket(running).place([1, 2], [Rank(1)]) == 0
    assert routing.ticket(handed).look([1, 2]) == 1
    ticket = routing.ticket(handed)
    assert ticket.place([1, 2]) == 1
    assert ticket.decision is not None
    assert ticket.decision.to_prefill == 0
    assert routing.router.activity.load(Rank(2)) == (0, 20, 1)
    assert ticket.waits


def test_outside_kv_mode_such_a_prompt_counts_its_blocks() -> None:
    worker = Candidate(id=1)
    counted = LoadTicket(40, 16, computed_elsewhere=True)
    counted.placed(worker)
    assert (worker.prefill_tokens, worker.blocks) == (0, 3)
    counted.close()
    assert (worker.prefill_tokens, worker.blocks) == (0, 0)
