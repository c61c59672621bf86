"""Models with a vision part that vLLM loads in seconds: real architectures, random weights and a real tokenizer.

`transformers` makes the weights from a fixed seed, in float32. Each family stands for one way in which frontends count
an image: Qwen2-VL's tokens follow from its size, LLaVA has the same for every image, and of Gemma 3 vLLM alone knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
import transformers
from safetensors.torch import load_file, save_file
from tests_vllm.tiny_model import CONTEXT, EOS, HEAD_WIDTH, HEADS, INNER, KV_HEADS, LAYERS, WIDTH, write_tokenizer

PATCH: Final = 14
MOST_TOKENS: Final = 64
"""Of one image of the Qwen2-VL."""
SIDE: Final = 56
"""Pixels of an image's side, for the families that have one size."""
_VISION_WIDTH, _VISION_HEADS = 64, 2
_TOWER: Final = ("vision_tower.", "vision_tower.vision_model.")
"""How names of weights begin as `transformers` 5 writes them, and in published models."""
_PARTS: Final = (
    "{%% for m in messages %%}<|im_start|>{{ m.role }}\n{%% if m.content is string %%}{{ m.content }}{%% else %%}"
    "{%% for part in m.content %%}{%% if part.type == 'image' %%}%s{%% else %%}{{ part.text }}{%% endif %%}"
    "{%% endfor %%}{%% endif %%}<|im_end|>\n{%% endfor %%}"
    "{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)


class Family(NamedTuple):
    """One architecture."""

    special: tuple[str, ...]
    """Tokens of its tokenizer."""
    image: str
    """What its template writes for an image."""
    model: Callable[[Callable[[str], int]], Any]
    """Makes the model, given a function from a token's text to its id."""
    resizing: dict[str, Any]
    """Its `preprocessor_config.json`."""
    processor: dict[str, Any]
    """Its `processor_config.json`; empty where it has none."""
    names: Mapping[str, str] = MappingProxyType({})
    """Tokens that its tokenizer's configuration names."""
    embedding: float = 1.0
    """Width of its embeddings' values."""


def write(folder: Path, name: str = "qwen2_vl") -> Path:
    """Write the folder of a family's model; it is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    family = FAMILIES[name]
    tokenizer = write_tokenizer(folder, _PARTS % family.image, family.special, **family.names)
    torch.manual_seed(7)
    model = family.model(lambda token: tokenizer.token_to_id(token) or 0)
    _draw(model, family.embedding)
    model.save_pretrained(folder)
    _rename(folder / "model.safetensors")
    eos = tokenizer.token_to_id(EOS)
    _json(folder / "generation_config.json", {"eos_token_id": [eos], "temperature": 0.5, "do_sample": True})
    _json(folder / "preprocessor_config.json", family.resizing)
    if family.processor:
        _json(folder / "processor_config.json", family.processor)
    return folder


def _json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))


def _draw(model: Any, embedding: float) -> None:
    """Draw all matrices anew: as they are made, all answers are alike."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, embedding if "embed" in name else 3.0 / weight[0].numel() ** 0.5)


def _rename(path: Path) -> None:
    """Name the weights of a vision tower as published models do: vLLM reads those names only."""
    weights = load_file(path)
    save_file({f"{_TOWER[1]}{name.removeprefix(_TOWER[0])}" if name.startswith(_TOWER[0]) else name: weight
               for name, weight in weights.items()}, path, metadata={"format": "pt"})  # fmt: skip


def _text(token: Callable[[str], int], **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": 1600, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_WIDTH,
        "max_position_embeddings": CONTEXT, "bos_token_id": None, "eos_token_id": token(EOS), "pad_token_id": 0,
        "tie_word_embeddings": False, **more,
    }  # fmt: skip


def _qwen2_vl(token: Callable[[str], int]) -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    config = transformers.Qwen2VLConfig(
        text_config=_text(token, rope_parameters=rope),
        vision_config={
            "depth": 2, "embed_dim": _VISION_WIDTH, "hidden_size": WIDTH, "num_heads": _VISION_HEADS, "mlp_ratio": 2,
            "patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 2,
        },
        image_token_id=token("<|image_pad|>"), video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"), vision_end_token_id=token("<|vision_end|>"),
    )  # fmt: skip
    return transformers.Qwen2VLForConditionalGeneration(config)


def _llava(token: Callable[[str], int]) -> Any:
    config = transformers.LlavaConfig(
        text_config={"model_type": "llama", **_text(token)},
        vision_config={
            "model_type": "clip_vision_model", "hidden_size": _VISION_WIDTH, "intermediate_size": INNER,
            "num_hidden_layers": 3, "num_attention_heads": _VISION_HEADS, "image_size": SIDE, "patch_size": PATCH,
        },
        image_token_index=token("<image>"), image_seq_length=(SIDE // PATCH) ** 2,
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration(config)


def _gemma3(token: Callable[[str], int]) -> Any:
    config = transformers.Gemma3Config(
        text_config=_text(
            token, query_pre_attn_scalar=HEAD_WIDTH, sliding_window=64,
            layer_types=["sliding_attention", "full_attention"],
        ),
        vision_config={
            "hidden_size": _VISION_WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2,
            "num_attention_heads": _VISION_HEADS, "image_size": SIDE, "patch_size": PATCH,
        },
        mm_tokens_per_image=4, boi_token_index=token("<start_of_image>"), eoi_token_index=token("<end_of_image>"),
        image_token_index=token("<image_soft_token>"),
    )  # fmt: skip
    return transformers.Gemma3ForConditionalGeneration(config)


FAMILIES: Final = {
    "qwen2_vl": Family(
        ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        "<|vision_start|><|image_pad|><|vision_end|>",
        _qwen2_vl,
        {
            "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor",
            "min_pixels": 4 * (2 * PATCH) ** 2, "max_pixels": MOST_TOKENS * (2 * PATCH) ** 2, "patch_size": PATCH,
            "merge_size": 2, "temporal_patch_size": 2,
        },
        {},
    ),
    "llava": Family(
        ("<image>",),
        "<image>",
        _llava,
        {
            "image_processor_type": "CLIPImageProcessor", "processor_class": "LlavaProcessor",
            "size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE},
        },
        {
            "processor_class": "LlavaProcessor", "image_token": "<image>", "patch_size": PATCH,
            "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1,
        },
    ),
    "gemma3": Family(
        ("<start_of_image>", "<end_of_image>", "<image_soft_token>", *("\n" * lines for lines in range(1, 5))),
        "<start_of_image>",
        _gemma3,
        {
            "image_processor_type": "Gemma3ImageProcessor", "processor_class": "Gemma3Processor",
            "size": {"height": SIDE, "width": SIDE},
        },
        {"processor_class": "Gemma3Processor", "image_seq_length": 4},
        {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
        embedding=0.02,  # it is multiplied by eleven, and the same matrix makes the answers
    ),
}  # fmt: skip
