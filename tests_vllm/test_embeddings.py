"""vLLM as a maker of vectors (`runner: pooling`): what it gives is what it gives to who calls it directly."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.worker.engine_rigs import VLLM
from tests.worker.test_embedding_engines import Recorder
from tests_vllm.tiny_model import WIDTH

from dynamo.llm import open_model
from dynamo.llm.models.file_cache import FileCache
from dynamo.llm.processing.embeddings import EmbeddingRequest, dimensions_of, numbers_of
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engine import Embedding
from dynamo.worker.engines import create_engine
from dynamo.worker.settings import WorkerSettings

ARGUMENTS = {
    **json.loads(VLLM), "runner": "pooling", "convert": "embed", "max-num-seqs": 4, "max-model-len": 128,
}  # fmt: skip


async def directly(llm: Any, ids: list[int]) -> list[float]:
    """vLLM's own vector."""
    from vllm import PoolingParams

    prompt = {"type": "token", "prompt_token_ids": ids}
    (output,) = [found async for found in llm.encode(prompt, PoolingParams(task="embed"), f"direct-{ids}")]
    numbers: list[float] = output.outputs.data.tolist()
    return numbers


def test_vectors_are_those_of_vllm_itself(tiny: Path, tmp_path: Path) -> None:
    """In the order of the inputs, of length 1; too long and cut ones are refused, an abort frees the engine."""
    model = open_model(str(tiny), cache=FileCache(tmp_path))
    engine: Any = create_engine(WorkerSettings(engine="vllm", engine_args=json.dumps(ARGUMENTS)), model)

    def embed(inputs: list[list[int]], dimensions: int | None = None) -> tuple[Recorder, Any]:
        sink = Recorder()
        return sink, engine.embed(EmbeddingRequest(model="m", token_ids=inputs, dimensions=dimensions), sink)

    async def main() -> None:
        facts = await engine.start()
        try:
            assert issubclass(type(engine), Embedding)
            assert (facts.embedding_dim, facts.guided, facts.kv_events) == (WIDTH, (), False)
            inputs = [[10 + number] * (1 + 7 * number) for number in range(12)]
            for ids, vector in zip(inputs, await embed(inputs)[0].end(), strict=True):
                assert dimensions_of(vector) == WIDTH
                assert numbers_of(vector) == pytest.approx(await directly(engine._llm, ids), abs=1e-4)
                assert math.hypot(*numbers_of(vector)) == pytest.approx(1, abs=1e-4)
            with pytest.raises(InvalidArgument, match="1 to 128"):
                embed([[5] * 129])
            with pytest.raises(InvalidArgument, match=r"(?i)matryoshka"):
                await embed([[5]], 8)[0].end()
            sink, abort = embed([[7] * 100] * 400)
            await sink.until(1)
            abort()
            count = len(sink.vectors)
            assert len(await embed([[5] * 128])[0].end()) == 1
            async with asyncio.timeout(60):
                while engine.load().running or engine.load().waiting:  # noqa: ASYNC110 - vLLM tells nobody
                    await asyncio.sleep(0.05)
            assert (len(sink.vectors), sink.ends) == (count, [])
        finally:
            await engine.stop()

    asyncio.run(main())
