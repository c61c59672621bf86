"""What users see when parts die: the bars of the skeleton, on real processes and real servers."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import httpx
import openai
import pytest
from tests.system.outage.traffic import Answer, traffic
from tests.waiting import until

from dynamo.runtime import EtcdConfig
from dynamo.runtime.discovery.etcd import EtcdStore
from dynamo.runtime.names import instance_prefix

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(180)]

PROMPT = "The quick brown fox jumps over the lazy dog. " * 8


def client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60)


async def stream(api: openai.AsyncOpenAI, prompt: str, begun: list[str] | None = None) -> str:
    """The text of one streamed completion, in `begun` once it has some; the SDK raises on an error event."""
    text = ""
    opened = await api.completions.create(model="m", prompt=prompt, max_tokens=2000, stream=True)
    async for chunk in opened:
        if begun is not None and not text:
            begun.append(prompt)
        text += chunk.choices[0].text if chunk.choices else ""
    return text


async def outcome(api: openai.AsyncOpenAI, prompt: str, begun: list[str] | None = None) -> tuple[str, float]:
    """`(text or error class, seconds)`; in `begun` from its first word."""
    began = time.monotonic()
    try:
        return await stream(api, prompt, begun), time.monotonic() - began
    except openai.OpenAIError as error:
        return type(error).__name__, time.monotonic() - began


async def test_500_streams_are_exact(stack: Any) -> None:
    """500 streams at once through one frontend all end with exactly their own text."""
    stack.worker(DYN_TOKEN_ECHO_DELAY_MS="20")
    frontend = stack.frontend()
    frontend.process.ready_line()
    frontend.wait_for()

    answers = [Answer(f"stream {i} " + PROMPT[: 60 + i % 40]) for i in range(500)]
    async with traffic(frontend.url) as clients:
        await asyncio.gather(*map(clients.ask, answers))
    assert [answer.text for answer in answers] == [answer.prompt for answer in answers]
    assert all(answer.exact for answer in answers)


def test_killed_worker_ends_only_its_streams(stack: Any) -> None:
    """SIGKILL of a worker ends its streams in one clean error within 2 s; the other's run on; it comes back."""
    workers = [stack.worker(f"worker-{i}", DYN_TOKEN_ECHO_DELAY_MS="10") for i in range(2)]
    frontend = stack.frontend()
    frontend.wait_for(instances=2)

    async def run() -> None:
        api = client(frontend.url)
        begun: list[str] = []
        tasks = [asyncio.create_task(outcome(api, f"{i} {PROMPT}", begun)) for i in range(8)]
        await until("all have begun", lambda: len(begun) == 8, 30)
        began = time.monotonic()
        workers[0].kill()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert time.monotonic() - began < 2
        results = [(await t)[0] for t in tasks]
        failed = [r for r in results if not r.endswith(PROMPT)]
        assert 0 < len(failed) < 8, results
        assert set(failed) <= {"APIError", "InternalServerError"}, failed
        assert (await outcome(api, "afterwards"))[0] == "afterwards"
        await api.close()

    asyncio.run(run())
    workers[0].restart()
    frontend.wait_for(instances=2)


async def registered(stack: Any) -> None:
    """Return when an instance is known to etcd."""
    store = EtcdStore(EtcdConfig(endpoints=tuple(stack.etcd_endpoints)))
    await store.connect()
    try:
        async with asyncio.timeout(30):
            while not (await store.read(instance_prefix(None))).entries:  # noqa: ASYNC110 - another process writes them
                await asyncio.sleep(0.05)
    finally:
        await store.close()


def test_etcd_restarted_empty_fails_no_request(stack: Any) -> None:
    """etcd killed and started again empty: every request succeeds meanwhile, and the worker registers again."""
    stack.worker(DYN_TOKEN_ECHO_DELAY_MS="1")
    frontend = stack.frontend()
    frontend.wait_for()

    async def run() -> None:
        api = client(frontend.url)
        stop = asyncio.Event()
        results: list[str] = []

        async def one_after_the_other() -> None:
            while not stop.is_set():
                results.append((await outcome(api, PROMPT))[0])

        async def more(count: int) -> None:
            wanted = len(results) + count
            await until("requests are answered", lambda: len(results) >= wanted, 60)

        running = [asyncio.create_task(one_after_the_other()) for _ in range(4)]
        await more(4)
        stack.etcd.kill()
        await more(24)
        stack.start_etcd()
        await registered(stack)
        await more(24)
        stop.set()
        await asyncio.gather(*running)
        await api.close()
        assert set(results) == {PROMPT}

    asyncio.run(run())
    second = stack.frontend(name="frontend-2")
    second.wait_for()
    assert second.models() == ["m"], "the worker did not register again"


