"""A model that makes sense, through our worker: the same text as from vLLM alone, and a true one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from tests.frontend.engines.test_gemma_engines import CAPITALS, PROMPTS
from tests.worker.engine_rigs import RIGS, VLLM, Kind, Rig, Run, shared
from tests_vllm.real_model import write
from tests_vllm.test_engine import directly

from dynamo.llm.protocols import LENGTH

GEMMA: Final = "vllm-gemma"


@pytest.fixture(scope="module")
def gemma() -> Iterator[Run]:
    """As `run`, with Gemma 3 270M."""
    RIGS[GEMMA] = Kind("vllm", lambda folder: write(folder / "gemma"), VLLM, real=True, apart=True)
    with shared() as found:
        yield found(GEMMA)


def test_sixteen_at_once_are_vllms_own_and_true(gemma: Any) -> None:
    """Text by text what vLLM makes of the same prompts with a tokenizer of its own, greedy."""

    async def body(rig: Rig) -> None:
        sinks = [rig.submit(prompt=prompt, max_tokens=12, ignore_eos=True)[0] for prompt in PROMPTS]
        assert [await sink.end() for sink in sinks] == [LENGTH] * len(PROMPTS)
        texts = [rig.tokenizer.decode(sink.produced) for sink in sinks]
        for text, capital in zip(texts, CAPITALS.values(), strict=False):
            assert text.startswith(f" {capital}")
        for prompt, sink, text in zip(PROMPTS, sinks, texts, strict=True):
            told = (await directly(rig, prompt, 12, ignore_eos=True)).outputs[0]
            assert (sink.produced, text) == (list(told.token_ids), told.text)

    gemma(body)
