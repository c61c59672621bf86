"""`GET /requests/ID`: stages of requests of every kind, for whom they are, and `dynamo explain` over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from click.testing import CliRunner, Result
from tests.frontend.conftest import Echo, Site
from tests.frontend.routes.test_embeddings import Lengths
from tests.waiting import eventually

from dynamo.cli.main import dynamo
from dynamo.runtime.errors import EngineShutdown
from dynamo.runtime.request_plane.server import Incoming

CHAT = {"model": "m", "messages": [{"role": "user", "content": "a b c"}], "max_tokens": 3}
WORST_ID = "a/b?c=d#e%2f\\\"'<{["


def explained(site: Site, request_id: str, **options: Any) -> dict[str, Any]:
    answer = httpx.get(f"{site.url}/requests/{quote(request_id, safe='')}", **options)
    assert answer.status_code == 200, answer.text
    fields: dict[str, Any] = answer.json()
    return fields


def ask(site: Site, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    return site.post(path, body, headers=headers)


@pytest.mark.parametrize("stream", [False, True])
def test_stages_add_up_to_what_the_client_saw(served: Site, stream: bool) -> None:
    """Within 5 ms, where nothing holds the machine up; the id is the answer's."""
    differences: list[float] = []
    with httpx.Client(timeout=20) as client:
        for _ in range(10):
            began = time.perf_counter()
            answer = client.post(f"{served.url}/v1/chat/completions", json={**CHAT, "stream": stream})
            took_ms = (time.perf_counter() - began) * 1000
            differences.append(abs(explained(served, answer.headers["x-request-id"])["took_ms"] - took_ms))
    assert min(differences) < 5, differences
    fields = explained(served, answer.headers["x-request-id"])
    assert (fields["status"], fields["error"], fields["stream"], fields["model"]) == (200, "", stream, "m")
    assert [stage["name"] for stage in fields["stages"]] == ["receive", "tokenize", "route", "prefill", "generate"]
    assert abs(sum(stage["took_ms"] for stage in fields["stages"]) - fields["took_ms"]) < 0.05
    assert 0 < fields["ttft_ms"] <= fields["took_ms"]
    assert fields["output_tokens"] == 3
    assert abs(fields["received"] - time.time()) < 60
    assert f"{served.workers[0].id:014x}" in fields["stages"][3]["what"]


