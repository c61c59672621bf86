"""Prompts that a prefill worker computes, in whole frontends: what each part is sent, and what happens without it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.frontend.conftest import Echo

from dynamo.llm.protocols import delta
from dynamo.runtime.errors import EngineError, WorkerUnavailable

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


def test_a_retry_computes_the_prompt_itself(site: Any, engines: Any) -> None:
    """What was handed out is for one worker: where that refuses, the next one is sent the prompt alone."""
    prefill, decode, asked = Prefill(), engines(), []

    def once(incoming: Any) -> None:
        asked.append(incoming.payload)
        incoming.fail(WorkerUnavailable("it leaves"))

    pools(site, prefill, once)
    site.worker(decode, role="decode")
    for _ in range(4):
        assert site.post(TEXT, HELLO).json()["choices"][0]["text"] == "hell"
    assert asked
    assert all("prefill_result" in one for one in asked)
    alone = [one for one in decode.seen if "prefill_result" not in one]
    assert (len(alone), len(decode.seen), len(prefill.seen)) == (len(asked), 4, 4)


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
