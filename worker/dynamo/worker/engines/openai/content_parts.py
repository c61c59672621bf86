"""Messages of a chat as a server may have them. Pure.

Servers fetch what a content part names, also where its type says that it is a text. So each part is written anew, of
fields that are known, and an image of the bytes that its frontend has read: no URL of a client's reaches a server.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dynamo.llm.processing.image_prompts import DETAILS, is_image
from dynamo.llm.protocols import ImageInput
from dynamo.runtime.errors import InvalidArgument

MOST_BYTES: Final = 64 << 20
"""Of all images in a request, whatever its frontend takes."""
BY_IDS: Final = (
    "Its server is asked by token ids, which carry no images: a worker in text mode passes them on, without "
    "--model-path and with the engine argument images."
)
IN_TEXT: Final = "Where its server takes images, the worker's engine argument images passes them on."
_TEXTS: Final = ("text", "input_text", "refusal", "thinking", "redacted_thinking", "reasoning")
_KEPT: Final = ("type", "text", "refusal", "thinking", "signature", "data", "reasoning", "summary", "cache_control")
"""Fields of those. Not `uuid`, by which vLLM takes a text for an image, and an image for another client's."""


def messages_for(messages: Any, images: Sequence[ImageInput] | None) -> Any:
    """Return messages with `images` in their places, None where the server takes none.

    Raises `InvalidArgument` for what a server must not see, or where there are other places than images.
    """
    if not isinstance(messages, list):
        return messages
    if sum(len(image.data) for image in images or ()) > MOST_BYTES:
        raise InvalidArgument(f"messages: engine openai passes on {MOST_BYTES} bytes of images at most")
    left = None if images is None else iter(images)
    made = [_message(message, index, left) for index, message in enumerate(messages)]
    if next(left or iter(()), None) is not None:
        raise InvalidArgument("messages: there are fewer places for images than images")
    return made


def _message(message: Any, index: int, images: Iterator[ImageInput] | None) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if content is None or isinstance(content, str):
        return message
    if not isinstance(content, list):
        raise InvalidArgument(f"messages[{index}].content: expected a text or a list of parts")
    parts = [_part(part, f"messages[{index}].content[{number}]", images) for number, part in enumerate(content)]
    return {**message, "content": parts}


def _part(part: Any, where: str, images: Iterator[ImageInput] | None) -> dict[str, Any]:
    if is_image(part):
        return _image(part, where, images)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in _TEXTS:
        raise InvalidArgument(f"{where}: engine openai passes on texts and images, not {str(kind)[:80]!r}")
    return {name: part[name] for name in _KEPT if name in part}


def _image(part: Mapping[str, Any], where: str, images: Iterator[ImageInput] | None) -> dict[str, Any]:
    if images is None:
        raise InvalidArgument(f"{where}: this worker passes no images on. {IN_TEXT}")
    image = next(images, None)
    if image is None:
        raise InvalidArgument(f"{where}: an image has to come as bytes that a frontend has read, not by its URL")
    shown = {"url": f"data:image/{image.format};base64,{base64.b64encode(image.data).decode()}"}
    asked = part.get("image_url")
    detail = asked.get("detail") if isinstance(asked, Mapping) else None
    return {"type": "image_url", "image_url": {**shown, "detail": detail} if detail in DETAILS else shown}
