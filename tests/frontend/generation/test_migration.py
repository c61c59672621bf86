"""A stream that goes on with another worker: exactly the rest, as often as the limit says; or why it doesn't."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import httpx
import pytest

from dynamo.frontend.generation.migration import TEXT, TOO_LONG
from dynamo.frontend.generation.retry_policy import MAX_DEATHS, MAX_LOSSES
from dynamo.frontend.routing import model_watcher
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.llm.protocols import delta
from dynamo.runtime.errors import (
    CapacityExceeded,
    Disconnected,
    DynamoException,
    EngineError,
    EngineShutdown,
    StreamIncomplete,
    WorkerUnavailable,
)

COMPLETIONS = "/v1/completions"
LOST = [Disconnected, StreamIncomplete, EngineShutdown]


def letter(position: int) -> int:
    return 97 + position % 26


def text_from(prompt: str, count: int) -> str:
    return "".join(chr(letter(len(prompt) + i)) for i in range(count))


class Lettered:
    """An engine whose next token is its sequence's length as a letter. It breaks off as `breaks` says, in turn."""

    def __init__(self, *breaks: tuple[int, DynamoException], together: int = 1) -> None:
        self.breaks, self.together = list(breaks), together
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, incoming: Any) -> None:
        self.seen.append((incoming.context.id(), incoming.payload))
        task = asyncio.get_running_loop().create_task(self._speak(incoming, incoming.payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        incoming.on_cancel(task.cancel)

    async def _speak(self, incoming: Any, asked: dict[str, Any]) -> None:
        ids, answered = asked["token_ids"], asked.get("answered_tokens", 0)
        ours = range(len(ids) - answered, len(ids))
        assert [letter(at) for at in ours] == [ids[at] for at in ours], "what is appended is what was answered"
        after, error = self.breaks.pop(0) if self.breaks else (1 << 30, None)
        made = [letter(len(ids) + at) for at in range(asked["stop_conditions"]["max_tokens"])]
        extras = {"cached_tokens": len(ids) - 1}
        for at in range(0, min(after, len(made)), self.together):
            tokens = made[at : min(at + self.together, after)]
            incoming.send(self._delta(asked, tokens, extras if at == 0 else {}))
            await asyncio.sleep(0)
        if error is not None and after < len(made):
            incoming.fail(error)
        else:
            incoming.finish(delta([], "length"))

    def _delta(self, asked: dict[str, Any], tokens: list[int], extras: dict[str, Any]) -> Any:
        wanted = asked.get("output_options", {})
        if wanted.get("logprobs") is not None:
            extras = {**extras, "log_probs": [-token / 100 for token in tokens]}
            extras["top_logprobs"] = [[[token, -token / 100]] for token in tokens]
        if wanted.get("prompt_logprobs") is not None:
            extras["prompt_logprobs"] = [None] + [-0.25] * (len(asked["token_ids"]) - 1)
        if not extras and len(tokens) == 1:
            return tokens[0]
        return delta(tokens, None, extras)


@pytest.fixture
def lettered(make_site: Callable[..., Any]) -> Callable[..., tuple[Any, Lettered]]:
    """A frontend with two workers that share one script, so that each attempt meets the next break."""

    def make(*breaks: tuple[int, DynamoException], together: int = 1, **settings: Any) -> tuple[Any, Lettered]:
        site, engine = make_site(**{"migration_limit": 3, **settings}), Lettered(*breaks, together=together)
        for _ in range(2):
            site.worker(engine)
        return site, engine

    return make


def ask(site: Any, prompt: str = "hi", count: int = 20, **more: Any) -> Any:
    body = {"model": "m", "prompt": prompt, "max_tokens": count, "ignore_eos": True, **more}
    return site.post(COMPLETIONS, body, headers={"x-request-id": "same-id"})


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("kind", LOST)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("together", [1, 3])
def test_the_rest_is_exact(lettered: Any, kind: type[DynamoException], stream: bool, together: int) -> None:
    """Three breaks: no token lost or doubled, the client's own usage and finish reason, one request id, all counted."""
    site, engine = lettered((3, kind()), (1, kind()), (9, kind()), together=together)
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = ask(site, **more)
    assert answer.status_code == 200
    if stream:
        found = events(answer)
        text = "".join(c["text"] for event in found for c in event["choices"])
        reasons = [c["finish_reason"] for event in found for c in event["choices"] if c["finish_reason"]]
        usage = found[-1]["usage"]
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        (choice,) = answer.json()["choices"]
        text, reasons, usage = choice["text"], [choice["finish_reason"]], answer.json()["usage"]
    assert (text, reasons) == (text_from("hi", 20), ["length"])
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (2, 20, 22)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 1, "of the prompt, not of what was answered"
    assert [rid for rid, _ in engine.seen] == ["same-id"] * 4
    assert [asked.get("answered_tokens", 0) for _, asked in engine.seen] == [0, 3, 4, 13]
    assert [asked["stop_conditions"]["max_tokens"] for _, asked in engine.seen] == [20, 17, 16, 7]
    counted = {"model": "m", "migration_type": "ongoing_request"}
    assert site.metric("model_migration_total", **counted) == 3
    assert site.metric("model_migration_duration_seconds_count", **counted, outcome="success") == 3
    assert site.metric("output_tokens_total", model="m") == 20


@pytest.mark.parametrize("mode", ["kv", "least-loaded"])
def test_where_loads_are_counted(lettered: Any, within: Any, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """With a busy threshold, and in mode kv: the rest is routed as a prompt of its own, and nothing stays counted."""
    sets: list[ModelSet] = []

    class Recorded(ModelSet):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            sets.append(self)

    monkeypatch.setattr(model_watcher, "ModelSet", Recorded)
    more = {"router_mode": mode, "active_prefill_tokens_threshold": 1000, "router_track_output_blocks": True}
    site, engine = lettered((30, Disconnected()), (50, Disconnected()), **more)
    assert ask(site, count=120).json()["choices"][0]["text"] == text_from("hi", 120)
    assert [len(asked["token_ids"]) for _, asked in engine.seen] == [2, 32, 82]
    (only,) = sets
    within("nothing runs", lambda: not any(worker.open_streams for worker in only.workers.values()))
    assert [(load.prefill_tokens, load.blocks) for load in only.loads()] == [(0, 0)] * 2


def test_a_break_after_all_but_the_end(lettered: Any) -> None:
    """All tokens have come and the engine's word of the end has not: nothing is missing, so nothing is repeated."""
    site, _ = lettered((19, Disconnected()), (1, Disconnected()))
    assert ask(site).json()["choices"][0]["text"] == text_from("hi", 20)


@pytest.mark.parametrize(("stop", "shown"), [("fgh", "cde"), ("ef", "cd"), ("jkl", "cdefghi")])
def test_a_stop_string_across_the_break(lettered: Any, stop: str, shown: str) -> None:
    """Half of it comes from one worker, half from the next; what is held back is not lost where it was none."""
    site, _ = lettered((4, Disconnected()), (5, Disconnected()))
    (choice,) = ask(site, stop=[stop, "efx"]).json()["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (shown, "stop", stop)


def test_half_a_character_across_the_break(make_site: Any) -> None:
    """The bytes of one character from two workers."""
    site, data = make_site(migration_limit=1), "aüé€𝄞z".encode()
    spoken: list[int] = []

    def engine(incoming: Any) -> None:
        done = incoming.payload.get("answered_tokens", 0)
        spoken.append(done)
        for token in data[done : len(data) if done else 6]:
            incoming.send(token)
        if done:
            incoming.finish(delta([], "eos"))
        else:
            incoming.fail(Disconnected())

    for _ in range(2):
        site.worker(engine)
    assert ask(site).json()["choices"][0]["text"] == data.decode()
    assert spoken == [0, 6]


@pytest.mark.parametrize("chat", [False, True])
def test_log_probabilities_go_on(lettered: Any, chat: bool) -> None:
    """One entry per token, each where its text is; the prompt's are asked for once."""
    site, engine = lettered((3, Disconnected()), (4, Disconnected()))
    if chat:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "logprobs": True}
        (choice,) = site.post("/v1/chat/completions", {**body, "ignore_eos": True}).json()["choices"]
        found = choice["logprobs"]["content"]
        assert "".join(one["token"] for one in found) == choice["message"]["content"]
        assert [one["logprob"] for one in found] == [-ord(one["token"]) / 100 for one in found]
        assert len(found) == 12
        return
    (choice,) = ask(site, count=12, logprobs=1, echo=True).json()["choices"]
    assert choice["text"] == "hi" + text_from("hi", 12)
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["text_offset"] == list(range(14))
    assert choice["logprobs"]["token_logprobs"][:2] == [None, -0.25]
    assert [bool(asked["output_options"].get("prompt_logprobs")) for _, asked in engine.seen] == [True, False, False]


def test_each_choice_goes_on_for_itself(lettered: Any) -> None:
    """`n` answers, each with its own limit, seed and tokens."""
    site, engine = lettered((2, Disconnected()), (5, Disconnected()), (7, Disconnected()), migration_limit=2)
    answer = ask(site, n=3, seed=40).json()
    assert [choice["text"] for choice in answer["choices"]] == [text_from("hi", 20)] * 3
    assert answer["usage"]["completion_tokens"] == 60
    seeds = sorted(asked["sampling_options"]["seed"] for _, asked in engine.seen)
    assert seeds == [40, 40, 41, 41, 42, 42]


def test_breaks_and_refusals_in_any_order(lettered: Any) -> None:
    """Forty requests at once among workers that break off, leave and are full as chance has it: all are exact."""
    chance = Random(11)
    broken: list[Callable[[], DynamoException]] = [*LOST, WorkerUnavailable]
    breaks = [(chance.randrange(1, 12), chance.choice(broken)()) for _ in range(300)]
    breaks += [(0, WorkerUnavailable()) for _ in range(100)]
    chance.shuffle(breaks)
    site, _ = lettered(*breaks, migration_limit=300)
    prompts = ["x" * (1 + n) for n in range(40)]
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda prompt: ask(site, prompt, 60, stop=["nopqrz"]).json(), prompts))
    assert [answer["choices"][0]["text"] for answer in answers] == [text_from(prompt, 60) for prompt in prompts]
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {60}
    assert site.metric("model_migration_total", migration_type="ongoing_request", model="m") > 100


def test_prompts_that_a_prefill_worker_computed(make_site: Any) -> None:
    """What was handed out is for the first worker; for the next one it is computed again, with what was answered."""
    site, engine = make_site(migration_limit=1), Lettered((4, Disconnected()))
    asked: list[dict[str, Any]] = []

    def prefill(incoming: Any) -> None:
        asked.append(incoming.payload)
        incoming.finish(delta([65], "length", {"disaggregated_params": {"at": len(asked)}}))

    site.worker(prefill, path="test.prefill.generate", role="prefill", wait=False)
    for _ in range(2):
        site.worker(engine, role="decode")
    assert ask(site).json()["choices"][0]["text"] == text_from("hi", 20)
    handed = [payload["prefill_result"]["disaggregated_params"]["at"] for _, payload in engine.seen]
    assert handed == [1, 2]
    assert [payload.get("answered_tokens", 0) for _, payload in engine.seen] == [0, 4]
    assert [payload.get("answered_tokens", 0) for payload in asked] == [0, 4]
    assert [len(payload["token_ids"]) for payload in asked] == [2, 6]


def test_the_limit_is_used_up(lettered: Any) -> None:
    """One break more than the limit: one clear error, and it is counted; the same for a stream."""
    breaks = [(2, Disconnected("the worker was lost"))] * 3
    for stream in (False, True):
        site, engine = lettered(*breaks, migration_limit=2)
        answer = ask(site, stream=stream)
        error = events(answer)[-1]["error"] if stream else answer.json()["error"]
        assert error["message"] == "the worker was lost; its migration limit of 2 is used up"
        assert (answer.status_code, error["code"]) == (200 if stream else 500, "worker_lost")
        assert "[DONE]" not in answer.text
        assert len(engine.seen) == 3
        assert site.metric("model_migration_total", migration_type="ongoing_request", model="m") == 2
        assert site.metric("model_migration_exhausted_total", model="m") == 1


@pytest.mark.parametrize("limit", [0, 3])
def test_a_final_error_does_not_migrate(lettered: Any, limit: int) -> None:
    """What the engine says of this request would be said elsewhere, too; a limit of 0 means never."""
    site, engine = lettered((2, EngineError("nan") if limit else Disconnected("gone")), migration_limit=limit)
    answer = ask(site)
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "nan" if limit else "gone")
    assert len(engine.seen) == 1
    assert site.metric("model_migration_exhausted_total", model="m") == 0


