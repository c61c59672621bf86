"""Images in prompts: where they stand among the tokens, and how many tokens each becomes. Pure.

A model with images of its own has a token for them, which its chat template writes: `ImageTraits.placeholder`. Other
templates know text only; there a mark that no client can guess stands for the image until the text is tokenised.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dynamo.llm.model_card import ImageTraits
from dynamo.llm.protocols import ImageInput
from dynamo.llm.tokenizer.tokenizer import Tokenizer
from dynamo.runtime.errors import InvalidArgument

KINDS: Final = ("image_url", "image")
"""Types of content parts that are images."""
DETAILS: Final = ("auto", "low", "high")
"""How closely a model may be asked to look at an image."""
LONGEST_SHAPE: Final = 200
"""Widths in a height, or heights in a width, of an image that those processors take."""
MARKED: Final = 0
"""The token that stands for an image where the model has none for that."""


class ImageMark(NamedTuple):
    """Text that stands for an image in a rendered prompt."""

    text: str
    token: int | None
    """The model's own, which its template may write by itself; None: the text is a mark of this request alone."""

    @classmethod
    def of(cls, traits: ImageTraits, tokenizer: Tokenizer) -> ImageMark:
        """Return the mark for one request."""
        text = "" if traits.placeholder is None else tokenizer.decode([traits.placeholder], skip_special=False)
        if text and tokenizer.token_id(text) == traits.placeholder:
            return cls(text, traits.placeholder)
        return cls(f"<image {secrets.token_hex(8)}>", None)

    def tokens(self, text: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
        """Return the tokens of a rendered prompt, and where among them its images stand."""
        if self.token is not None:
            ids = tokenizer.encode(text, False)
            return ids, [at for at, token in enumerate(ids) if token == self.token]
        ids, places = [], []
        for number, piece in enumerate(text.split(self.text)):
            if number:
                places.append(len(ids))
                ids.append(MARKED)
            if piece:
                ids += tokenizer.encode(piece, False)
        return ids, places

    def part(self) -> dict[str, Any]:
        """Return the content part that a template which takes parts gets for an image."""
        return {"type": "image"} if self.token is not None else {"type": "text", "text": self.text}


def is_image(part: Any) -> bool:
    """Tell whether a content part is an image."""
    return isinstance(part, Mapping) and part.get("type") in KINDS


def without_urls(messages: Sequence[Any]) -> list[Any]:
    """Return messages whose images have lost their URLs: what is in them travels beside."""
    return [
        {**message, "content": [_without_url(part) if is_image(part) else part for part in message["content"]]}
        if isinstance(message, Mapping) and type(message.get("content")) is list else message
        for message in messages
    ]  # fmt: skip


def _without_url(part: Mapping[str, Any]) -> dict[str, Any]:
    image = part.get(KINDS[0])
    detail = image.get("detail") if isinstance(image, Mapping) else None
    return {"type": KINDS[0], KINDS[0]: {"detail": detail} if detail in DETAILS else {}}


def placed(images: Sequence[ImageInput], places: Sequence[int], traits: ImageTraits) -> list[ImageInput]:
    """Return the images with their places and token counts; raises where the prompt has other places than images."""
    if len(places) != len(images):
        raise InvalidArgument(
            f"messages: the prompt has places for {len(places)} image(s) and {len(images)} were sent: the model's chat "
            "template leaves some out, or a text holds the model's own token for images"
        )
    return [
        msgspec.structs.replace(image, at=at, tokens=tokens_of(traits, image.width, image.height))
        for image, at in zip(images, places, strict=True)
    ]


def tokens_of(traits: ImageTraits, width: int, height: int) -> int:
    """Return how many tokens an image of so many pixels becomes.

    With `patch`: sides are rounded to whole patches, also to none, then shrunk or grown until the area is within the
    bounds, as Qwen2-VL's and its successors' processors do. One token for each patch.
    """
    if not (side := traits.patch):
        return traits.tokens
    across, down = (round(pixels / side) for pixels in (width, height))
    if across * down * side * side > traits.most_pixels:
        ratio = math.sqrt(width * height / traits.most_pixels)
        across, down = (max(1, math.floor(pixels / ratio / side)) for pixels in (width, height))
    elif across * down * side * side < traits.least_pixels:
        ratio = math.sqrt(traits.least_pixels / (width * height))
        across, down = (math.ceil(pixels * ratio / side) for pixels in (width, height))
    count = max(1, across * down)
    if max(width, height) <= LONGEST_SHAPE * min(width, height):
        return count  # a thin one may have more than the bound
    return min(count, max(1, traits.most_pixels // (side * side)))
