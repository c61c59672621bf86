"""Programs of three ages against real etcd and NATS, our frontend, and OpenAI's client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as triton
from tests.ages.llm.conftest import PROGRAMS, Deployment
from tests.fixtures_etcd import free_ports
from tests.processes import Process
from tests.system.conftest import eventually

from dynamo.llm import card_from_dict
from dynamo.runtime import DistributedRuntime, Instance, RuntimeConfig

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(480)]


def records(deployment: Deployment) -> list[Instance]:
    """What the instances of the namespace say of themselves."""

    async def read() -> list[Instance]:
        async with await DistributedRuntime.create(RuntimeConfig.from_env(deployment.stack.env)) as runtime:
            view = await runtime.registry.watch("test", "other")
            await view.wait_synced()
            return list(view.instances.values())

    return asyncio.run(read())


def leaves_well(process: Process) -> None:
    """SIGTERM ends it in order."""
    assert process.stop(30) == 0, process.text()[-3000:]


def test_an_openai_service_of_early_2025(tmp_path: Path) -> None:
    """A function is served over HTTP, whole and as a stream, and refuses with its own status; no etcd, no NATS."""
    (port,) = free_ports(1)
    service = Process("service", [sys.executable, str(PROGRAMS / "openai_service_0_1.py"), str(port)], tmp_path)
    try:
        url = f"http://127.0.0.1:{port}"
        eventually("it listens", lambda: httpx.get(f"{url}/live", timeout=5).status_code == 200, 60)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as api:
            assert [model.id for model in api.models.list()] == ["parrot"]
            messages: Any = [{"role": "user", "content": "hello there"}]
            whole = api.chat.completions.create(model="parrot", messages=messages)
            assert whole.choices[0].message.content == "hello there "
            assert whole.choices[0].finish_reason == "stop"
            with api.chat.completions.create(model="parrot", messages=messages, stream=True) as stream:
                parts = [chunk.choices[0].delta.content for chunk in stream]
            assert [part for part in parts if part] == ["hello ", "there "]
            with pytest.raises(openai.APIStatusError, match="a parrot is no teapot") as refused:
                api.chat.completions.create(model="parrot", messages=[{"role": "user", "content": "refuse"}])
            assert refused.value.status_code == 418
            with pytest.raises(openai.NotFoundError, match="it answers POST /v1/chat/completions"):
                api.completions.create(model="parrot", prompt="x")
        leaves_well(service)
    finally:
        service.kill()


def test_a_backend_of_mid_2025(deployment: Deployment, checkout: Path) -> None:
    """Its README's program: the frontend has template and tokenizer from the program's process, both ways of asking."""
    program = deployment.program("backend_0_3", str(checkout), "mid-2025")
    deployment.serves("mid-2025", program)
    assert "<|im_start|>user\nhello" in deployment.say(
        "mid-2025", "hello", temperature=0.5, extra_body={"skip_special_tokens": False, "ignore_eos": True}
    )
    text = deployment.api.completions.create(model="mid-2025", prompt="The quick brown fox", max_tokens=40)
    assert text.choices[0].text.strip() == "The quick brown fox"
    assert text.choices[0].finish_reason == "stop"
    (record,) = records(deployment)
    card = card_from_dict(record.card)
    assert (card.context_length, card.kv_cache_block_size, card.model_input) == (60, 8, "tokens")
    with pytest.raises(openai.BadRequestError) as too_long:
        deployment.api.completions.create(model="mid-2025", prompt="word " * 80)
    assert too_long.value.code == "context_length_exceeded"
    leaves_well(program)


def test_text_models_of_mid_2025(deployment: Deployment) -> None:
    """One name at two endpoints: chats go to the one, completions to the other."""
    program = deployment.program("chat_0_3")
    deployment.serves("both", program)
    eventually("both endpoints are there", lambda: deployment.frontend.instances() == 2)
    for _ in range(4):
        assert deployment.say("both", "hello there") == "hello there"
        done = deployment.api.completions.create(model="both", prompt="hello")
        assert (done.choices[0].text, done.choices[0].finish_reason) == ("HELLO", "length")
    leaves_well(program)


def test_an_async_engine_of_late_2025(deployment: Deployment, checkout: Path) -> None:
    """Outputs that grow, a limit on tokens, figures and KV events from a component: all of it is in the record."""
    program = deployment.program("async_engine_0_8", str(checkout), "late-2025")
    deployment.serves("late-2025", program)
    done = deployment.api.completions.create(model="late-2025", prompt="The quick brown fox jumps", max_tokens=3)
    assert done.choices[0].finish_reason == "length"
    assert done.usage is not None
    assert done.usage.completion_tokens == 3

    def said() -> Instance | None:
        (record,) = records(deployment)
        return record if record.figures.get("waiting") == 2 else None

    record = eventually("the figures are there", said)
    card = card_from_dict(record.card)
    assert (card.migration_limit, card.user_data, card.kv_cache_block_size) == (3, {"tier": "test"}, 4)
    figures = record.figures
    assert (figures["total_kv_blocks"], figures["max_num_seqs"], figures["kv_events"]) == (1000, 8, True)
    assert (figures["running"], figures["used_kv_blocks"]) == (1, 10)
    assert figures["runtime_data"] == {"build": "of a test"}
    leaves_well(program)


def test_a_program_is_replaced_by_another_while_it_answers(deployment: Deployment, checkout: Path) -> None:
    """Killed in the middle of an answer, which goes on in the other process: the card says how often that may be."""
    first = deployment.program("async_engine_0_8", str(checkout), "late-2025", "hangs")
    deployment.serves("late-2025", first)
    prompt = "The quick brown fox jumps over the lazy dog"
    stream = deployment.api.completions.create(model="late-2025", prompt=prompt, max_tokens=40, stream=True)
    parts = [next(stream).choices[0].text]
    deployment.program("async_engine_0_8", str(checkout), "late-2025")
    eventually("both are there", lambda: deployment.frontend.instances() == 2, 60)
    first.kill()
    parts += [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(parts).strip() == prompt


def test_a_pair_of_2026(deployment: Deployment) -> None:
    """A prefill worker's parameters reach the decode worker; alone, the decode worker computes the prompt itself."""
    decode = deployment.program("pair_1_x", "decode", "", "pair")
    deployment.serves("pair", decode)
    assert deployment.say("pair", "hello") == "computed here"
    prefill = deployment.program("pair_1_x", "prefill", "", "pair")
    eventually("the prompt is handed over", lambda: deployment.say("pair", "hello") == "handed over", 60)
    done = deployment.api.completions.create(model="pair", prompt="x")
    assert done.choices[0].text == "handed over"
    prefill.kill()
    eventually("the decode worker goes on alone", lambda: deployment.say("pair", "hello") == "computed here", 60)
    leaves_well(decode)