def test_refusals_on_the_way_cost_nothing(lettered: Any) -> None:
    """A migration whose next worker leaves, or is full, finds another; that is no second migration."""
    refusals = [WorkerUnavailable("it leaves"), CapacityExceeded("full"), WorkerUnavailable("it leaves")] * 3
    site, engine = lettered((5, Disconnected()), *((0, refusal) for refusal in refusals), migration_limit=1)
    assert ask(site).json()["choices"][0]["text"] == text_from("hi", 20)
    assert len(engine.seen) == 11
    assert site.metric("model_migration_total", migration_type="ongoing_request", model="m") == 1


def test_waiting_for_a_worker_costs_nothing(make_site: Any, within: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The only worker goes in mid-stream: one migration, however often nobody is there; the next one has the rest."""
    caplog.set_level("INFO", "dynamo.frontend.generation.retries")
    site = make_site(migration_limit=1, worker_wait_timeout_secs=10)
    engine = Lettered((5, Disconnected()), *[(0, WorkerUnavailable())] * 99)
    first = site.worker(engine)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, site)
        within("it broke off", lambda: len(engine.seen) >= 2)
        site.stop_worker(first)
        within("nobody was there", lambda: caplog.text.count("no worker of model 'm'") >= 3)
        site.worker(Lettered())
        assert asking.result(20).json()["choices"][0]["text"] == text_from("hi", 20)
    assert site.metric("model_migration_total", migration_type="ongoing_request", model="m") == 1


def test_a_request_that_takes_its_workers_down_is_given_up(make_site: Any) -> None:
    """Two workers die with it before its first token: it is its fault, and comes to no third one for a minute."""
    site, engine = make_site(), Lettered(*[(0, Disconnected("the worker was lost"))] * 9)
    for _ in range(4):
        site.worker(engine)
    answer = ask(site)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "worker_lost")
    assert len(engine.seen) == MAX_DEATHS
    for _ in range(2):
        again = ask(site)
        assert (again.status_code, again.json()["error"]["code"]) == (422, "takes_workers_down")
    assert len(engine.seen) == MAX_DEATHS
    engine.breaks.clear()
    assert ask(site, prompt="ho").status_code == 200, "another body"


def test_losses_that_are_no_deaths_have_a_larger_limit(make_site: Any) -> None:
    """Workers that stop, or lose a frame, say nothing about the request."""
    site, engine = make_site(), Lettered(*[(0, EngineShutdown())] * MAX_LOSSES)
    for _ in range(2):
        site.worker(engine)
    assert ask(site).status_code == 200
    assert len(engine.seen) == MAX_LOSSES + 1


def test_a_model_has_a_limit_of_its_own(make_site: Any) -> None:
    """The card's goes before the frontend's, the newest card's before older ones; /metrics says which holds."""
    site = make_site(migration_limit=0)
    engine = Lettered(*[(2, Disconnected("gone"))] * 2)
    site.worker(engine, migration_limit=2)
    site.worker(engine, migration_limit=2)
    assert ask(site).json()["choices"][0]["text"] == text_from("hi", 20)
    assert site.metric("model_migration_limit", model="m") == 2
    site.worker(engine, migration_limit=0)
    engine.breaks = [(2, Disconnected("gone"))]
    assert (site.metric("model_migration_limit", model="m"), ask(site).status_code) == (0, 500)
    site.worker(Lettered(), "other")
    assert site.metric("model_migration_limit", model="other") == 0


def test_sequences_that_are_too_long(lettered: Any) -> None:
    """Beyond `--migration-max-seq-len` a break is an error that says so; up to it, it goes on."""
    site, _ = lettered((10, Disconnected("gone")), (6, Disconnected("gone")), migration_max_seq_len=12)
    error = ask(site).json()["error"]
    assert error["message"] == f"gone; {TOO_LONG}"
    assert site.metric("model_migration_max_seq_len_exceeded_total", model="m") == 1
    assert site.metric("model_migration_duration_seconds_count", outcome="failure") == 0, "it had gone on before"
    assert site.metric("model_migration_total", migration_type="ongoing_request", model="m") == 1


def test_text_engines_do_not_migrate(make_site: Any) -> None:
    """What they were asked for can't be continued; the error says why."""
    site = make_site(migration_limit=3)

    def engine(incoming: Any) -> None:
        incoming.send(delta("half"))
        incoming.fail(Disconnected("gone"))

    site.worker(engine, model_input="text", tokenizer="none")
    answer = ask(site)
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, f"gone; {TEXT}")


