"""Images through vLLM's adapter, with LLaVA's architecture and random weights: the plumbing, not what a model sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from safetensors.numpy import save_file
from tests.frontend.images.samples import png
from tests.worker.engine_rigs import RIGS, VLLM, Kind, Recorder, Rig, Run, shared
from tests_vllm import tiny_model

from dynamo.frontend.images.parts import ImageRef, measured
from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv.image_blocks import cached_prompt
from dynamo.llm.kv.scheduler import KvScheduler
from dynamo.llm.model_card import ImageTraits
from dynamo.llm.protocols import CACHED_TOKENS, PROMPT_TOKENS, ImageInput, PreprocessedRequest
from dynamo.runtime.errors import InvalidArgument

SEER: Final = "vllm-seer"
MARK: Final = "<image>"
SIDE, PATCH = 56, 14
TOKENS: Final = (SIDE // PATCH) ** 2


def write(folder: Path) -> Path:
    """Write the model's folder; vLLM makes the weights up by itself."""
    tiny_model.write(folder)
    tokenizer = tiny_model._tokenizer()
    tokenizer.add_special_tokens([MARK])
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.loads((folder / "config.json").read_text())
    text |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": tokenizer.get_vocab_size()}
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
        "num_hidden_layers": 3, "image_size": SIDE, "patch_size": PATCH, "projection_dim": 64, "vocab_size": 1600,
    }  # fmt: skip
    written = {
        "config.json": {
            "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "dtype": "float32",
            "image_token_index": tokenizer.token_to_id(MARK), "projector_hidden_act": "gelu",
            "vision_feature_layer": -2, "vision_feature_select_strategy": "default", "text_config": text,
            "vision_config": vision, "eos_token_id": text["eos_token_id"],
        },
        "preprocessor_config.json": {
            "image_processor_type": "CLIPImageProcessor", "processor_class": "LlavaProcessor", "do_resize": True,
            "size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}, "do_center_crop": True,
            "do_rescale": True, "do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        },
        "processor_config.json": {
            "processor_class": "LlavaProcessor", "image_token": MARK, "patch_size": PATCH,
            "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1,
        },
    }  # fmt: skip
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))
    save_file({"none": __import__("numpy").zeros(1, "float32")}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def seeing() -> Iterator[Run]:
    """Runs a coroutine function with the engine, which is started once."""
    RIGS[SEER] = Kind("vllm", write, json.dumps({**json.loads(VLLM), "load-format": "dummy"}), real=True, apart=True)
    with shared() as found:
        yield found(SEER)


def image(shade: int) -> ImageInput:
    return measured(ImageRef("", "x"), png(SIDE, SIDE, shade), 1 << 20)


def asked(rig: Rig, *images: ImageInput) -> PreprocessedRequest:
    """A prompt with these images between words, as the frontend makes it."""
    import msgspec

    request: PreprocessedRequest = rig.request(prompt=f"Look at this: {MARK} and tell. " * len(images), max_tokens=40,
                                               ignore_eos=True)  # fmt: skip
    mark = rig.tokenizer.token_id(MARK)
    places = [at for at, token in enumerate(request.token_ids) if token == mark]
    placed = [msgspec.structs.replace(one, at=at, tokens=TOKENS) for one, at in zip(images, places, strict=True)]
    return msgspec.structs.replace(request, images=placed)


def test_images_are_counted_cached_and_told_apart(seeing: Run) -> None:
    """vLLM's prompt has their tokens; its blocks have the names that a frontend gives; another image shares none."""
    stored: list[int] = []

    async def body(rig: Rig) -> None:
        assert rig.facts.images == ImageTraits(placeholder=rig.tokenizer.token_id(MARK), tokens=TOKENS)
        rig.engine.on_kv(lambda step: stored.extend(step.stored))

        async def answer(*images: ImageInput) -> tuple[PreprocessedRequest, dict[str, Any]]:
            request, sink = asked(rig, *images), Recorder()
            rig.engine.submit(request, sink)
            assert await sink.end() == "length"
            assert len(sink.produced) == 40
            return request, sink.extras[0] or {}

        request, said = await answer(image(1), image(2))
        assert said[PROMPT_TOKENS] == request.prompt_tokens == len(request.token_ids) + 2 * (TOKENS - 1)
        assert said[CACHED_TOKENS] == 0
        size = rig.facts.kv_cache_block_size or 0
        router = KvScheduler(size, Weights(), 0.0, Random(1).random, 1.0)
        prompt, media = cached_prompt(request, size)
        names = router.prompt(prompt, media=media).hashes
        assert names
        await _until(lambda: set(names) <= set(stored))
        _, again = await answer(image(1), image(2))
        assert again[CACHED_TOKENS] >= size * (len(names) - 1)
        _, other = await answer(image(3), image(2))
        assert other[CACHED_TOKENS] == 0

    seeing(body)


@pytest.mark.parametrize(
    "change", [{"data": b"no image"}, {"data": png(500, 500)}, {"format": "jpeg"}, {"data": png(SIDE, SIDE)[:60]}]
)
def test_images_that_are_none(seeing: Run, change: dict[str, Any]) -> None:
    """Each is the caller's mistake, and the engine lives on."""
    import msgspec

    async def body(rig: Rig) -> None:
        request, sink = asked(rig, image(1)), Recorder()
        assert request.images is not None
        request.images = [msgspec.structs.replace(request.images[0], **change)]
        rig.engine.submit(request, sink)
        error = await sink.end()
        assert isinstance(error, InvalidArgument), error
        assert "images[0]" in str(error)

    seeing(body)


async def _until(check: Any) -> None:
    from tests.waiting import until

    await until("the events are here", check, 30)
