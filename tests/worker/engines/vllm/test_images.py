"""Prompts with images for vLLM, without vLLM: what its processor refuses. tests_vllm/images has the rest."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.worker.engines.vllm.images import ImagePrompts
from dynamo.worker.engines.vllm.requests import ImagesLost

Render = Callable[[Any, bool], None]


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Render, bool], None]:
    """Render a prompt without images; what vLLM does is a function's."""
    module = SimpleNamespace(parse_model_prompt=lambda config, prompt: prompt)
    monkeypatch.setitem(sys.modules, "vllm.renderers.inputs.preprocess", module)

    def run(does: Render, whole: bool) -> None:
        async def render(prompts: list[Any], skip_mm_cache: bool) -> list[Any]:
            does(prompts, skip_mm_cache)
            return prompts

        llm = SimpleNamespace(model_config=None, renderer=SimpleNamespace(render_cmpl_async=render))
        asyncio.run(ImagePrompts().rendered(llm, PreprocessedRequest(model="m", token_ids=[1]), whole=whole))

    return run


@pytest.mark.parametrize("cause", [None, ValueError("absolute aspect ratio must be smaller than 200")])
def test_a_processor_is_quoted(rendered: Callable[[Render, bool], None], cause: Exception | None) -> None:
    """vLLM's error names the objects that the processor was called with, and its cause says why."""

    def refuse(prompts: Any, skips: bool) -> None:
        raise ValueError("Failed to apply P on data=<Image at 0x7f>") from cause

    kind, said = (ValueError, "Failed") if cause is None else (InvalidArgument, "images: .* absolute aspect ratio")
    with pytest.raises(kind, match=said):
        rendered(refuse, False)


@pytest.mark.parametrize("whole", [False, True])
def test_a_cache_that_is_wrong_is_left_out_of_the_second_try(
    rendered: Callable[[Render, bool], None], whole: bool
) -> None:
    """Where vLLM's cache lost an image that it was asked for: once."""
    skipped = []

    def lose(prompts: Any, skips: bool) -> None:
        skipped.append(skips)
        raise AssertionError("Expected a cached item")

    with pytest.raises(EngineError, match="Expected a cached item") as raised:
        rendered(lose, whole)
    assert isinstance(raised.value, ImagesLost) != whole
    rendered(lambda prompts, skips: skipped.append(skips), whole)
    assert skipped == [whole, whole]
