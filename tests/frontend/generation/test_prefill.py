"""Prompts that a prefill worker computes, in whole frontends: what each part is sent, and what happens without it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.frontend.conftest import Echo
from tests.waiting import until

from dynamo.llm.protocols import delta
from dynamo.runtime.errors import CannotConnect, Disconnected, EngineError, WorkerUnavailable

TEXT = "/v1/completions"
HELLO = {"model": "m", "prompt": "hello", "max_tokens": 4}
KV = {"router_mode": "kv", "use_kv_events": False}
modes = pytest.mark.parametrize("mode", [{}, {"router_mode": "least-loaded"}, KV], ids=["turns", "load", "kv"])


class Prefill(Echo):
    """Hands out how often it was asked."""

    async def speak(self, incoming: Any, payload: dict[str, Any]) -> None:
        if self.hold is not None:
            await self.hold.wait()
        incoming.finish(delta([65], "length", {"disaggregated_params": {"number": len(self.seen)}}))


def pools(site: Any, first: Any, second: Any, **options: Any) -> tuple[int, int]:
    """A prefill and a decode worker; their ids."""
    one = site.worker(first, path="test.prefill.generate", role="prefill", wait=False, **options).id
    return one, site.worker(second, role="decode", **options).id


def refusing(incoming: Any) -> None:
    incoming.fail(WorkerUnavailable("it leaves"))


def failing(incoming: Any) -> None:
    incoming.fail(EngineError("it failed"))


def empty(incoming: Any) -> None:
    incoming.finish(delta([65], "length"))


def unreadable(incoming: Any) -> None:
    incoming.finish("?")


@modes
@pytest.mark.parametrize("stream", [False, True])
def test_each_part_goes_to_its_pool(make_site: Any, engines: Any, within: Any, mode: Any, stream: bool) -> None:
    """One token there, whose text nobody sees; the whole answer here, with what was handed out; for each choice."""
    site = make_site(**mode)
    prefill, decode = Prefill(), engines()
    ids = pools(site, prefill, decode)
    body = {**HELLO, "n": 2, "nvext": {"extra_fields": ["worker_id"]}}
    if stream:
        found = list(site.client().completions.create(
            model="m", prompt="hello", max_tokens=4, n=2, stream=True, extra_body={"nvext": body["nvext"]}
        ))  # fmt: skip
        texts = ["".join(one.choices[0].text for one in found if one.choices[0].index == n) for n in (0, 1)]
        said = found[0].model_extra["nvext"]["worker_id"]
    else:
        answer = site.post(TEXT, body).json()
        texts, said = [one["text"] for one in answer["choices"]], answer["nvext"]["worker_id"]
    assert texts == ["hell", "hell"]
    assert (said["prefill_worker_id"], said["decode_worker_id"]) == ids
    assert [one["stop_conditions"]["max_tokens"] for one in prefill.seen] == [1, 1]
    assert [one["stop_conditions"]["max_tokens"] for one in decode.seen] == [4, 4]
    assert all(one["token_ids"] == list(b"hello") for one in (*prefill.seen, *decode.seen))
    handed = sorted(one["prefill_result"]["disaggregated_params"]["number"] for one in decode.seen)
    assert handed in ([1, 2], [2, 2])
    within("nothing is left", lambda: site.metric("inflight_requests", model="m") == 0)
    assert site.metric("model_prefill_fallbacks_total", model="m") == 0


@modes
@pytest.mark.parametrize("broken", [refusing, failing, empty, unreadable])
def test_without_the_first_part_decode_does_all(make_site: Any, engines: Any, mode: Any, broken: Any) -> None:
    """Whatever goes wrong there: the client sees nothing of it, and it is counted."""
    site = make_site(**mode)
    decode = engines()
    _, worker = pools(site, broken, decode)
    answer = site.post(TEXT, {**HELLO, "nvext": {"extra_fields": ["worker_id"]}}).json()
    assert answer["choices"][0]["text"] == "hell"
    assert answer["nvext"]["worker_id"]["prefill_worker_id"] == worker
    assert "prefill_result" not in decode.seen[0]
    assert site.metric("model_prefill_fallbacks_total", model="m") == 1


def test_a_prefill_worker_alone_is_no_model(site: Any, engines: Any, within: Any) -> None:
    """404 or 503 until a decode worker is there; and without one of them left, decode does all."""
    prefill, decode = Prefill(), engines()
    first = site.worker(prefill, path="test.prefill.generate", role="prefill", wait=False)
    assert site.post(TEXT, HELLO).status_code in (404, 503)
    site.worker(decode, role="decode")
    assert site.post(TEXT, HELLO).status_code == 200
    assert len(prefill.seen) == 1
    assert site.metric("model_remote_prefills_total", model="m") == 1
    site.stop_worker(first, 0)
    assert site.post(TEXT, HELLO).status_code == 200
    assert [("prefill_result" in one) for one in decode.seen] == [True, False]


def test_other_models_and_other_tokens_are_not_mixed(site: Any, engines: Any) -> None:
    """A prefill worker of another tokenizer, model or namespace computes nothing for this one."""
    prefill, decode = Prefill(), engines()
    for path, name, more in (
        ("test.prefill.generate", "m", {"eos_token_ids": [77]}), ("test.prefill2.generate", "x", {}),
        ("other.prefill.generate", "m", {}),
    ):  # fmt: skip
        site.worker(prefill, name, path=path, role="prefill", wait=False, **more)
    site.worker(decode, role="decode")
    assert site.post(TEXT, HELLO).status_code == 200
    assert (prefill.seen, "prefill_result" in decode.seen[0]) == ([], False)


def test_each_attempt_has_its_own_first_part(site: Any, engines: Any) -> None:
    """What was handed out is for one worker: where that refuses, the prompt is computed once more, for the next one."""
    prefill, decode, asked = Prefill(), engines(), []

    def once(incoming: Any) -> None:
        asked.append(incoming.payload)
        incoming.fail(WorkerUnavailable("it leaves"))

    pools(site, prefill, once)
    site.worker(decode, role="decode")
    for _ in range(4):
        assert site.post(TEXT, HELLO).json()["choices"][0]["text"] == "hell"
    assert asked
    handed = [one["prefill_result"]["disaggregated_params"]["number"] for one in (*asked, *decode.seen)]
    assert sorted(handed) == list(range(1, len(prefill.seen) + 1))
    assert (len(decode.seen), len(prefill.seen)) == (4, 4 + len(asked))
    assert site.metric("model_remote_prefills_total", model="m") == len(prefill.seen)


@pytest.mark.parametrize("figures", [{}, {"bootstrap_port": 1}], ids=["handed over", "met"])
def test_the_rest_of_an_answer_has_a_first_part_too(make_site: Any, engines: Any, figures: Any) -> None:
    """A migration's prompt, with what was answered already, is computed by a prefill worker."""
    site = make_site(migration_limit=1)
    prefill, decode = Prefill(), engines()
    seen: list[Any] = []

    def breaks(incoming: Any) -> None:
        seen.append(incoming.payload)
        if len(seen) == 1:
            incoming.send(delta([65, 66]))
            incoming.fail(Disconnected("it is gone"))
        else:
            decode(incoming)

    pools(site, prefill, breaks, figures=figures)
    assert len(site.post(TEXT, HELLO).json()["choices"][0]["text"]) == 4
    assert [len(one["token_ids"]) for one in prefill.seen] == [5, 7]
    assert all("prefill_result" in one or "bootstrap_info" in one for one in seen)
    assert [one["stop_conditions"]["max_tokens"] for one in seen] == [4, 2]


