"""What requests say of their routing, and what they are told of it, in whole frontends."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dynamo.frontend.errors import ApiError
from dynamo.frontend.openai.nvext import AgentHints, Nvext, RouterConfigOverride
from dynamo.frontend.routing.hints import NO_HINTS, Hints, read_hints
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.frontend.routing.report import spliced
from dynamo.llm.kv.cost import Weights

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = {"model": "m", "prompt": "hello", "max_tokens": 2}
KV = {"router_mode": "kv", "use_kv_events": False}
MODES: list[dict[str, Any]] = [{}, {"router_mode": "random"}, KV]
modes = pytest.mark.parametrize("mode", MODES, ids=["round-robin", "random", "kv"])
PINS: dict[str, Any] = {
    "backend_instance_id": lambda one: ({}, {"backend_instance_id": one, "dp_rank": 0}),
    "decode_worker_id": lambda one: ({}, {"decode_worker_id": one}),
    "x-dynamo-worker-instance-id": lambda one: ({"x-dynamo-worker-instance-id": str(one)}, {"backend_instance_id": 1}),
    "x-worker-instance-id": lambda one: ({"x-worker-instance-id": str(one), "x-dynamo-dp-rank": "0"}, None),
}


def pair(site: Any, engines: Any, **options: Any) -> tuple[list[Any], list[int]]:
    """Two workers: engines and instance ids."""
    two = [engines(), engines()]
    return two, [site.worker(engine, **options).id for engine in two]


def read(nvext: Nvext | None, **headers: str) -> Hints:
    pairs = [(f"x-dynamo-request-{name.replace('_', '-')}".encode(), value.encode()) for name, value in headers.items()]
    return read_hints({"headers": pairs}, nvext, sessions=False)


def test_priority_by_header() -> None:
    """Headers win over the hints of agents, each for itself; what is no number is 400 and names the header."""
    said = Nvext(agent_hints=AgentHints(priority=3, strict_priority=4))
    found = [read(said), read(said, priority="-7"), read(None, strict_priority="9"), read(None, priority="0")]
    assert [(one.priority, one.strict_priority) for one in found] == [(3, 4), (-7, 4), (0, 9), (0, 0)]
    assert found[-1] is NO_HINTS
    for headers in ({"priority": "high"}, {"priority": "99999999999"}, {"priority": "+1"}, {"strict_priority": "-1"}):
        with pytest.raises(ApiError, match=f"x-dynamo-request-{next(iter(headers)).replace('_', '-')}: must be"):
            read(None, **headers)


@modes
@pytest.mark.parametrize("how", PINS)
def test_a_pinned_request_goes_to_its_worker(make_site: Any, engines: Any, mode: dict[str, Any], how: str) -> None:
    """Whatever the mode would choose; a header wins over a field."""
    site = make_site(**mode)
    two, ids = pair(site, engines)
    for _ in range(3):
        headers, nvext = PINS[how](ids[1])
        assert site.post(TEXT, {**HELLO, "nvext": nvext}, headers=headers).status_code == 200
    assert [len(engine.seen) for engine in two] == [0, 3]


@pytest.mark.parametrize("how", PINS)
def test_a_pinned_worker_that_is_gone_is_said_at_once(make_site: Any, engines: Any, how: str) -> None:
    """503 that names field and instance, though another worker is there; nobody waits for it."""
    site = make_site(worker_wait_timeout_secs=20)
    site.worker(engines())
    headers, nvext = PINS[how](12345)
    before = time.monotonic()
    answer = site.post(TEXT, {**HELLO, "nvext": nvext}, headers=headers)
    assert time.monotonic() - before < 10
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (503, "no_instances", error["param"])
    assert how in error["param"]
    assert "instance 12345 doesn't serve model 'm'" in error["message"]
    assert answer.headers["retry-after"]


def test_a_pinned_request_is_not_given_to_another(make_site: Any, engines: Any) -> None:
    """Not even where its worker refuses; and a busy one says so."""
    from dynamo.runtime.errors import WorkerUnavailable

    def refusing(incoming: Any) -> None:
        incoming.fail(WorkerUnavailable("it leaves"))

    site = make_site(active_prefill_tokens_threshold=0)
    pinned = site.worker(refusing).id
    other = engines()
    site.worker(other)
    answer = site.post(TEXT, {**HELLO, "nvext": {"backend_instance_id": pinned}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert other.seen == []


def test_the_pinned_worker_is_found_in_either_card(site: Any, engines: Any) -> None:
    """Two cards of one name, as in a rollout."""
    old, new = engines(), engines()
    first = site.worker(old, context_length=512).id
    second = site.worker(new, context_length=1024).id
    for one in (first, second) * 4:
        assert site.post(TEXT, {**HELLO, "nvext": {"backend_instance_id": one}}).status_code == 200
    assert (len(old.seen), len(new.seen)) == (4, 4)


@pytest.mark.parametrize(
    ("headers", "nvext", "param"),
    [
        ({}, {"backend_instance_id": "x"}, "nvext.backend_instance_id"),
        ({}, {"backend_instance_id": -1}, "nvext.backend_instance_id"),
        ({}, {"backend_instance_id": 1, "decode_worker_id": 2}, "nvext.decode_worker_id"),
        ({}, {"prefill_worker_id": "x"}, "nvext.prefill_worker_id"),
        ({}, {"dp_rank": 1}, "nvext.dp_rank"),
        ({}, {"dp_rank": -1}, "nvext.dp_rank"),
        ({}, {"prefill_dp_rank": -1}, "nvext.prefill_dp_rank"),
        ({}, {"router_config_override": {"router_temperature": -1}}, "nvext.router_config_override.router_temperature"),
        ({}, {"router_config_override": {"temperature": 1}}, "nvext.router_config_override"),
        ({}, {"agent_hints": {"priority": "high"}}, "nvext.agent_hints.priority"),
        ({}, {"agent_hints": {"strict_priority": -1}}, "nvext.agent_hints.strict_priority"),
        ({}, {"extra_fields": "worker_id"}, "nvext.extra_fields"),
        ({}, {"annotations": [1]}, "nvext.annotations[0]"),
        ({}, "x", "nvext"),
        ({"x-dynamo-worker-instance-id": "0x7"}, None, "x-dynamo-worker-instance-id"),
        ({"x-dynamo-worker-instance-id": "9" * 5000}, None, "x-dynamo-worker-instance-id"),
        ({"x-dynamo-worker-instance-id": ""}, None, "x-dynamo-worker-instance-id"),
        ({"x-dynamo-prefill-instance-id": "five"}, None, "x-dynamo-prefill-instance-id"),
        ({"x-dynamo-dp-rank": "1"}, None, "x-dynamo-dp-rank"),
        ({"x-prefill-dp-rank": "one"}, None, "x-prefill-dp-rank"),
    ],
)
def test_bad_hints_name_the_field(served: Any, headers: dict[str, str], nvext: Any, param: str) -> None:
    """400, and no worker hears of it."""
    answer = served.post(TEXT, {**HELLO, "nvext": nvext}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_overrides_change_weights_and_temperature() -> None:
    """One by one; the older word as the flag's."""
    options = KvOptions(overlap_score_weight=2.0, overlap_score_credit=1.0, temperature=0.5)
    cases = {
        RouterConfigOverride(): (Weights(prefill_load_scale=2.0), 0.5),
        RouterConfigOverride(overlap_score_credit=0.5): (Weights(overlap_credit=0.5, prefill_load_scale=2.0), 0.5),
        RouterConfigOverride(prefill_load_scale=3.0, router_temperature=0.0): (Weights(prefill_load_scale=3.0), 0.0),
        RouterConfigOverride(overlap_score_weight=0.0): (Weights(overlap_credit=0.0, prefill_load_scale=0.0), 0.5),
    }
    for changes, expected in cases.items():
        assert options.with_changes(changes) == expected


