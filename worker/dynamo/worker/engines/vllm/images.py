"""Images for vLLM: decoded, and rendered with the prompt by vLLM's own processor, which puts their tokens in.

vLLM names an image's blocks by an identifier. Ours is told to it, the digest that routers hash with, so that its KV
events and the frontends' names of a block are equal.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm.model_card import ImageTraits
from dynamo.llm.models.image_traits import traits_of
from dynamo.llm.protocols import ImageInput, PreprocessedRequest
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.worker.engines.vllm.requests import ImagesLost

if TYPE_CHECKING:
    from dynamo.llm import LocalModel

AT_ONCE: Final = 2
"""Requests whose images are in memory as pixels; vLLM's processor has one thread."""
MOST_PIXELS: Final = 1 << 27
"""Of all images in a request, whatever its frontend takes."""
_IMAGE: Final = "image"


def traits_for(config: Any, model: LocalModel) -> ImageTraits | None:
    """Return how the model takes images; None where vLLM runs it on text alone."""
    multimodal = getattr(config.model_config, "multimodal_config", None)
    if multimodal is None or multimodal.get_limit_per_prompt(_IMAGE) < 1:
        return None
    return traits_of(model.card, model.files)


class ImagePrompts:
    """Renders prompts with images, a few at once."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)

    async def rendered(self, llm: Any, request: PreprocessedRequest, *, whole: bool = False) -> Any:
        """Return vLLM's input for a request; `InvalidArgument` for an image that can't be decoded or resized.

        `whole`: also with the images that vLLM's core is thought to have. Raises `ImagesLost` where it has to be.
        """
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        images = request.images or []
        async with self._places:
            pixels, names = await asyncio.to_thread(decoded, images)
            prompt = {
                "prompt_token_ids": request.token_ids,
                "multi_modal_data": {_IMAGE: pixels},
                "multi_modal_uuids": {_IMAGE: names},
            }
            try:
                parsed = parse_model_prompt(llm.model_config, prompt)
                (made,) = await llm.renderer.render_cmpl_async([parsed], skip_mm_cache=whole)
            except AssertionError as error:  # of its cache, if another request has found out meanwhile that it is wrong
                raise (EngineError if whole else ImagesLost)(f"vLLM could not prepare the images: {error}") from error
            except ValueError as error:
                raise _reason(error) from error
            return made


def _reason(error: ValueError) -> Exception:
    """Return the processor's own words, where vLLM hides them behind the objects that it was called with."""
    cause = error.__cause__
    return error if cause is None else InvalidArgument(f"images: the model's processor can't take them: {cause}"[:500])


def decoded(images: Sequence[ImageInput]) -> tuple[list[Any], list[str]]:
    """Return the first frame of each image as RGB, and its digest, which is computed here: nobody's word is taken."""
    left, pixels, names = MOST_PIXELS, [], []
    for number, image in enumerate(images):
        pixels.append(_pixels(image, number, left))
        left -= pixels[-1].width * pixels[-1].height
        names.append(hashlib.blake2b(image.data, digest_size=16).hexdigest())
    return pixels, names


def _pixels(image: ImageInput, number: int, left: int) -> Any:
    """Decode one image; its format and size must be those that its header was read to have."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(image.data), formats=[image.format.upper()]) as opened:
            width, height = opened.size
            if width * height > min(image.width * image.height, left):
                raise InvalidArgument(f"images[{number}]: it has more pixels than its header says, or than are taken")
            return _on_white(opened)
    except InvalidArgument:
        raise
    except Exception as error:  # of many kinds, some of which are the decoder's own
        raise InvalidArgument(f"images[{number}] can't be decoded: {str(error)[:200]}") from error


def _on_white(image: Any) -> Any:
    """Return an image as RGB; what is transparent shows white, as in vLLM's own server."""
    from PIL import Image

    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    ground = Image.new("RGB", layer.size, (255, 255, 255))
    ground.paste(layer, mask=layer.getchannel("A"))
    return ground
