"""Prompts with images for vLLM, without vLLM: what its processor refuses. tests_vllm/images has the rest."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.vllm.images import ImagePrompts


@pytest.mark.parametrize("cause", [None, ValueError("absolute aspect ratio must be smaller than 200")])
def test_a_processor_is_quoted(monkeypatch: pytest.MonkeyPatch, cause: Exception | None) -> None:
    """vLLM's error names the objects that the processor was called with, and its cause says why."""
    module = SimpleNamespace(parse_model_prompt=lambda config, prompt: prompt)
    monkeypatch.setitem(sys.modules, "vllm.renderers.inputs.preprocess", module)

    async def render(prompts: list[Any]) -> None:
        raise ValueError("Failed to apply P on data=<Image at 0x7f>") from cause

    llm = SimpleNamespace(model_config=None, renderer=SimpleNamespace(render_cmpl_async=render))
    request = PreprocessedRequest(model="m", token_ids=[1])
    kind, said = (ValueError, "Failed") if cause is None else (InvalidArgument, "images: .* absolute aspect ratio")
    with pytest.raises(kind, match=said):
        asyncio.run(ImagePrompts().rendered(llm, request))
