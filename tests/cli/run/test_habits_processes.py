"""Whole processes, as NVIDIA Dynamo's pages start them: network names, several models, load_metrics, the console."""

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.environments import quick_environment
from tests.processes import DYNAMO, RUN, Process
from tests.waiting import eventually

from dynamo.runtime import DistributedRuntime, EtcdConfig, NatsConfig, RuntimeConfig

pytestmark = pytest.mark.processes


async def load(env: dict[str, str], path: str) -> Any:
    """What the endpoint of a worker answers to a program of ours."""
    config = RuntimeConfig(EtcdConfig((env["ETCD_ENDPOINTS"],)), NatsConfig((env["NATS_SERVER"],)))
    async with await DistributedRuntime.create(config) as runtime:
        client = await runtime.endpoint(path).client()
        async with asyncio.timeout(60):
            await client.wait_for_instances()
            return [item async for item in await client.generate({}, annotated=False)]


def talks(client: openai.OpenAI, model: str) -> str:
    made = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=20)
    return str(made.choices[0].message.content)


@pytest.mark.servers
@pytest.mark.timeout(300)
def test_network_names(servers: dict[str, str], tmp_path: Path) -> None:
    """Two models in pipelines of their own, a second component in one of them, by lines of three ages; one frontend."""
    lines = {
        "qwen": [*RUN, "in=dyn://qwen3-32b.backend.generate", "out=echo", "--model-name", "qwen"],
        "mock": [
            sys.executable, "-m", "dynamo.mocker", "--endpoint", "dyn://llama3-1-8b.backend.generate", "--model-name",
            "llama", "--speedup-ratio", "0", "--store-kv", "etcd",
        ],
        "draft": [*RUN, "in=dyn://llama3-1-8b.draft.generate", "out=echo_full", "--model-name", "draft"],
    }  # fmt: skip
    front = [*RUN, "in=http", "out=auto", "--http-port", "0"]
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(Process(name, argv, tmp_path, servers)) for name, argv in lines.items()]
        asked = stack.enter_context(Process("front", front, tmp_path, servers))
        for process in started:
            process.ready_line()
        client = stack.enter_context(openai.OpenAI(base_url=f"{asked.ready_line()['url']}/v1", api_key="x", timeout=60))
        eventually(
            "all models are listed", lambda: {model.id for model in client.models.list()} == {"qwen", "llama", "draft"}
        )
        assert (talks(client, "qwen"), talks(client, "draft")) == ("hi", "hi")
        assert talks(client, "llama")
        assert "note: --store-kv is now --discovery-backend etcd" in (tmp_path / "mock.log").read_text()
        (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
        batch = [*RUN, f"in=batch:{tmp_path}/in.jsonl", "out=dyn", "--model-name", "qwen", "--batch-ordered"]
        done = subprocess.run(batch, env=servers, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr
        written = (tmp_path / "output.jsonl").read_text().splitlines()
        assert [json.loads(line)["response"] for line in written] == ["one", "two"]
        answers = asyncio.run(load(servers, "qwen3-32b.backend.load_metrics"))
        assert answers[0]["worker_stats"]["num_requests_waiting"] == 0


@pytest.mark.timeout(200)
def test_the_console_shows_a_server(tmp_path: Path) -> None:
    """`dynamo tasks` finds the one process that has one, and lists its tasks; without one it says how to get it."""
    look = [*DYNAMO, "tasks"]
    env = quick_environment(tmp_path)

    def asked(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*look, *words], env=env, capture_output=True, text=True, timeout=90, check=False)

    nobody = asked()
    assert (nobody.returncode, nobody.stderr.count("\n")) == (1, 1)
    assert "DYN_CONSOLE=1" in nobody.stderr
    argv = [*RUN, "in=http", "out=echo", "--http-port", "0"]
    with Process("server", argv, tmp_path, {**env, "DYN_CONSOLE": "1"}) as server:
        url = server.ready_line()["url"]
        by_engine = httpx.get(f"{url}/v1/models/echo_full", timeout=10).json()
        assert by_engine["id"] == "bytes"  # the model that it made up has the engine's name, too
        lines = asked("--json").stdout.splitlines()
        document = json.loads(lines[-1])
        assert document["pid"] == server.popen.pid
        assert all(task["since"] >= 0 and task["where"] for task in document["tasks"])
        shown = asked(str(server.popen.pid), "--stack").stdout
        assert shown.startswith(f"process {server.popen.pid}")
        assert "WAITS FOR" in shown
    assert not list((tmp_path / "dynamo").glob("*.sock"))
