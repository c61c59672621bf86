"""However requests end, nothing stays counted: not in the queue, not on a worker, not in a session."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from dynamo.frontend import models
from dynamo.frontend.affinity import Sessions
from dynamo.frontend.model_set import ModelSet

MODES: list[dict[str, Any]] = [{"router_mode": "power-of-two"}, {"router_mode": "kv", "use_kv_events": False}]
REQUESTS = 120


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[ModelSet]:
    """Every set that a frontend makes from now on."""
    made: list[ModelSet] = []

    class Recorded(ModelSet):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(models, "ModelSet", Recorded)
    return made


async def one(url: str, body: dict[str, Any], session: str, patience: float) -> int:
    """Its status; 0 where the client had no patience."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-dynamo-session-id: {session}\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)
    try:
        async with asyncio.timeout(patience):
            answer = await reader.read(-1)
        return int(answer.split(b" ")[1])
    except TimeoutError:
        return 0
    finally:
        writer.close()


async def many(url: str, random: Random) -> list[int]:
    asked = []
    for number in range(REQUESTS):
        body = {
            "model": "m", "prompt": f"{number:3} " + "x" * random.randrange(1, 200),
            "max_tokens": random.randrange(1, 8),
            "stream": random.random() < 0.5, "n": random.choice([1, 1, 3]),
            "nvext": {"agent_hints": {"priority": random.randrange(3)}},
        }  # fmt: skip
        patience = random.choice([0.01, 0.05, 0.2, 30.0, 30.0, 30.0])
        asked.append(asyncio.create_task(one(url, body, f"s{number % 7}", patience)))
        await asyncio.sleep(random.random() * 0.01)
    return await asyncio.gather(*asked)


@pytest.mark.parametrize("mode", MODES, ids=["power-of-two", "kv"])
def test_whole_given_up_refused_and_waiting_ones(
    make_site: Any, engines: Any, within: Any, monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any]
) -> None:
    """Two slow workers, a queue of 20, clients without patience: every end there is, at once."""
    sets = recorded(monkeypatch)
    site = make_site(
        **mode, router_queue_threshold=1.0, router_queue_limit=20, router_queue_timeout_secs=3.0,
        active_decode_blocks_threshold=0.9, router_session_affinity_ttl_secs=1,
    )  # fmt: skip
    for _ in range(2):
        figures = {"total_kv_blocks": 200, "max_num_batched_tokens": 100, "max_num_seqs": 8}
        site.worker(engines(delay=0.005), figures=figures, kv_cache_block_size=8)
    found = asyncio.run(many(site.url, Random(7)))
    assert set(found) <= {0, 200, 503}
    assert found.count(200) > REQUESTS // 10
    (only,) = sets
    gate, sessions = only.gate, only.sessions
    assert gate is not None
    assert isinstance(sessions, Sessions)
    within("nobody waits", lambda: len(gate) == 0)
    within("nothing runs", lambda: not any(seat.open_streams for seat in only.seats.values()))
    assert [(load.prefill_tokens, load.blocks) for load in only.loads()] == [(0, 0)] * 2
    assert not any(binding.running for binding in sessions._bindings.values())
    pending = [site.metric(f"router_queue_pending_{what}", model="m") for what in ("requests", "isl_tokens")]
    assert (pending, site.metric("inflight_requests", model="m")) == ([0, 0], 0)
    assert site.metric("router_queue_wait_seconds_count", model="m") > 0