async def test_nats_restart_is_survived(stack: Any) -> None:
    """NATS killed and restarted: what was open ends in text or one error, what comes later succeeds."""
    stack.worker(DYN_TOKEN_ECHO_DELAY_MS="5")
    frontend = stack.frontend()
    frontend.wait_for()

    api = client(frontend.url)
    begun: list[str] = []
    before = [asyncio.create_task(outcome(api, f"{i} {PROMPT}", begun)) for i in range(4)]
    await until("all have begun", lambda: len(begun) == 4, 30)
    await asyncio.to_thread(stack.nats.restart)
    during = asyncio.create_task(outcome(api, "during"))
    for task in before:
        text, seconds = await asyncio.wait_for(task, 20)
        assert text.endswith(PROMPT) or text in {"APIError", "InternalServerError"}
        assert seconds < 15
    await asyncio.wait_for(during, 20)
    deadline = time.monotonic() + 15
    while (await outcome(api, "afterwards"))[0] != "afterwards":
        assert time.monotonic() < deadline
    assert [(await outcome(api, f"late {i}"))[0] for i in range(5)] == [f"late {i}" for i in range(5)]
    await api.close()


def test_sigterm_of_a_worker_loses_nothing(stack: Any) -> None:
    """A worker that is told to stop finishes its streams; new requests go to the other one."""
    workers = [stack.worker(f"worker-{i}", DYN_TOKEN_ECHO_DELAY_MS="5") for i in range(2)]
    frontend = stack.frontend()
    frontend.wait_for(instances=2)

    async def run() -> None:
        api = client(frontend.url)
        begun: list[str] = []
        tasks = [asyncio.create_task(outcome(api, f"{i} {PROMPT}", begun)) for i in range(8)]
        await until("all have begun", lambda: len(begun) == 8, 30)
        workers[0].signal(signal.SIGTERM)
        tasks += [asyncio.create_task(outcome(api, f"new {i} {PROMPT}")) for i in range(8)]
        results = [(await t)[0] for t in tasks]
        assert all(r.endswith(PROMPT) for r in results), results
        await api.close()

    asyncio.run(run())
    assert workers[0].popen.wait(20) == 0


def test_two_frontends_and_late_ones_serve_alike(stack: Any) -> None:
    """A frontend that starts late serves what an earlier one serves, without a model on its disk."""
    stack.worker()
    first = stack.frontend()
    first.wait_for()
    second = stack.frontend(name="second")
    second.wait_for()
    for frontend in (first, second):
        answer = httpx.post(f"{frontend.url}/v1/completions", json={"model": "m", "prompt": "hello", "max_tokens": 99})
        assert answer.json()["choices"][0]["text"] == "hello"


def test_frontend_workers_share_a_port(stack: Any) -> None:
    """`--workers 2` serves on one port from two processes, health and metrics on a second port."""
    stack.worker()
    frontend = stack.frontend("--workers", "2", "--system-port", "0")
    ready = frontend.process.ready_line()
    frontend.wait_for()
    for _ in range(20):
        answer = httpx.post(f"{frontend.url}/v1/completions", json={"model": "m", "prompt": "hi", "max_tokens": 9})
        assert answer.json()["choices"][0]["text"] == "hi"
    system = ready["system_url"]
    assert httpx.get(f"{system}/health").status_code == 200
    metrics = httpx.get(f"{system}/metrics").text
    counted = [x for x in metrics.splitlines() if x.startswith("dynamo_frontend_requests_total{")]
    assert sum(float(x.rsplit(" ", 1)[1]) for x in counted) == 20
    assert frontend.process.stop() == 0
