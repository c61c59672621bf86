"""A server that goes away: its worker leaves routing, says why, and comes back; what it lies about is counted."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from typing import Any, Final

import httpx
import pytest
from tests.waiting import until
from tests.worker.engine_rigs import Recorder
from tests.worker.engines.openai.scripted_server import ScriptedServer, answer, cut_answer, engine_over, models

from dynamo.llm import open_model
from dynamo.llm.protocols import EOS, LENGTH, TextRequest
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engines import create_engine
from dynamo.worker.engines.openai.availability import Availability
from dynamo.worker.engines.openai.server_metrics import load_of
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.settings import WorkerSettings

PATH: Final = "dyn://tests.backend.generate"
VLLM: Final = (
    b"# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine=\"0\"} 3.0\n"
    b"vllm:num_requests_running{engine=\"1\"} 1.0\nvllm:num_requests_waiting{engine=\"0\"} 2.0\n"
    b"vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n"
    b'vllm:cache_config_info{block_size="32",num_gpu_blocks="100"} 1.0\n'
)  # fmt: skip


async def ask(engine: Any, **body: Any) -> Any:
    sink = Recorder()
    engine.submit(TextRequest(model="m", kind="completions", body={"prompt": "x", **body}), sink)
    return await sink.end()


def test_one_bad_look_is_not_enough() -> None:
    """Two are; a good one brings it back. Failed requests have a request of ours decide, and only that."""
    availability = Availability()
    availability.looked("answers 503")
    assert (availability.why, availability.doubtful) == ("", True)
    availability.looked("answers 503")
    assert availability.why == "answers 503"
    availability.looked("")
    assert availability.why == ""
    for _ in range(5):
        assert not availability.suspicious
        availability.request_failed()
    assert (availability.why, availability.suspicious) == ("", True)
    availability.asked("it answers 500")
    assert "it answers 500" in availability.why
    availability.asked("")
    assert (availability.why, availability.suspicious) == ("", False)


async def test_the_worker_leaves_and_comes_back() -> None:
    """It is shown not ready with the server's own answer, is not routed to, and returns without anybody's help."""
    async with ScriptedServer() as server, await DistributedRuntime.in_memory() as runtime:
        arguments = json.dumps({"url": server.url, "api": "openai", "check_secs": 1})
        settings = WorkerSettings(engine="openai", engine_args=arguments, endpoint=PATH, system_port=0)
        model = open_model(None, name="m")
        serving = await serve_engine(runtime, create_engine(settings, model), model, settings)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{serving.system_port}") as system:
                server.replies["/health"] = (503, b"")
                await until("it has left", lambda: serving.served.draining)
                health = await system.get("/health")
                assert health.status_code == 503
                assert "answers 503 at /health" in health.text
                assert 'dynamo_component_server_up{model_name="m"} 0.0' in (await system.get("/metrics")).text
                server.replies["/health"] = (200, b"")
                await until("it is back", lambda: not serving.served.draining)
                assert serving.served.readiness().ready
        finally:
            await serving.stop(0)


async def test_a_server_that_fails_every_request_is_left() -> None:
    """A request of ours decides, not those of clients; the reason has the server's answer."""
    async with ScriptedServer() as server, engine_over(server, check_secs=1) as engine:
        said: list[str] = []
        engine.on_away(said.append)
        server.replies["/v1/completions"] = (500, b'{"error": {"message": "out of memory"}}')
        for _ in range(5):
            assert isinstance(await ask(engine), EngineError)
        await until("it is left", lambda: said)
        assert "fails requests: it answers 500" in said[0]
        server.replies["/v1/completions"] = (200, answer(1))
        await until("it is asked again", lambda: said[-1] == "")


async def test_another_model_in_its_place_is_noticed() -> None:
    """A server that comes back with another model, or a smaller context, gets no requests for the former one."""
    async with ScriptedServer() as server:
        server.replies["/v1/models"] = models(max_model_len=4096)
        async with engine_over(server, check_secs=1) as engine:
            said: list[str] = []
            engine.on_away(said.append)
            for reply, part in (
                (models("other"), "no longer serves 'm'"),
                (models(max_model_len=512), "context of 512"),
            ):
                server.replies["/health"] = (503, b"")
                await until("it is away", lambda: said and "503" in said[-1])
                server.replies |= {"/health": (200, b""), "/v1/models": reply}
                await until("it says so", lambda: part in said[-1])  # noqa: B023 - awaited within the turn