def test_what_never_arrives_is_computed_there(site: Any, engines: Any) -> None:
    """A decode worker that can't have what prefill workers computed is asked to compute it, after two attempts."""
    prefill, decode = Prefill(), engines()

    def unreached(incoming: Any) -> None:
        if "prefill_result" in incoming.payload:
            incoming.fail(CannotConnect("it did not come"))
        else:
            decode(incoming)

    pools(site, prefill, unreached)
    for asked in (2, 4):
        assert site.post(TEXT, HELLO).json()["choices"][0]["text"] == "hell"
        assert len(prefill.seen) == asked
    assert site.metric("model_prefill_fallbacks_total", model="m") == 2


@pytest.mark.parametrize("broken", [refusing, failing])
def test_another_prefill_worker_is_tried_where_that_may_help(site: Any, engines: Any, broken: Any) -> None:
    """One that refuses says nothing of the next; an engine's own error would come again, so decode does all at once."""
    prefill, decode = Prefill(), engines()
    pools(site, broken, decode)
    site.worker(prefill, path="test.prefill.generate", role="prefill", wait=False)
    for _ in range(4):
        assert site.post(TEXT, HELLO).json()["choices"][0]["text"] == "hell"
    fallbacks = 0 if broken is refusing else 2
    assert site.metric("model_prefill_fallbacks_total", model="m") == fallbacks
    assert site.metric("model_remote_prefills_total", model="m") == 4 - fallbacks == len(prefill.seen)
    assert ["prefill_result" in one for one in decode.seen].count(True) == 4 - fallbacks