def test_who_names_a_worker_does_not_migrate(lettered: Any) -> None:
    """A request to one instance is nobody else's."""
    site, engine = lettered((2, Disconnected("gone")))
    answer = ask(site, nvext={"backend_instance_id": site.instances()[0]})
    assert (answer.status_code, answer.json()["error"]["message"], len(engine.seen)) == (500, "gone", 1)


def test_a_client_that_left_has_nothing_migrated(lettered: Any, within: Any) -> None:
    """No attempt follows once the client is gone, though the worker breaks off then."""
    site, engine = lettered(*[(0, WorkerUnavailable())] * 1000)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{site.url}{COMPLETIONS}", json={"model": "m", "prompt": "hi"}, timeout=0.5)
    within("the request is over", lambda: site.metric("inflight_requests", model="m") == 0)
    assert site.metric("model_migration_duration_seconds_count", outcome="cancelled") == 1
    seen = len(engine.seen)
    assert ask(site, count=1, nvext={"backend_instance_id": site.instances()[0]}).status_code == 503
    assert len(engine.seen) == seen + 1


def test_a_loss_that_nobody_makes_good(lettered: Any) -> None:
    """Workers that all break off before they go on: one wait of the client, which ends with a failure."""
    site, _ = lettered((3, Disconnected("gone")), *[(0, Disconnected("gone"))] * 20)
    assert ask(site).status_code == 500
    assert site.metric("model_migration_duration_seconds_count", outcome="failure") == 1
    assert site.metric("model_migration_duration_seconds_count") == 1
    assert site.metric("model_migration_duration_seconds_sum") > 0