async def test_the_load_is_the_servers() -> None:
    """What waits there and others' requests count; metrics that are too long, or none, leave our own count."""
    async with ScriptedServer() as server:
        server.replies["/metrics"] = (200, VLLM)
        async with engine_over(server) as engine:
            load = engine.load()
            assert (load.running, load.waiting, load.kv_usage, load.used_kv_blocks) == (4, 2, 0.5, 50)
        server.replies["/metrics"] = (200, VLLM + b"#" * (1 << 20))
        async with engine_over(server) as engine:
            assert engine.load().running == 0


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (b'sglang:num_running_reqs{a="}"} 2\nsglang:num_queue_reqs 1\nsglang:token_usage 0.25', (2, 1, 0.25)),
        (b"llamacpp:requests_processing 3\nllamacpp:requests_deferred 4\n", (3, 4, 0.0)),
        (b"tgi_batch_current_size 5\ntgi_queue_size 6 1700000000\n", (5, 6, 0.0)),
        (b"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc 7", (0, 0, 1.0)),
        (b'vllm:num_requests_running 1e400\nvllm:num_requests_running{x="', (1_000_000_000, 0, 0.0)),
    ],
)
def test_each_servers_names_are_read(text: bytes, load: tuple[int, int, float]) -> None:
    """What is no number counts nothing, and shares stay between 0 and 1."""
    read = load_of(text)
    assert read is not None
    assert read[:3] == load
    assert load_of(b"http_requests_total 5\n") is None


async def test_counts_that_can_not_be_so_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log, always in the metric; the answer is the client's all the same."""
    async with ScriptedServer() as server, engine_over(server) as engine:
        server.replies["/v1/completions"] = (200, answer(900))
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert await ask(engine, max_tokens=8) == EOS
        assert len([line for line in caplog.messages if "900" in line]) == 1
        faults = next(metric for metric in engine.metrics() if "faults" in metric.name)
        assert {sample.labels["fault"]: sample.value for sample in faults.samples}["usage"] == 2


async def test_a_server_that_announces_more_context_than_it_has() -> None:
    """Its answers end early: that is counted, and remarked with both numbers; a full context is none of it."""
    async with ScriptedServer() as server:
        server.replies["/v1/models"] = models(max_model_len=4096)
        async with engine_over(server) as engine:
            for length in (4090, 20):
                assert engine.remarks() == []
                server.replies["/v1/completions"] = (200, cut_answer(length))
                assert await ask(engine, max_tokens=4095) == LENGTH
            (remark,) = engine.remarks()
            assert "at 21 tokens" in remark
            assert "4096" in remark


async def test_what_is_waited_for_is_remarked() -> None:
    """While the server lists no model: the address, and what it answers; nothing of it once it is ready."""
    async with ScriptedServer() as server:
        server.replies["/v1/models"] = (503, b"")
        given = json.dumps({"url": server.url, "api": "openai"})
        engine: Any = create_engine(WorkerSettings(engine="openai", engine_args=given), open_model(None))
        starting = asyncio.create_task(engine.start())
        await until(
            "it says so", lambda: engine.remarks() == [f"waits for {server.url}, which answers 503 at /v1/models"]
        )
        server.replies["/v1/models"] = (200, b'{"data": []}')
        await until("it says that", lambda: "lists no model" in str(engine.remarks()))
        server.replies["/v1/models"] = models()
        await starting
        assert engine.remarks() == []
        await engine.stop()


async def test_a_well_behaved_servers_connection_is_kept() -> None:
    """One connection does for many answers, although `[DONE]` ends each at once."""
    async with ScriptedServer() as server, engine_over(server, check_secs=0) as engine:
        for _ in range(3):
            assert await ask(engine) == EOS
            await until("it is let go", lambda: not engine._connections.ending)
        assert server.connections == 1


def children_of(parent: int) -> list[int]:
    told = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    processes = [int(word) for word in told.stdout.split()]
    return [process for process in processes if runs(process)]


def runs(process: int) -> bool:
    told = subprocess.run(["ps", "-o", "stat=,comm=", "-p", str(process)], capture_output=True, text=True, check=False)
    return bool(told.stdout) and not told.stdout.startswith("Z") and "ps" not in told.stdout.split()


async def test_a_command_is_the_workers_child() -> None:
    """It gets a free port, ends with the worker, with all that it started; its own end is the engine's."""
    script = (
        "import sys, subprocess; subprocess.Popen(['sleep', '99']); subprocess.run([sys.executable, *sys.argv[1:]])"
    )
    settings = WorkerSettings(engine="openai", engine_args=json.dumps({
        "command": [sys.executable, "-c", script, "-m", "http.server", "{port}"], "ready_secs": 30,
    }))  # fmt: skip
    engine: Any = create_engine(settings, open_model(None, name="m"))
    with pytest.raises(InvalidArgument, match="404"):  # that server has no models
        await engine.start()
    (guard,) = children_of(os.getpid())
    (server,) = children_of(guard)
    group = [server, *children_of(server)]
    assert len(group) == 3
    await engine.stop()
    await until("all are gone", lambda: not any(map(runs, group)))
    settings = WorkerSettings(engine="openai", engine_args=json.dumps({"command": ["false", "{port}"]}))
    engine = create_engine(settings, open_model(None, name="m"))
    with pytest.raises(EngineError, match=r"server false ended \(exit code 1\)"):
        await engine.start()
    await engine.stop()
