"""llama.cpp's own: adapters, and a listener that nobody can use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.worker.chain_model import ids, write_adapter
from tests.worker.engine_rigs import Rig, alone

from dynamo.llm.protocols import LENGTH
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.worker.engines import create_engine
from dynamo.worker.engines.llamacpp.calls import CallSequence
from dynamo.worker.engines.llamacpp.engine import adapters
from dynamo.worker.settings import WorkerSettings


def test_a_lora_adapter_changes_the_text(tmp_path: Path) -> None:
    """With the adapter another letter follows; at a scale of 0 it is as if there were none."""
    path = write_adapter(tmp_path, "c", "x")

    async def body(rig: Rig) -> None:
        for scale, text in ((1, "xyz"), (0, "def")):
            await rig.engine.stop()
            arguments = f'{{"n_parallel": 1, "n_threads": 1, "lora": [{{"path": "{path}", "scale": {scale}}}]}}'
            rig.engine = create_engine(WorkerSettings(engine="llamacpp", engine_args=arguments), rig.model)
            await rig.start()
            sink, _ = rig.submit(prompt="abc", max_tokens=3)
            assert (await sink.end(), sink.produced) == (LENGTH, ids(text))

    alone("llamacpp")(body)


@pytest.mark.parametrize("step", [4, 512])
def test_prompts_of_many_steps(step: int) -> None:
    """They are answered and counted as those of one step, though their chunks are others."""

    async def body(rig: Rig) -> None:
        await rig.engine.stop()
        arguments = f'{{"n_parallel": 1, "n_threads": 1, "n_batch": {step}}}'
        rig.engine = create_engine(WorkerSettings(engine="llamacpp", engine_args=arguments), rig.model)
        await rig.start()
        cached = []
        for _ in range(2):
            sink, _ = rig.submit(prompt="abcdefgh" * 4 + "abc", max_tokens=3)
            assert (await sink.end(), sink.produced) == (LENGTH, ids("def"))
            cached += [extras["cached_tokens"] for extras in sink.extras if extras and "cached_tokens" in extras]
        assert cached[0] == 0
        assert 30 < cached[1] < 36

    alone("llamacpp")(body)


def test_what_a_chunk_breaks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """xllamacpp keeps the exceptions of its callbacks to itself: the request would end as if all were well."""

    def broken(*_: Any) -> Any:
        raise KeyError("choices")

    async def body(rig: Rig) -> None:
        with monkeypatch.context() as broke:
            broke.setattr(CallSequence, "hear", broken)
            sink, _ = rig.submit(prompt="abc", max_tokens=3)
            error = await sink.end()
        assert isinstance(error, EngineError)
        assert "KeyError" in error.message
        sink, _ = rig.submit(prompt="abc", max_tokens=3)
        assert (await sink.end(), sink.produced) == (LENGTH, ids("def"))

    alone("llamacpp")(body)


@pytest.mark.parametrize("wrong", [["nowhere.gguf"], [7], [{"scale": 1}], [{"path": "x", "scale": "much"}]])
def test_adapters_that_are_none(wrong: list[Any]) -> None:
    """The argument and what it was are in the sentence."""
    with pytest.raises(InvalidArgument, match="'lora'"):
        adapters(wrong)


def test_the_listener_is_private() -> None:
    """What the core listens on by itself is on loopback and answers nobody without a key that nobody has."""

    async def body(rig: Rig) -> None:
        address = rig.engine._server.listening_address
        assert address.startswith("http://127.0.0.1:")
        async with httpx.AsyncClient(base_url=address) as client:
            for path in ("/completion", "/v1/completions", "/v1/chat/completions", "/tokenize", "/props"):
                assert (await client.post(path, json={"prompt": "x"})).status_code == 401
            assert (await client.get("/")).status_code in {401, 404}

    alone("llamacpp")(body)
