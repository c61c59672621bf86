"""The guide of March 2025: an engine in a Python file, with text and with tokens."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tests.environments import quick_environment
from tests.pages.printed import Rows, answers, chat, command, run_all, serving
from tests.processes import Process

TEXT = """
import os, sys
async def generate(request):
    said = request["messages"][-1]["content"], os.environ.get("CUDA_VISIBLE_DEVICES"), *sys.argv[1:]
    for piece in said:
        yield {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": request["model"],
               "choices": [{"index": 0, "delta": {"content": f"{piece};", "role": "assistant"}}]}
    yield {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": request["model"],
           "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}
"""
TOKENS = """
async def generate(request):
    asked = {"token_ids", "stop_conditions", "sampling_options", "eos_token_ids", "mdc_sum", "annotations"}
    assert asked <= set(request), asked - set(request)
    ends = {"max_tokens", "stop", "stop_token_ids_hidden", "min_tokens", "ignore_eos"}
    assert ends <= set(request["stop_conditions"]), ends - set(request["stop_conditions"])
    options = {"n", "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p",
               "top_k", "min_p", "use_beam_search", "length_penalty", "seed"}
    assert options <= set(request["sampling_options"]), options - set(request["sampling_options"])
    assert request["eos_token_ids"] == [2], request["eos_token_ids"]
    yield {"token_ids": request["token_ids"][-3:], "tokens": None, "text": None, "cum_log_probs": None,
           "log_probs": None, "finish_reason": None}
    yield {"token_ids": request["token_ids"][-3:]}
"""
PROGRAM = """
import asyncio
import uvloop
from dynamo.runtime import DistributedRuntime, dynamo_worker

class Handler:
    async def generate(self, request):
        for number in range(request["count"]):
            yield {"number": number}

@dynamo_worker(static=False)
async def worker(runtime: DistributedRuntime):
    component = runtime.namespace("own").component("engine")
    await component.create_service()
    await component.endpoint("generate").serve_endpoint(Handler().generate)

if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
"""
pytestmark = pytest.mark.processes


def test_text_in_text_out(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """The file gets the chat, the words behind `--` and its process's environment."""
    file = tmp_path / "engine.py"
    file.write_text(TEXT)
    words = {**own, "ENGINE.py": str(file)}
    lines = [(rows[name].words(**words), "hi\n") for name in ("pystr", "trtllm, file")]
    rows.shows("visible gpus")
    plain, gpus = run_all(lines, quick_environment(tmp_path, CUDA_VISIBLE_DEVICES="3"))
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, "hi;3;\n", "")
    assert (gpus.returncode, gpus.stdout, gpus.stderr) == (0, f"hi;3;--engine_args;{own['ARGS.yaml']};\n", "")


def test_text_over_http(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """--model-name is what it is served under."""
    file = tmp_path / "engine.py"
    file.write_text(TEXT)
    line = command(rows["pystr, http"], {"ENGINE.py": str(file), "NAME": "mine"})
    with serving(line, tmp_path / "log", quick_environment(tmp_path, CUDA_VISIBLE_DEVICES="3")) as client:
        assert [model.id for model in client.models.list()] == ["mine"]
        assert chat(client, "mine", "hi").startswith("hi;3;")


def test_tokens_in_tokens_out(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """The file gets the fields of 2025 and answers with tokens, which the folder's tokenizer reads."""
    file = tmp_path / "engine.py"
    file.write_text(TOKENS)
    (done,) = run_all(
        [(rows["pytok"].words(**{**own, "ENGINE.py": str(file)}), "tell me\n")], quick_environment(tmp_path)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, " me me\n", "")


@pytest.mark.servers
def test_a_program_serves_an_endpoint(rows: Rows, servers: dict[str, str], tmp_path: Path) -> None:
    """The program of 2025, up to its model's name: found by etcd, asked over NATS, ended by SIGTERM."""
    rows.shows("program")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    with Process("program", [sys.executable, str(file)], tmp_path, servers) as process:
        outcome = asyncio.run(answers(servers, "own.engine.generate", {"count": 3}))
        assert outcome == [{"number": number} for number in range(3)]
        assert process.stop(60) == 0, process.text()
