"""How a model takes images, out of its configuration files. Pure but for reading them.

Families whose token counts follow from an image's size alone are counted here. Of others only the place is known: the
engine says how many tokens a prompt had, and routers know a prompt's cached blocks up to its first image.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from dynamo.llm.model_card import CONFIG, ImageTraits, ModelCard

PREPROCESSOR: Final = "preprocessor_config.json"
"""The file beside a model's configuration that says how images are resized."""
PROCESSOR: Final = "processor_config.json"
"""Where newer models say the same, in a field."""
_IMAGES: Final = "image_processor"
_CLIP: Final = "clip_vision_model"
"""LLaVA 1.5's vision; those of other models called `llava` take images of any size, or count otherwise."""
_PLACES: Final = ("boi_token_index", "image_token_id", "image_token_index")
"""Fields that name what a template writes for an image; Gemma's templates write the token that begins one."""
_QWEN: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
_LARGEST: Final = 1 << 22


def traits_of(card: ModelCard, files: Mapping[str, Path]) -> ImageTraits | None:
    """Return the traits of a model whose configuration knows of images, else None. Reads files."""
    ref = card.files.get(CONFIG)
    path = None if ref is None else files.get(ref.digest)
    if path is None:
        return None
    config = _object(path)
    return read_traits(config, _resizing(path.parent)) if config else None


def read_traits(config: Mapping[str, Any], resizing: Mapping[str, Any]) -> ImageTraits | None:
    """Return the traits that `config.json` and `preprocessor_config.json` say; None: the model takes no images."""
    placeholder = next((value for name in _PLACES if type(value := config.get(name)) is int and value >= 0), None)
    vision = config.get("vision_config")
    if placeholder is None or not isinstance(vision, Mapping):
        return None
    if config.get("model_type") in _QWEN:
        return _qwen(placeholder, vision, resizing)
    if _is_llava(config, vision) and (side := _number(vision, "image_size")):
        across = side // max(1, _number(vision, "patch_size") or 14)
        return ImageTraits(placeholder=placeholder, tokens=max(1, across * across))
    return ImageTraits(placeholder=placeholder)


def _resizing(folder: Path) -> Mapping[str, Any]:
    """Return how images are resized, from the file that goes first where there are both."""
    own = _object(folder / PROCESSOR).get(_IMAGES)
    return own if isinstance(own, Mapping) else _object(folder / PREPROCESSOR)


def _is_llava(config: Mapping[str, Any], vision: Mapping[str, Any]) -> bool:
    """Tell whether every image becomes one token for each patch."""
    return (
        config.get("model_type") == "llava"
        and vision.get("model_type", _CLIP) == _CLIP
        and config.get("vision_feature_select_strategy", "default") == "default"
    )


def _qwen(placeholder: int, vision: Mapping[str, Any], resizing: Mapping[str, Any]) -> ImageTraits:
    patch = (_number(vision, "patch_size") or 14) * (_number(vision, "spatial_merge_size") or 2)
    size = resizing.get("size")
    bounds = size if isinstance(size, Mapping) else {}
    least = _number(resizing, "min_pixels") or _number(bounds, "shortest_edge") or 4 * patch * patch
    most = _number(resizing, "max_pixels") or _number(bounds, "longest_edge") or 16384 * patch * patch
    return ImageTraits(placeholder=placeholder, patch=patch, least_pixels=least, most_pixels=max(most, patch * patch))


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if type(value) is int and 0 < value < 1 << 40 else 0


def _object(path: Path) -> dict[str, Any]:
    """Return a JSON object out of a file, empty where it can't be read as one."""
    try:
        if path.stat().st_size > _LARGEST:
            return {}
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