def test_each_kind_of_request(served: Site, site: Site) -> None:
    """Refused ones, those without a model, ids of the worst; the latest of an id."""
    refused = ask(served, {**CHAT, "temperature": "hot"}, **{"x-request-id": WORST_ID})
    assert refused.status_code == 400
    fields = explained(served, WORST_ID)
    assert (fields["status"], [stage["name"] for stage in fields["stages"]]) == (400, ["receive"])
    ask(served, CHAT, **{"x-request-id": WORST_ID})
    assert explained(served, WORST_ID)["status"] == 200
    unknown = ask(served, {**CHAT, "model": "nobody"})
    assert explained(served, unknown.headers["x-request-id"])["status"] == 404
    completion = ask(served, {"model": "m", "prompt": "a", "max_tokens": 2, "n": 4}, "/v1/completions")
    fields = explained(served, completion.headers["x-request-id"])
    assert (fields["endpoint"], fields["output_tokens"]) == ("completions", 8)
    missing = httpx.get(f"{served.url}/requests/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "request_not_found")
    assert httpx.get(f"{served.url}/requests/").json() == {"running": []}


def refuse(incoming: Incoming) -> None:
    incoming.fail(EngineShutdown("it leaves"))


def test_a_worker_that_refuses_and_vectors(site: Site) -> None:
    """Both attempts are stages, with the reason; vectors have a stage of their own."""
    refusing = site.worker(refuse)
    serving = site.worker(Echo())
    retried = []
    for _ in range(2):  # one of them is sent to either worker first
        answer = ask(site, CHAT)
        assert answer.status_code == 200
        stages = explained(site, answer.headers["x-request-id"])["stages"]
        retried += [stages] if "retry" in [stage["name"] for stage in stages] else []
    (stages,) = retried
    assert [stage["name"] for stage in stages][3:] == ["prefill", "retry", "prefill", "generate"]
    assert (f"{refusing.id:014x}" in stages[3]["what"], "it leaves" in stages[4]["what"]) == (True, True)
    assert f"{serving.id:014x}" in stages[5]["what"]
    site.worker(Lengths(), "v", model_types=["embedding"], context_length=8)
    answer = ask(site, {"model": "v", "input": "abcd"}, "/v1/embeddings")
    fields = explained(site, answer.headers["x-request-id"])
    assert (fields["stages"][-1]["name"], fields["prompt_tokens"]) == ("embed", 4)


def test_a_wait_for_room_is_a_stage_and_adds_up(make_site: Callable[..., Site]) -> None:
    """The stages are what the client saw, wait included, within 5 ms where nothing holds the machine up."""
    site = make_site(router_mode="kv", router_queue_threshold=0.0)
    engine, differences = Echo(), []

    async def hold() -> None:
        engine.hold = asyncio.Event()

    site.worker(engine, figures={"max_num_batched_tokens": 64})
    with httpx.Client(timeout=20) as client, ThreadPoolExecutor(2) as pool:

        def timed() -> tuple[httpx.Response, float]:
            began = time.perf_counter()
            answer = client.post(f"{site.url}/v1/chat/completions", json=CHAT)
            return answer, (time.perf_counter() - began) * 1000

        client.get(f"{site.url}/live")
        for _ in range(8):
            site.run(hold())
            running = pool.submit(ask, site, CHAT)
            eventually("one runs", lambda: engine.running == 1, 10)
            waiting = pool.submit(timed)
            eventually("one waits", lambda: site.metric("router_queue_pending_requests") == 1, 10)
            assert engine.hold is not None
            site.call(engine.hold.set)
            answer, took_ms = waiting.result(20)
            running.result(20)
            stages = explained(site, answer.headers["x-request-id"])["stages"]
            differences.append(abs(sum(stage["took_ms"] for stage in stages) - took_ms))
            names = [stage["name"] for stage in stages]
            assert names == ["receive", "tokenize", "queue", "route", "prefill", "generate"]
            assert stages[2]["took_ms"] > stages[3]["took_ms"]
    assert min(differences) < 5, differences


def explain(*words: str) -> Result:
    return CliRunner().invoke(dynamo, ["explain", *words])


def test_the_command(served: Site) -> None:
    """A table in 80 columns, JSON, and what to do where it is not found."""
    ask(served, {**CHAT, "stream": True}, **{"x-request-id": WORST_ID})
    done = explain(WORST_ID, served.url)
    assert done.exit_code == 0, done.output
    assert "chat_completions of m: 200" in done.output
    assert "prefill" in done.output
    assert all(len(line) <= 80 for line in done.output.splitlines()), done.output
    assert json.loads(explain(WORST_ID, f"{served.url}/v1", "-o", "json").output)["id"] == WORST_ID
    missing = explain("none", served.url)
    assert (missing.exit_code, "ten minutes" in missing.output) == (1, True)
    assert "no answer from" in explain("none", "http://127.0.0.1:9").output


def test_keys_see_their_own(make_site: Callable[..., Site], tmp_path: Path) -> None:
    """Another key's request is as unknown as one that never was; so is any without a key."""
    (tmp_path / "keys").write_text("mine-000000000000\nanother-000000000\n")
    site = make_site(api_keys_file=str(tmp_path / "keys"))
    site.worker(Echo(), wait=False)
    mine, other = ({"authorization": f"Bearer {key}"} for key in ("mine-000000000000", "another-000000000"))
    deadline = time.monotonic() + 10
    while (answer := ask(site, CHAT, **mine)).status_code != 200:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.05)
    path = f"{site.url}/requests/{answer.headers['x-request-id']}"
    assert httpx.get(path, headers=mine).status_code == 200
    assert httpx.get(path, headers=other).json() == httpx.get(f"{site.url}/requests/x", headers=other).json()
    assert httpx.get(path).status_code == 401
    assert httpx.get(f"{site.url}/requests").status_code == 401


def test_none_are_kept(make_site: Callable[..., Site]) -> None:
    """`--request-log-size 0`, and where system routes are private."""
    for settings in ({"request_log_size": 0}, {"public_system_routes": False}):
        site = make_site(**settings)
        site.worker(Echo(), wait=False)
        answer = ask(site, CHAT)
        assert httpx.get(f"{site.url}/requests/{answer.headers['x-request-id']}").status_code == 404


def test_a_request_under_way_is_where_it_is_now(site: Site) -> None:
    """The worker that has it, since when, and the tokens so far; listed until it ends, then explained as ever."""
    engine = Echo()

    async def hold() -> None:
        engine.hold = asyncio.Event()

    site.run(hold())
    worker = site.worker(engine)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, site, CHAT, **{"x-request-id": "now"})
        eventually("it runs", lambda: engine.running == 1, 10)
        listed = httpx.get(f"{site.url}/requests").json()["running"]
        fields, said = explained(site, "now"), explain("now", site.url).output
        assert engine.hold is not None
        site.call(engine.hold.set)
        assert answer.result(20).status_code == 200
    assert [request["id"] for request in listed] == ["now"]
    assert (fields["status"], fields["output_tokens"], fields["ttft_ms"]) == (0, 0, None)
    assert (fields["stages"][-1]["name"], f"{worker.id:014x}" in fields["stages"][-1]["what"]) == ("prefill", True)
    assert ("under way" in said, "now prefill for " in said, "tokens so far" in said) == (True, True, True)
    assert explained(site, "now")["status"] == 200
    assert httpx.get(f"{site.url}/requests").json() == {"running": []}