def test_a_request_may_ignore_caches(make_site: Any, engines: Any) -> None:
    """Sent ten times it stays where its prompt is; with the credit taken away it goes anywhere."""
    site = make_site(**KV)
    pair(site, engines, kv_cache_block_size=8)
    long: dict[str, Any] = {**HELLO, "prompt": "x" * 200, "nvext": {"extra_fields": ["worker_id"]}}
    assert len({where(site.post(TEXT, long)) for _ in range(10)}) == 1
    long["nvext"] = {**long["nvext"], "router_config_override": {"overlap_score_credit": 0}}
    assert len({where(site.post(TEXT, long)) for _ in range(30)}) == 2


def where(answer: Any) -> int:
    found: int = answer.json()["nvext"]["worker_id"]["decode_worker_id"]
    return found


def test_an_answer_says_where_it_came_from(make_site: Any, engines: Any) -> None:
    """`worker_id`, `timing` and `routing`, in a whole answer; nothing where nothing was asked."""
    site = make_site(**KV)
    two, ids = pair(site, engines, kv_cache_block_size=8)
    body = {**HELLO, "prompt": "x" * 20, "nvext": {"extra_fields": ["worker_id", "timing", "routing", "engine_data"]}}
    site.post(TEXT, body)
    said = site.post(TEXT, body).json()["nvext"]
    before = [len(engine.seen) for engine in two]
    home = ids[before.index(2)]
    assert set(said) == {"worker_id", "timing", "routing"}
    assert said["worker_id"] == {
        "prefill_worker_id": home, "prefill_dp_rank": 0, "decode_worker_id": home, "decode_dp_rank": 0,
    }  # fmt: skip
    routing = said["routing"]
    # 20 tokens are 2.5 blocks, of which two are cached, worth 1.1 each; the rest weighs 2, and both are decoded over.
    assert routing == {
        "instance": home, "mode": "kv", "reason": "chosen", "dp_rank": 0, "overlap_blocks": 2, "prompt_blocks": 2,
        "cost": pytest.approx(2.6),
    }  # fmt: skip
    timing = said["timing"]
    assert (timing["kv_hit_rate"], timing["router_queue_depth"]) == (1.0, 0)
    assert abs(timing["request_received_ms"] / 1000 - time.time()) < 60
    assert 0 <= timing["prefill_wait_time_ms"] <= timing["ttft_ms"] <= timing["total_time_ms"]
    assert "nvext" not in site.post(TEXT, HELLO).json()
    assert "nvext" not in site.post(TEXT, {**HELLO, "nvext": {"extra_fields": ["engine_data"]}}).json()