def test_prefill_workers_that_die_count(site: Any, engines: Any) -> None:
    """Two of three die with a request: neither the third nor a decode worker gets it, nor does its second try."""
    seen: list[Any] = []

    def dying(incoming: Any) -> None:
        seen.append(incoming.payload)
        incoming.fail(Disconnected("the worker was lost"))

    decode = engines()
    pools(site, dying, decode)
    for _ in range(2):
        site.worker(dying, path="test.prefill.generate", role="prefill", wait=False)
    answer = site.post(TEXT, HELLO)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "worker_lost")
    again = site.post(TEXT, HELLO)
    assert (again.status_code, again.json()["error"]["code"]) == (422, "takes_workers_down")
    assert (len(seen), len(decode.seen)) == (2, 0)


class Meeting:
    """Prefill and decode engines that meet in rooms: decode speaks once its room's prompt is computed."""

    def __init__(self, engines: Any) -> None:
        self.prefill, self.decode = Prefill(), engines()
        self.decode.speak = self._speak
        self._say = type(self.decode).speak

    async def _speak(self, incoming: Any, payload: dict[str, Any]) -> None:
        info = payload.get("bootstrap_info")
        await until("its prompt is computed", lambda: info is None or info in self.rooms)
        await self._say(self.decode, incoming, payload)

    @property
    def rooms(self) -> list[Any]:
        return [one["bootstrap_info"] for one in self.prefill.seen]


@modes
def test_engines_that_meet_are_sent_their_parts_at_once(make_site: Any, engines: Any, within: Any, mode: Any) -> None:
    """Both get the same place and room, decode before the prompt is computed; each choice has a room of its own."""
    site = make_site(**mode)
    both = Meeting(engines)
    prefill, _ = pools(site, both.prefill, both.decode, figures={"bootstrap_host": "10.0.0.7", "bootstrap_port": 8998})
    answer = site.post(TEXT, {**HELLO, "n": 2, "nvext": {"extra_fields": ["worker_id"]}}).json()
    assert [one["text"] for one in answer["choices"]] == ["hell", "hell"]
    assert answer["nvext"]["worker_id"]["prefill_worker_id"] == prefill
    rooms = [one["bootstrap_info"] for one in both.decode.seen]
    assert sorted(map(str, rooms)) == sorted(map(str, both.rooms))
    assert all((one["bootstrap_host"], one["bootstrap_port"]) == ("10.0.0.7", 8998) for one in rooms)
    assert len({one["bootstrap_room"] for one in rooms}) == 2
    within("both are counted", lambda: site.metric("model_remote_prefills_total", model="m") == 2)
    within("nothing is left", lambda: site.metric("inflight_requests", model="m") == 0)


def test_a_meeting_without_a_host_is_at_the_instance(site: Any, engines: Any) -> None:
    both = Meeting(engines)
    prefill, _ = pools(site, both.prefill, both.decode, figures={"bootstrap_port": 0})
    assert site.post(TEXT, HELLO).json()["choices"][0]["text"] == "hell"
    assert both.rooms[0]["bootstrap_host"] == f"test.prefill.generate/{prefill:x}"


@modes
@pytest.mark.parametrize("broken", [refusing, failing])
def test_decode_doesn_t_wait_for_who_won_t_come(make_site: Any, engines: Any, mode: Any, broken: Any) -> None:
    """Where the first part fails meanwhile, the decode worker is told to leave the room, and computes the prompt."""
    site = make_site(**mode)
    both = Meeting(engines)
    pools(site, broken, both.decode, figures={"bootstrap_port": 1})
    answer = site.post(TEXT, HELLO).json()
    assert answer["choices"][0]["text"] == "hell"
    assert (len(both.decode.seen), both.decode.cancelled) == (2, 1)
    assert "bootstrap_info" not in both.decode.seen[1]
    assert site.metric("model_prefill_fallbacks_total", model="m") == 1


