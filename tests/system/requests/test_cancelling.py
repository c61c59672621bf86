"""Clients that leave in mid-stream free what they had, a thousand times in a row; nothing is left of them anywhere."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import httpx
import pytest
from tests.system.conftest import eventually, metric

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(300)]

TIMES = 1000
PROMPT = "The quick brown fox jumps over the lazy dog. " * 4
ENGINE = {"max_num_seqs": 1, "num_gpu_blocks": 64, "block_size": 16, "speedup_ratio": 2.0}
"""One slot, and blocks for less than two whole requests: who comes next has only what the one before gave back."""
BODY = json.dumps({"model": "m", "prompt": PROMPT, "max_tokens": 600, "ignore_eos": True, "stream": True}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
SLACK_MB = 8.0


def give_up(url: str) -> None:
    """Ask, read the first token, leave."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(HEAD % len(BODY) + BODY)
        seen = b""
        while b'"text":"' not in seen:
            piece = sock.recv(65536)
            assert piece, seen
            seen += piece
        assert seen.startswith(b"HTTP/1.1 200 ")


def test_a_thousand_clients_leave(stack: Any) -> None:
    """Slot, blocks, connections, subscriptions and memory are as before."""
    worker = stack.worker("worker", "mocker", "--engine-args", json.dumps(ENGINE))
    frontend = stack.frontend()
    frontend.wait_for()
    own = f"http://127.0.0.1:{worker.ready_line()['system_port']}/metrics"
    processes = (frontend.process, worker, stack.nats)

    def engine() -> list[float]:
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return [metric(own, f"vllm:{name}") for name in names] + [metric(own, "dynamo_component_inflight_requests")]

    def subscriptions() -> int:
        return int(httpx.get(f"http://127.0.0.1:{stack.nats_http}/varz", timeout=5).json()["subscriptions"])

    def opened() -> list[int]:
        return [*(process.open_files() for process in processes), subscriptions()]

    def settled() -> list[int] | None:
        """What is open, if a second does not change it: a client's socket closes a moment after its slot is free."""
        once = opened()
        for _ in range(10):
            time.sleep(0.1)
            if opened() != once:
                return None
        return once

    def idle() -> bool:
        return engine() == [0, 0, 0, 0] and frontend.metric("inflight_requests", model="m") == 0

    for _ in range(TIMES // 10):
        give_up(frontend.url)
    eventually("all is free", idle)
    before = eventually("what is open stays", settled)
    memory = [process.rss_mb() for process in processes]
    for _ in range(TIMES):
        give_up(frontend.url)
    eventually("all is free", idle)
    eventually("nothing is open", lambda: opened() == before)
    grown = [process.rss_mb() - was for process, was in zip(processes, memory, strict=True)]
    assert max(grown) < SLACK_MB, grown
    assert frontend.metric("model_cancellation_total", model="m") == TIMES + TIMES // 10
    assert metric(own, "dynamo_component_cancellation_total") > TIMES // 2
    done = httpx.post(f"{frontend.url}/v1/completions", json={**json.loads(BODY), "stream": False}, timeout=60)
    assert done.json()["usage"]["completion_tokens"] == 600