@modes
@pytest.mark.parametrize("more", [{}, {"logprobs": 1}], ids=["plain", "logprobs"])
def test_a_stream_says_it_in_its_first_and_last_chunks(
    make_site: Any, engines: Any, mode: dict[str, Any], more: dict[str, Any]
) -> None:
    """Where with the first token, the times at the end; the SDK reads the rest as ever."""
    site = make_site(**mode)
    runtime = site.worker(engines())
    nvext = {"extra_fields": ["worker_id", "timing"]}
    body = {**HELLO, "max_tokens": 4, "stream": True, "nvext": nvext, **more}
    lines = [line[6:] for line in site.post(TEXT, body).text.split("\n\n") if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    with_it = [chunk for chunk in chunks if "nvext" in chunk]
    assert with_it == [chunks[0], chunks[-1]]
    assert "timing" not in with_it[0]["nvext"]
    assert with_it[1]["nvext"]["timing"]["total_time_ms"] >= with_it[1]["nvext"]["timing"]["ttft_ms"]
    assert {chunk["nvext"]["worker_id"]["decode_worker_id"] for chunk in with_it} == {runtime.id}
    asked = site.client().chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hello"}], max_tokens=4, stream=True,
        extra_body={"nvext": nvext},
    )  # fmt: skip
    assert [chunk.choices[0].finish_reason for chunk in asked][-1] == "length"


