"""etcd is full: requests go on, who comes anew waits, and is there once the operator has made room."""

from __future__ import annotations

import asyncio
import base64

import aiohttp
import httpx
import pytest
from tests.system.conftest import Frontend, Stack, eventually

from dynamo.operator.credentials.etcd_auth import EtcdAdmin, EtcdAuth

pytestmark = [
    pytest.mark.servers, pytest.mark.processes(seconds=20), pytest.mark.usefixtures("any_etcd_version"),
]  # fmt: skip
QUOTA_BYTES = 16 * 1024 * 1024
PIECE = base64.b64encode(b"x" * 1_000_000).decode()


@pytest.fixture
def small_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack's etcd is soon full."""
    monkeypatch.setenv("ETCD_QUOTA_BACKEND_BYTES", str(QUOTA_BYTES))


def put(stack: Stack, key: str, value: str = PIECE) -> int:
    """etcd's status for a write by somebody."""
    body = {"key": base64.b64encode(key.encode()).decode(), "value": value}
    return httpx.post(f"{stack.env['ETCD_ENDPOINTS']}/v3/kv/put", json=body, timeout=20).status_code


def answers(frontend: Frontend) -> bool:
    question = {"model": "m", "prompt": "a b c", "max_tokens": 3}
    return httpx.post(f"{frontend.url}/v1/completions", json=question, timeout=10).status_code == 200


def make_room(stack: Stack) -> str:
    async def main() -> str:
        async with aiohttp.ClientSession() as session, asyncio.timeout(30):
            return await EtcdAuth(session, [stack.env["ETCD_ENDPOINTS"]], EtcdAdmin("root", "x")).make_room()

    return asyncio.run(main())


def test_requests_go_on_while_etcd_is_full(small_etcd: None, stack: Stack) -> None:
    """By another namespace's keys, more than dropping its history helps against; nobody who serves is restarted."""
    frontend, worker = stack.frontend(), stack.worker()
    frontend.wait_for()
    assert any(put(stack, f"dynamo/instances/other/{n}") != 200 for n in range(40)), "etcd was never full"
    assert put(stack, "dynamo/instances/test/x", "eA==") != 200
    late = stack.worker("late")
    eventually("the late one waits", lambda: "space exceeded" in late.text())
    for _ in range(20):
        assert answers(frontend)
    assert frontend.instances() == 1
    assert "dropped its history and all registrations" in make_room(stack)
    for _ in range(20):
        assert answers(frontend)
    frontend.wait_for(instances=2)
    assert answers(frontend)
    assert make_room(stack) == ""
    for process in (frontend.process, worker, late):
        assert process.popen.poll() is None
