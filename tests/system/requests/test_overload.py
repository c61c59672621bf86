"""More than there is room for: who is refused is told when to come back, who was let in is served, nothing grows."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from typing import Any

import httpx
import pytest
from tests.system.conftest import eventually, metric

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(180)]

SLOTS = 4
ENGINE = {"max_num_seqs": SLOTS, "num_gpu_blocks": 1024, "speedup_ratio": 1.0}
ASKED: dict[str, Any] = {"model": "m", "prompt": "hello there", "max_tokens": 32, "ignore_eos": True, "stream": True}
CLIENTS = 24
EACH = 4
STALLED = 20
LONG = 60_000
"""Tokens that nobody reads: some 12 MB of events."""
BUFFER_MB = 1.0
"""`stream.BUFFER_LIMIT`, per client."""


async def flood(url: str) -> list[httpx.Response]:
    """Clients that ask again as soon as they have an answer, whatever it is."""

    async def one(api: httpx.AsyncClient) -> list[httpx.Response]:
        return [await api.post("/v1/completions", json=ASKED) for _ in range(EACH)]

    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as api:
        each = await asyncio.gather(*(one(api) for _ in range(CLIENTS)))
    return [answer for answers in each for answer in answers]


@pytest.mark.parametrize(
    ("flags", "codes"),
    [
        (["--max-requests-per-model=6"], {"model_full"}),
        (["--max-concurrent-requests=6"], {"frontend_full"}),
        (["--busy-threshold=0.005"], {"busy"}),
        (["--router-queue-threshold=0", "--router-queue-limit=3"], {"queue_full"}),
    ],
    ids=["model", "frontend", "blocks", "queue"],
)
def test_the_rest_is_refused(stack: Any, flags: list[str], codes: set[str]) -> None:
    """Every answer is whole, or a 503 with Retry-After; afterwards nothing runs, and nothing is counted twice."""
    worker = stack.worker("worker", "mocker", "--engine-args", json.dumps(ENGINE))
    frontend = stack.frontend(*flags)
    frontend.wait_for()
    answers = asyncio.run(flood(frontend.url))
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses[200] + statuses[503] == CLIENTS * EACH
    assert min(statuses[200], statuses[503]) > 0, statuses
    for answer in answers:
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) > 0
            assert answer.json()["error"]["code"] in codes
        else:
            assert answer.text.endswith("data: [DONE]\n\n")
            assert answer.text.count("data: ") == ASKED["max_tokens"] + 2  # the end and [DONE]
    own = f"http://127.0.0.1:{worker.ready_line()['system_port']}/metrics"
    eventually("the engine is free", lambda: metric(own, "vllm:num_requests_running") == 0)
    assert metric(own, "dynamo_component_requests_total") == statuses[200]
    assert frontend.metric("requests_total", error_type="overload") == statuses[503]
    eventually("nobody is counted", lambda: frontend.metric("inflight_requests") == 0)


def test_clients_that_read_nothing_are_bounded_and_cut(stack: Any) -> None:
    """Each costs its buffer at most, until it is cut off; the engine is free then."""
    engine = {"max_num_seqs": 64, "num_gpu_blocks": STALLED * LONG // 16 + 1024, "speedup_ratio": 0.0}
    worker = stack.worker("worker", "mocker", "--engine-args", json.dumps(engine), "--context-length", str(2 * LONG))
    frontend = stack.frontend("--write-timeout-secs=5")
    frontend.wait_for()
    body = json.dumps({**ASKED, "max_tokens": LONG}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    httpx.post(f"{frontend.url}/v1/completions", json=ASKED, timeout=30)
    host, port = frontend.url.removeprefix("http://").split(":")
    before, most, socks = frontend.process.rss_mb(), 0.0, []
    try:
        for _ in range(STALLED):
            socks.append(sock := socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((host, int(port)))
            sock.sendall(head % len(body) + body)

        def cut() -> bool:
            nonlocal most
            most = max(most, frontend.process.rss_mb() - before)
            limits = [frontend.metric("timeouts_total", type=name) for name in ("client_stall", "client_buffer")]
            return bool(sum(limits) + frontend.metric("timeouts_total", type="client_vanished") >= STALLED)

        eventually("all are cut", cut, 90)
    finally:
        for sock in socks:
            sock.close()
    assert most < STALLED * 2 * BUFFER_MB + 16, most
    own = f"http://127.0.0.1:{worker.ready_line()['system_port']}/metrics"
    eventually("the engine is free", lambda: metric(own, "vllm:num_requests_running") == 0)
    eventually("nobody is counted", lambda: frontend.metric("inflight_requests") == 0)