def status_of(deployment: Deployment, text: str) -> tuple[int, str]:
    """Of a chat that is refused."""
    with pytest.raises(openai.APIStatusError) as refused:
        deployment.say("Some/Text-Model", text)
    return refused.value.status_code, refused.value.message


def test_a_text_engine_of_2026(deployment: Deployment) -> None:
    """Served before it is registered; errors keep their statuses; taken back, the model is gone, not the process."""
    program = deployment.program("text_1_x")
    deployment.serves("Some/Text-Model", program)
    done = deployment.api.chat.completions.create(
        model="Some/Text-Model", messages=[{"role": "user", "content": "hello"}]
    )
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == ("one two", "stop")
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (5, 2)
    status, message = status_of(deployment, "no")
    assert (status, "not that word" in message) == (422, True)
    status, message = status_of(deployment, "broken")
    assert (status, "there is no such answer" in message) == (500, True)
    status, message = status_of(deployment, "value")
    assert (status, "ValueError: not a number" in message) == (400, True)
    status, message = status_of(deployment, "odd")
    assert (status, "yields a dict with 'text'" in message) == (500, True)
    assert status_of(deployment, "stop")[0] in (500, 503)
    (record,) = records(deployment)
    assert card_from_dict(record.card).router_mode == "least-loaded"
    assert deployment.say("Some/Text-Model", "leave") == "one two"
    eventually("the model is gone", lambda: deployment.frontend.models() == [])
    (record,) = records(deployment)
    assert not record.card
    leaves_well(program)


@pytest.mark.parametrize("by", ["client", "router"])
def test_a_processor_of_late_2025(deployment: Deployment, by: str) -> None:
    """A model whose program asks workers of its own, which get its dicts as they are."""
    program = deployment.program("processor_0_8", by)
    deployment.serves("processed", program)
    done = deployment.api.completions.create(model="processed", prompt="abc", max_tokens=20)
    assert done.choices[0].text.endswith("cba")
    leaves_well(program)


def test_engines_and_inputs_of_2026(deployment: Deployment) -> None:
    """A simulated engine as a worker, and a frontend of your own that finds it and others."""
    worker = deployment.program("entry_1_x", "Mocker", "dyn://test.backend.generate", "0")
    deployment.serves("entered", worker)
    assert deployment.say("entered", "hello", max_tokens=5)
    (port,) = free_ports(1)
    front = deployment.program("entry_1_x", "Dynamic", "http", str(port))
    assert front.ready_line()["url"].endswith(f":{port}")
    answer = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=10).json()
    assert [model["id"] for model in answer["data"]] == ["entered"]
    leaves_well(front)
    leaves_well(worker)


def test_an_engine_of_the_process_itself(deployment: Deployment) -> None:
    """With `http` and `grpc` an echo is seen by nobody else; with `stdin` it answers one prompt and ends."""
    (port,) = free_ports(1)
    program = deployment.program("entry_1_x", "Echo", "http", str(port))
    url = program.ready_line()["url"]
    body = {"model": "entered", "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20).json()
    assert answer["choices"][0]["message"]["content"] == "hello"
    assert deployment.frontend.models() == []
    leaves_well(program)
    program = deployment.program("entry_1_x", "Echo", "grpc", str(port))
    with triton.InferenceServerClient(program.ready_line()["grpc"]) as client:
        text = triton.InferInput("text_input", [1], "BYTES")
        text.set_data_from_numpy(np.array([b"hello"], dtype=np.object_))
        assert client.infer("entered", [text]).as_numpy("text_output").tolist() == [b"hello"]
    leaves_well(program)
    argv = [sys.executable, str(PROGRAMS / "entry_1_x.py"), "Echo", "stdin", "0"]
    env = {**program.env, **deployment.stack.env}
    done = subprocess.run(argv, input="hello\n", env=env, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "hello"), done.stderr[-2000:]


def test_a_mistake_is_one_sentence(deployment: Deployment) -> None:
    """What can't be meant ends the program with our sentence at its own line."""
    file = deployment.stack.folder / "mistaken.py"
    file.write_text(
        (PROGRAMS / "backend_0_3.py").read_text().replace("ModelType.Backend", "ModelType.Embedding | ModelType.Images")
    )
    program = deployment.run(file, "", "never")
    eventually("it ends", lambda: program.popen.poll() is not None)
    assert "register_model: this version serves chats, completions and embeddings, not images;" in program.text()