@modes
@pytest.mark.parametrize("stream", [False, True])
def test_asking_where_a_request_would_go(make_site: Any, engines: Any, mode: dict[str, Any], stream: bool) -> None:
    """`query_instance_id`: the worker and the tokens; nobody runs it and nothing is counted."""
    site = make_site(**mode)
    two, ids = pair(site, engines)
    body = {**HELLO, "stream": stream, "nvext": {"annotations": ["query_instance_id:"]}}
    answer = site.post(TEXT, body)
    text = answer.text.removeprefix("data: ").removesuffix("\n\ndata: [DONE]\n\n") if stream else answer.text
    said = json.loads(text)
    assert (answer.status_code, said["choices"], said["model"]) == (200, [], "m")
    assert said["nvext"]["worker_id"]["decode_worker_id"] in ids
    assert bytes(said["nvext"]["token_ids"]) == b"hello"
    assert [engine.seen for engine in two] == [[], []]
    assert site.metric("inflight_requests", model="m") == 0
    assert site.metric("requests_total", model="m", status="success") == 1
    pinned = {**HELLO, "nvext": {"backend_instance_id": said["nvext"]["worker_id"]["decode_worker_id"]}}
    assert site.post(TEXT, pinned).status_code == 200


def test_who_waits_goes_by_priority(make_site: Any, engines: Any, within: Any) -> None:
    """`agent_hints`: the strict one first, then the one that is urgent, though they came last."""
    site = make_site(router_queue_threshold=0.0)
    engine = engines()

    async def hold() -> None:
        engine.hold = asyncio.Event()

    site.run(hold())
    site.worker(engine, figures={"max_num_batched_tokens": 64})
    hints: list[dict[str, int]] = [{}, {}, {"priority": 60}, {"strict_priority": 1}]
    with ThreadPoolExecutor(4) as pool:
        asked = []
        for number, agent in enumerate(hints):
            body = {**HELLO, "prompt": f"{number}ello", "nvext": {"agent_hints": agent}}
            asked.append(pool.submit(site.post, TEXT, body))
            within("it is there", lambda: len(engine.seen) + site.metric("router_queue_pending_requests") == len(asked))
        site.call(engine.hold.set)
        assert [one.result(20).status_code for one in asked] == [200] * 4
    assert [chr(seen["token_ids"][0]) for seen in engine.seen] == ["0", "3", "2", "1"]


@modes
def test_each_decision_is_one_line_at_v(
    make_site: Any, engines: Any, caplog: pytest.LogCaptureFixture, mode: dict[str, Any]
) -> None:
    """With the request's id, the worker and the reason; none without `-v`."""
    site = make_site(**mode)
    _, ids = pair(site, engines)
    site.post(TEXT, HELLO, headers={"x-request-id": "quiet"})
    caplog.set_level(logging.DEBUG, "dynamo.frontend")
    site.post(TEXT, HELLO, headers={"x-request-id": "free"})
    site.post(TEXT, {**HELLO, "nvext": {"backend_instance_id": ids[0]}}, headers={"x-request-id": "bound"})
    lines = [line for line in caplog.messages if " goes to instance " in line]
    assert Counter(line.split("]")[0] for line in lines) == {"[free": 1, "[bound": 1}
    assert f"({ids[0]}) rank 0, pinned" in lines[1]
    assert ("cost" in lines[0]) is (mode is KV)


def test_splicing_keeps_the_rest() -> None:
    """`nvext` comes last in the object, whatever its end."""
    assert spliced(b'data: {"a":[]}\n\n', {"b": 1}) == b'data: {"a":[],"nvext":{"b":1}}\n\n'
    assert spliced(b'{"a":1}', {"b": 1}, b"}") == b'{"a":1,"nvext":{"b":1}}'
    assert spliced(b'{"a":1}', {}, b"}") == b'{"a":1}'