class Endless(Prefill):
    """Never ends with the first prompt that it gets."""

    async def speak(self, incoming: Any, payload: dict[str, Any]) -> None:
        if len(self.seen) == 1:
            await asyncio.Event().wait()
        await super().speak(incoming, payload)


def test_a_decode_worker_that_fails_in_a_room_leaves_it(site: Any, engines: Any, within: Any) -> None:
    """The prefill worker is told that nobody comes; the next attempt has another room."""
    both = Meeting(engines)
    refused: list[Any] = []
    both.prefill = Endless()

    def once(incoming: Any) -> None:
        if refused:
            both.decode(incoming)
        else:
            refused.append(incoming.payload["bootstrap_info"])
            incoming.fail(WorkerUnavailable("it leaves"))

    pools(site, both.prefill, once, figures={"bootstrap_port": 1})
    assert site.post(TEXT, HELLO).json()["choices"][0]["text"] == "hell"
    within("it is told", lambda: both.prefill.cancelled == 1)
    assert both.rooms == [*refused, both.decode.seen[0]["bootstrap_info"]]
    assert both.rooms[0] != both.rooms[1]


# -- which prompts stay


def test_short_prompts_stay_with_their_answers(make_site: Any, engines: Any) -> None:
    """In every mode, by `--max-local-prefill-length`."""
    site = make_site(max_local_prefill_length=5)
    prefill, decode = Prefill(), engines()
    pools(site, prefill, decode)
    for prompt in ("hello", "hello!"):
        assert site.post(TEXT, {**HELLO, "prompt": prompt}).status_code == 200
    assert [len(one["token_ids"]) for one in prefill.seen] == [6]
    assert ["prefill_result" in one for one in decode.seen] == [False, True]
    assert site.metric("model_local_prefills_total", model="m") == 1
    assert site.metric("model_prefill_fallbacks_total", model="m") == 0


CONDITIONAL = {"router_mode": "kv", "router_conditional_disagg": True, "router_replica_sync": False}


def test_what_a_decode_worker_has_cached_stays_there(make_site: Any, engines: Any) -> None:
    """Conditional disaggregation: the first turn goes to a prefill worker, the second to where the first one was."""
    site = make_site(**CONDITIONAL)
    prefill, decode = Prefill(), engines()
    pools(site, prefill, decode, kv_cache_block_size=4)
    first = "x" * 40
    for prompt in (first, first + "y" * 8, first + "y" * 200):
        assert site.post(TEXT, {**HELLO, "prompt": prompt}).status_code == 200
    assert [len(one["token_ids"]) for one in prefill.seen] == [40, 240]
    assert ["prefill_result" in one for one in decode.seen] == [True, False, True]
    assert site.metric("model_local_prefills_total", model="m") == 1


def test_what_prefill_workers_are_too_busy_for_stays(make_site: Any, engines: Any, within: Any) -> None:
    """Over the threshold, by what was sent there and has no token yet."""
    config = '{"policy": "prefill_load", "prefill_busy_threshold": 0.5}'
    site = make_site(**CONDITIONAL, router_conditional_disagg_config=config)
    prefill, decode = Prefill(), engines()

    async def event() -> asyncio.Event:
        return asyncio.Event()

    hold = prefill.hold = site.run(event())
    pools(site, prefill, decode, figures={"max_num_batched_tokens": 100})
    first = threading.Thread(target=site.post, args=(TEXT, {**HELLO, "prompt": "a" * 60}))
    first.start()
    within("it is being computed", lambda: prefill.seen)
    assert site.post(TEXT, HELLO).status_code == 200
    assert ["prefill_result" in one for one in decode.seen] == [False]
    site.call(hold.set)
    first.join(20)
    prefill.hold = None
    assert site.post(TEXT, HELLO).status_code == 200
    assert ["prefill_result" in one for one in decode.seen] == [False, True, True]


# -- requests that say where


