"""What the mocker makes of images: tokens by a formula, and a sentence about each. Nothing is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dynamo.llm.model_card import ImageTraits
from dynamo.llm.models.image_traits import traits_of
from dynamo.llm.protocols import ImageInput

if TYPE_CHECKING:
    from dynamo.llm import LocalModel

OWN: Final = ImageTraits(patch=28, least_pixels=4 * 28 * 28, most_pixels=1280 * 28 * 28)
"""Of models without a word about images: a token for 28 x 28 pixels, 4 to 1,280 in all, as Qwen2-VL counts."""
_DESCRIBED: Final = 8
"""Images that an answer describes."""


def traits_for(model: LocalModel) -> ImageTraits:
    """Return how images are counted: as the model's own configuration says, where it is one for images."""
    return traits_of(model.card, model.files) or OWN


def description(images: Sequence[ImageInput]) -> str:
    """Return how an answer begins; the same for the same images."""
    several = "1 image" if len(images) == 1 else f"{len(images)} images"
    described = "; ".join(
        f"{image.format} of {image.width} x {image.height} pixels, {image.tokens} tokens, {image.digest[:8]}"
        for image in images[:_DESCRIBED]
    )
    return f" I see {several}: {described}."
