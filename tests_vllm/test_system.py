"""Whole processes with a real vLLM in them: one line that serves, a worker behind a frontend, and what stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.waiting import eventually
from tests.worker.engine_rigs import PROMPT, VLLM, Rig
from tests_vllm.programs import PATIENCE, RUN, WORKER, client, gone, running
from tests_vllm.test_engine import PROMPTS, directly

pytestmark = [pytest.mark.servers, pytest.mark.processes]
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 16, "temperature": 0, "extra_body": {"ignore_eos": True}}
LONG: dict[str, Any] = {**ASKED, "prompt": PROMPT, "max_tokens": 300, "stream": True}
SHORT: dict[str, Any] = {**LONG, "max_tokens": 60, "stream_options": {"include_usage": True}}
"""It ends within the five seconds that a `dynamo-run` gives to its streams."""


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    file = tmp_path / "vllm.json"
    file.write_text(VLLM)
    return ["--extra-engine-args", str(file)]


def whole(asker: openai.OpenAI, prompt: str) -> str:
    answer = asker.completions.create(**ASKED, prompt=prompt)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    text: str = answer.choices[0].text
    return text


def streamed(asker: openai.OpenAI, prompt: str) -> str:
    parts = asker.completions.create(**ASKED, prompt=prompt, stream=True)
    return "".join(part.choices[0].text for part in parts if part.choices)


def check_metrics(page: str) -> None:
    """vLLM's as vLLM keeps them, and ours; each name once."""
    kinds = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    assert {
        "vllm:num_requests_running", "vllm:time_to_first_token_seconds", "vllm:generation_tokens_total",
        "vllm:prefix_cache_queries_total", "vllm:gpu_cache_usage_perc", "dynamo_component_requests_total",
    } <= set(kinds)  # fmt: skip
    assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"}' in page
    assert "python_info" not in page


def test_one_line_serves(run: Any, tiny: Path, tmp_path: Path, arguments: list[str]) -> None:
    """`dynamo-run in=http out=vllm FOLDER`: sixteen greedy answers at once, streamed and not, are vLLM's own; after
    Ctrl-C in its terminal a stream ends whole, and nothing stays."""
    texts: list[str] = []

    async def body(rig: Rig) -> None:
        told = [await directly(rig, prompt, 16, ignore_eos=True) for prompt in PROMPTS]
        texts.extend(one.outputs[0].text for one in told)

    run(body)
    with running(tmp_path, RUN, ["in=http", "out=vllm", str(tiny), "--http-port", "0", *arguments]) as program:
        asker = client(program.ready()["url"])
        with ThreadPoolExecutor(2 * len(PROMPTS)) as threads:
            answers = [threads.submit(kind, asker, prompt) for kind in (whole, streamed) for prompt in PROMPTS]
        found = [answer.result().rstrip("\N{REPLACEMENT CHARACTER}") for answer in answers]
        assert found == texts * 2
        chat = asker.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4, logprobs=True, top_logprobs=2
        )
        assert chat.choices[0].logprobs is not None
        children = program.children()
        parts: Iterator[Any] = iter(asker.completions.create(**SHORT))
        next(parts)
        os.killpg(program.popen.pid, signal.SIGINT)
        *_, last = parts
        assert last.usage.completion_tokens == SHORT["max_tokens"]
        assert program.popen.wait(120) in (0, 130)
        eventually("nothing stays", lambda: gone(children))
        assert "Traceback" not in program.log.read_text()


def test_a_worker_of_a_larger_system(
    tiny: Path, tmp_path: Path, arguments: list[str], etcd_server: EtcdServer, nats_server: NatsServer
) -> None:
    """Routed by its KV events over etcd and NATS; a client that leaves frees its place; when its core is killed the
    worker leaves and says why."""
    env = {"ETCD_ENDPOINTS": etcd_server.url, "NATS_SERVER": nats_server.url}
    frontend = ["in=http", "out=dyn://v.backend.generate", "--http-port", "0", "--router-mode", "kv"]
    worker = [
        "--engine", "vllm", "--model-path", str(tiny), "--endpoint", "dyn://v.backend.generate", "--system-port", "0",
        *arguments,
    ]  # fmt: skip
    with (
        running(tmp_path, RUN, frontend, **env) as front,
        running(tmp_path, WORKER, worker, **env) as work,
    ):
        url = front.ready()["url"]
        said = work.ready()
        asker = client(url)
        eventually("the model is served", lambda: asker.models.list().data)

        def cached() -> int:
            usage = asker.completions.create(model="tiny", prompt=PROMPT * 4, max_tokens=2).usage
            assert usage is not None
            details = usage.prompt_tokens_details
            return (details.cached_tokens or 0) if details is not None else 0

        eventually("the prompt is cached", cached)

        def page() -> str:
            return httpx.get(f"http://127.0.0.1:{said['system_port']}/metrics").text

        check_metrics(page())
        with asker.completions.create(**LONG) as parts:
            next(iter(parts))
        eventually("its place is free", lambda: 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in page())
        core, children = work.core(), work.children()
        assert core is not None
        core.kill()
        assert work.popen.wait(120) == 1
        assert "vLLM's core process has ended (EngineCore, SIGKILL)" in work.log.read_text()
        eventually("the model is gone", lambda: not asker.models.list().data)
        eventually("nothing stays", lambda: gone(children))


@pytest.mark.parametrize("when", ["loading", "ready"])
def test_nothing_outlives_a_killed_worker(tiny: Path, tmp_path: Path, arguments: list[str], when: str) -> None:
    """Neither vLLM's core nor its workers, whether they were at work or just came to life."""
    worker = ["--engine", "vllm", "--model-path", str(tiny), "--discovery-backend", "mem", *arguments]
    with running(tmp_path, WORKER, worker) as program:
        if when == "ready":
            program.ready()
        eventually("a process of vLLM", lambda: len(program.children()) > 1, PATIENCE)
        children = program.children()
        program.popen.kill()
        eventually("nothing stays", lambda: gone(children), PATIENCE)
