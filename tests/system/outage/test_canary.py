"""A worker whose engine hangs, while its process is well: the canary takes it out of routing."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.servers]

CANARY = {
    "DYN_HEALTH_CHECK_ENABLED": "true", "DYN_CANARY_WAIT_TIME": "0.5", "DYN_HEALTH_CHECK_REQUEST_TIMEOUT": "2",
}  # fmt: skip


def test_nothing_is_sent_to_an_engine_that_hangs(stack: Any, within: Any) -> None:
    """Its `/health` is 503 and says why, the frontend knows only the other one, which is asked as well and stays."""
    started = [
        stack.worker("well", DYN_TOKEN_ECHO_DELAY_MS="5", **CANARY),
        stack.worker("hangs", DYN_TOKEN_ECHO_DELAY_MS="3600000", **CANARY),
    ]
    well, hangs = (worker.ready_line() for worker in started)
    frontend = stack.frontend()
    health = f"http://127.0.0.1:{hangs['system_port']}/health"
    frontend.wait_for()
    within("it says that it doesn't answer", lambda: httpx.get(health, timeout=5).status_code == 503)
    assert "did not answer a health check within 2 s" in httpx.get(health, timeout=5).json()["reasons"][0]

    def routed() -> list[int]:
        return [model["instance_id"] for model in httpx.get(f"{frontend.url}/health", timeout=5).json()["instances"]]

    within("only the other one is routed to", lambda: routed() == [well["instance"]])
    for _ in range(4):
        answer = httpx.post(f"{frontend.url}/v1/completions", json={"model": "m", "prompt": "hi"}, timeout=20)
        assert answer.json()["choices"][0]["text"] == "hi"
    assert httpx.get(f"http://127.0.0.1:{well['system_port']}/health", timeout=5).status_code == 200
