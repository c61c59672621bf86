"""Whole processes, as NVIDIA Dynamo's pages start them: network names, several models, load_metrics, the console."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.waiting import eventually

from dynamo.runtime import DistributedRuntime, EtcdConfig, NatsConfig, RuntimeConfig

RUN = [sys.executable, "-m", "dynamo.cli.run"]
pytestmark = pytest.mark.processes


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The process's, with folders of the test's own and no server named."""
    names = ("ETCD_ENDPOINTS", "NATS_SERVER", "DYN_LOG", "DYN_CONSOLE")
    plain = {name: value for name, value in os.environ.items() if name not in names}
    folders = {"XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    return {**plain, **folders, "DYN_TOKEN_ECHO_DELAY_MS": "0", **more}


@contextlib.contextmanager
def running(argv: list[str], log: Path, env: dict[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process that is gone afterwards."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env)
    try:
        yield process, log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def ready(started: tuple[subprocess.Popen[bytes], Path]) -> dict[str, Any]:
    """What a process's ready line says."""
    process, log = started

    def look() -> str:
        text = log.read_text()
        assert process.poll() is None, text
        return next((line for line in text.splitlines() if line.startswith("ready {")), "")

    return dict(json.loads(str(eventually(f"a ready line in {log}", look)).removeprefix("ready ")))


def addresses(count: int) -> list[str]:
    """Ports that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment that names an etcd and a NATS of the test's own."""
    bin_folder = Path(sys.executable).parent
    etcd, peer, nats = addresses(3)
    host, _, port = nats.partition(":")
    etcd_argv = [
        str(bin_folder / "etcd"), "--data-dir", str(tmp_path / "etcd"), "--log-level", "error",
        "--listen-client-urls", f"http://{etcd}", "--advertise-client-urls", f"http://{etcd}",
        "--listen-peer-urls", f"http://{peer}", "--initial-advertise-peer-urls", f"http://{peer}",
        "--initial-cluster", f"default=http://{peer}", "--unsafe-no-fsync",
    ]  # fmt: skip
    nats_argv = [str(bin_folder / "nats-server"), "-a", host, "-p", port]
    env = environment(tmp_path)
    with running(etcd_argv, tmp_path / "etcd.log", env), running(nats_argv, tmp_path / "nats.log", env):
        yield environment(tmp_path, ETCD_ENDPOINTS=f"http://{etcd}", NATS_SERVER=f"nats://{nats}")


async def load(env: dict[str, str], path: str) -> Any:
    """What the endpoint of a worker answers to a program of ours."""
    config = RuntimeConfig(EtcdConfig((env["ETCD_ENDPOINTS"],)), NatsConfig((env["NATS_SERVER"],)))
    async with await DistributedRuntime.create(config) as runtime:
        client = await runtime.endpoint(path).client()
        async with asyncio.timeout(60):
            await client.wait_for_instances()
            return [item async for item in await client.generate({}, annotated=False)]


def talks(client: openai.OpenAI, model: str) -> str:
    made = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
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
        started = [stack.enter_context(running(argv, tmp_path / name, servers)) for name, argv in lines.items()]
        asked = stack.enter_context(running(front, tmp_path / "front", servers))
        for process in started:
            ready(process)
        client = stack.enter_context(openai.OpenAI(base_url=f"{ready(asked)['url']}/v1", api_key="x", timeout=60))
        eventually(
            "all models are listed", lambda: {model.id for model in client.models.list()} == {"qwen", "llama", "draft"}
        )
        assert (talks(client, "qwen"), talks(client, "draft")) == ("hi", "hi")
        assert talks(client, "llama")
        assert "note: --store-kv is now --discovery-backend etcd" in (tmp_path / "mock").read_text()
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
    look = [sys.executable, "-m", "dynamo.cli", "tasks"]
    env = environment(tmp_path)

    def asked(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*look, *words], env=env, capture_output=True, text=True, timeout=90, check=False)

    nobody = asked()
    assert (nobody.returncode, nobody.stderr.count("\n")) == (1, 1)
    assert "DYN_CONSOLE=1" in nobody.stderr
    argv = [*RUN, "in=http", "out=echo", "--http-port", "0"]
    with running(argv, tmp_path / "log", {**env, "DYN_CONSOLE": "1"}) as server:
        ready(server)
        lines = asked("--json").stdout.splitlines()
        document = json.loads(lines[-1])
        assert document["pid"] == server[0].pid
        assert all(task["since"] >= 0 and task["where"] for task in document["tasks"])
        shown = asked(str(server[0].pid), "--stack").stdout
        assert shown.startswith(f"process {server[0].pid}")
        assert "WAITS FOR" in shown
    assert not list((tmp_path / "dynamo").glob("*.sock"))
