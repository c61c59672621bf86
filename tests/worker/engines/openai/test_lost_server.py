"""A real llama-server that is killed under streams: what has begun goes on elsewhere at the same token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.waiting import until
from tests.worker.chain_model import write_checkout, write_gguf
from tests.worker.engine_rigs import Recorder
from tests.worker.engines.openai.scripted_server import ScriptedServer

from dynamo.frontend.generation.migration import rest_of
from dynamo.llm import LocalModel, open_model
from dynamo.llm.protocols import LENGTH, PreprocessedRequest, SamplingOptions, StopConditions, TextRequest
from dynamo.runtime.errors import CapacityExceeded, Disconnected
from dynamo.worker.engines import create_engine
from dynamo.worker.settings import WorkerSettings

STREAMS: Final = 32
TOKENS: Final = 60
_ROOT: Final = Path(__file__).parents[4]
_SCRIPT: Final = """
import sys, time
from pathlib import Path
from tests.worker.engines.openai.llama_server import llama_server
print(llama_server(Path(sys.argv[1])).listening_address, flush=True)
time.sleep(120)
"""


@contextlib.contextmanager
def servers(path: Path, count: int) -> Iterator[list[tuple[subprocess.Popen[str], str]]]:
    """Processes of llama-server, and where each is."""
    words = [sys.executable, "-c", _SCRIPT, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(count)]
    try:
        yield [(process, process.stdout.readline().strip()) for process in started if process.stdout is not None]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def engine_of(url: str, model: LocalModel, api: str = "llamacpp") -> Any:
    path = str(model.path) if api != "openai" else ""
    arguments = json.dumps({"url": url, "api": api, "check_secs": 1})
    return create_engine(WorkerSettings(engine="openai", engine_args=arguments, model_path=path), model)


def request(number: int) -> PreprocessedRequest:
    return PreprocessedRequest(
        model="m", token_ids=[20 + number, 3, 50 - number % 7, 9],
        stop_conditions=StopConditions(max_tokens=TOKENS, ignore_eos=True),
        sampling_options=SamplingOptions(temperature=0.0),
    )  # fmt: skip


async def answers(engine: Any, requests: list[PreprocessedRequest]) -> list[Recorder]:
    sinks = [Recorder() for _ in requests]
    for each, sink in zip(requests, sinks, strict=True):
        engine.submit(each, sink)
    await asyncio.gather(*(sink.end() for sink in sinks))
    return sinks


async def broken(engine: Any, process: subprocess.Popen[str]) -> list[Recorder]:
    """Streams under which the server is killed once some have begun."""
    sinks = [Recorder() for _ in range(STREAMS)]
    for number, sink in enumerate(sinks):
        engine.submit(request(number), sink)
    await until("some have begun", lambda: sum(len(sink.produced) >= 3 for sink in sinks) >= 4)
    process.kill()
    await asyncio.gather(*(sink.end() for sink in sinks))
    return sinks


@pytest.mark.processes
async def test_a_killed_server_is_not_noticed_in_the_answers(tmp_path: Path) -> None:
    """SIGKILL under 32 greedy streams: each goes on, or begins, at another server, and is what it would have been.

    In text nothing can go on: the client gets one clean error, and what has not begun is tried elsewhere.
    """
    model = open_model(str(write_gguf(tmp_path)))
    assert model.path is not None
    with servers(model.path, 2) as ((victim, lost), (_, kept)):
        first, second, text = engine_of(lost, model), engine_of(kept, model), engine_of(lost, model, "openai")
        said: list[str] = []
        for engine in (first, second, text):
            await engine.start()
        first.on_away(said.append)
        try:
            whole = [sink.produced for sink in await answers(second, [request(n) for n in range(STREAMS)])]
            half = Recorder()
            body = {"prompt": "x", "max_tokens": 3000, "ignore_eos": True}
            text.submit(TextRequest(model="m", kind="completions", body=body), half)
            await half.until(5)
            sinks = await broken(first, victim)
            ends = [type(sink.ends[0]) if sink.ends[0] != LENGTH else None for sink in sinks]
            assert set(ends) <= {Disconnected, CapacityExceeded, None}
            assert Disconnected in ends
            open_ones = [number for number, end in enumerate(ends) if end is not None]
            rests = [rest for n in open_ones if (rest := rest_of(request(n), sinks[n].produced)) is not None]
            assert len(rests) == len(open_ones)
            for number, more in zip(open_ones, await answers(second, rests), strict=True):
                sinks[number].produced += more.produced
            assert [sink.produced for sink in sinks] == whole
            assert isinstance(await half.end(), Disconnected)
            await until("it is out of routing", lambda: said and "does not answer" in said[0])
        finally:
            for engine in (first, second, text):
                await engine.stop()


@pytest.mark.parametrize("ending", [b"data: [DONE]\n\n", b""])
async def test_a_whole_answer_needs_no_counts(tmp_path: Path, ending: bytes) -> None:
    """A server or gateway that sends none, or is lost right after the last token, costs no token and no error."""
    path = str(write_checkout(tmp_path / "model"))
    chunk = b'data: {"choices": [{"token_ids": [%d], "finish_reason": %s}]}\n\n'
    async with ScriptedServer() as server:
        events = [chunk % (5, b"null"), chunk % (6, b"null"), chunk % (7, b'"length"' if ending else b"null")]
        server.replies["/v1/completions"] = (200, b"".join(events) + ending)
        given = json.dumps({"url": server.url, "api": "vllm"})
        settings = WorkerSettings(engine="openai", engine_args=given, model_path=path)
        engine: Any = create_engine(settings, open_model(path))
        await engine.start()
        try:
            sink = Recorder()
            conditions = StopConditions(max_tokens=3, ignore_eos=True)
            engine.submit(PreprocessedRequest(model="m", token_ids=[1, 2], stop_conditions=conditions), sink)
            assert (await sink.end(), sink.produced) == (LENGTH, [5, 6, 7])
        finally:
            await engine.stop()