def ids(answer: Any) -> tuple[int, int]:
    said = answer.json()["nvext"]["worker_id"]
    return said["prefill_worker_id"], said["decode_worker_id"]


@pytest.mark.parametrize("how", ["field", "header"])
def test_a_request_may_choose_its_prefill_worker(site: Any, engines: Any, how: str) -> None:
    """And is told so; it may also be asked for first. One that isn't there is a 503 that names the field."""
    one, decode = pools(site, Prefill(), engines())
    other = site.worker(Prefill(), path="test.prefill.generate", role="prefill", wait=False).id

    def ask(wanted: int, *annotations: str) -> Any:
        nvext: dict[str, Any] = {"extra_fields": ["worker_id"], "annotations": list(annotations)}
        headers = {"x-dynamo-prefill-instance-id": str(wanted)} if how == "header" else {}
        return site.post(TEXT, {**HELLO, "nvext": nvext | ({} if headers else {"prefill_worker_id": wanted})},
                         headers=headers)  # fmt: skip

    for wanted in (one, other, other, one):
        assert ids(ask(wanted)) == ids(ask(wanted, "query_instance_id:")) == (wanted, decode)
    gone = ask(12345)
    assert (gone.status_code, gone.json()["error"]["param"]) == (
        503, "nvext.prefill_worker_id" if how == "field" else "x-dynamo-prefill-instance-id"
    )  # fmt: skip
    # The worker that gives the answer may be named too: then it does all.
    assert ids(ask(decode)) == (decode, decode)
    assert site.metric("model_prefill_fallbacks_total", model="m") == 0


def test_a_request_may_choose_the_rank_of_its_prefill_worker(site: Any, engines: Any) -> None:
    prefill = Prefill()
    pools(site, prefill, engines(), figures={"data_parallel_size": 2})
    for rank, status in ((1, 200), (0, 200), (2, 400)):
        answer = site.post(TEXT, {**HELLO, "nvext": {"prefill_dp_rank": rank}})
        assert answer.status_code == status
    assert [one["routing"].get("dp_rank") for one in prefill.seen] == [1, 0]
    assert answer.json()["error"]["param"] == "nvext.prefill_dp_rank"


def test_where_one_worker_does_all_it_may_be_named_twice(site: Any, engines: Any) -> None:
    """What an answer says of its workers can be sent back."""
    worker = site.worker(engines()).id
    nvext = {"extra_fields": ["worker_id"], "prefill_worker_id": worker, "prefill_dp_rank": 0}
    assert ids(site.post(TEXT, {**HELLO, "nvext": nvext})) == (worker, worker)
    assert site.post(TEXT, {**HELLO, "nvext": {**nvext, "decode_worker_id": worker + 1}}).status_code == 503


def test_a_client_that_leaves_ends_the_first_part(site: Any, engines: Any, within: Any) -> None:
    """The prefill worker is told, and no decode worker hears of it."""
    prefill, decode = Prefill(), engines()
    pools(site, prefill, decode)

    async def event() -> asyncio.Event:
        return asyncio.Event()

    prefill.hold = site.run(event())
    body = b'{"model":"m","prompt":"hello","max_tokens":4}'
    with site.socket() as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        within("it is being computed", lambda: prefill.seen)
    within("it is told", lambda: prefill.cancelled == 1)
    within("nothing is left", lambda: site.metric("inflight_requests", model="m") == 0)
    assert decode.seen == []


def test_a_prefill_worker_that_hangs(make_site: Any, engines: Any, within: Any) -> None:
    """After the time limit for a first token the decode worker computes the prompt, and the other is told to stop."""
    site = make_site(first_token_timeout_secs=0.3)
    prefill, decode = Prefill(), engines()

    async def hold() -> None:
        prefill.hold = asyncio.Event()

    site.run(hold())
    pools(site, prefill, decode)
    within("the prefill worker is asked", lambda: site.post(TEXT, HELLO).status_code == 200 and prefill.seen)
    within("it has stopped", lambda: prefill.running == 0)
    assert prefill.cancelled == len(prefill.seen)
    assert site.metric("timeouts_total", type="first_token") == len(prefill.seen)
    assert site.metric("model_prefill_fallbacks_total", model="m") == len(prefill.seen)
    assert "prefill_result" not in {key for one in decode.seen for key, value in one.items() if value}
