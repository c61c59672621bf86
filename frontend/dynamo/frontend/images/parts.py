"""Images among the parts of messages, as clients of the chat API send them: found, counted, and read where they are
in the request itself. Pure.

Other APIs bring theirs into the same form: `image_part`."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from dynamo.frontend.errors import ApiError, bad_request, shown
from dynamo.frontend.images.headers import UnreadableImage, read_header
from dynamo.llm.processing.image_prompts import is_image
from dynamo.llm.protocols import ImageInput

URL: Final = "image_url"
PATH: Final = "path"
LONGEST_URL: Final = 4096
_DATA: Final = "data:"
_LONGEST_TYPE: Final = 256
"""Characters before a data URL's comma."""
_DIGEST_BYTES: Final = 16


class ImageRef(NamedTuple):
    """Image of a request, by its URL."""

    url: str
    path: str
    """The field, in the client's words."""


def image_part(url: str, path: str) -> dict[str, Any]:
    """Return a chat's content part for an image that stood at `path` of another API's body."""
    return {"type": URL, URL: {"url": url}, PATH: path}


def images_in(messages: Sequence[Any]) -> list[ImageRef]:
    """Return the images of checked messages; a 400 names a part that has none."""
    refs = []
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else message.content
        if type(content) is list:
            refs += [_ref(part, f"messages[{index}].content[{number}]") for number, part in enumerate(content)
                     if is_image(part)]  # fmt: skip
    return refs


def _ref(part: Mapping[str, Any], path: str) -> ImageRef:
    own = part.get(PATH)
    path = own if isinstance(own, str) else path
    value = part.get(URL)
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str) or not url:
        text = f'{path}.{URL}: an image needs a url, as {{"url": "data:image/png;base64,…"}}.'
        raise bad_request(text, f"{path}.{URL}", "invalid_type" if url is not None else "missing_required_parameter")
    return ImageRef(url, path)


def check_count(refs: Sequence[ImageRef], most: int) -> None:
    """Raise the 400 of too many images."""
    if len(refs) > most:
        text = f"messages: the request has {len(refs)} images: at most {most} are taken (--image-max-count)."
        raise bad_request(text, refs[most].path, "too_many_images")


def is_data(ref: ImageRef) -> bool:
    """Tell whether the image is in the request itself."""
    return ref.url[: len(_DATA)].lower() == _DATA


def read_data(ref: ImageRef, most: int) -> bytes:
    """Return the bytes of a data URL, of which there may be `most`."""
    comma = ref.url.find(",", 0, _LONGEST_TYPE)
    head = ref.url[:comma].lower()
    if comma < 0 or not head.endswith(";base64"):
        raise _refused(ref, "a data URL is data:image/TYPE;base64,DATA")
    if (len(ref.url) - comma - 1) // 4 * 3 - 2 > most:
        raise too_large(ref)
    try:
        return binascii.a2b_base64(ref.url[comma + 1 :], strict_mode=True)
    except ValueError:  # also of characters that no base64 has
        raise _refused(ref, "its base64 is broken") from None


def measured(ref: ImageRef, data: bytes, most_pixels: int) -> ImageInput:
    """Return an image with what its header says; a 400 for what is none, or has more than `most_pixels`."""
    try:
        header = read_header(data)
    except UnreadableImage as error:
        raise _refused(ref, str(error)) from None
    if header.width * header.height > most_pixels:
        text = (
            f"{ref.path}: an image of {header.width} x {header.height} pixels is more than is left of those that are "
            "taken in one request (--image-max-megapixels)."
        )
        raise bad_request(text, ref.path, "image_too_large")
    digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
    return ImageInput(data=data, format=header.format, digest=digest, width=header.width, height=header.height)


def too_large(ref: ImageRef) -> ApiError:
    """Return the 400 of an image that has more bytes than are left."""
    text = f"{ref.path}: the images of this request are larger than is taken (--image-max-mb)."
    return bad_request(text, ref.path, "image_too_large")


def _refused(ref: ImageRef, why: str) -> ApiError:
    return bad_request(f"{ref.path}: this image can't be read: {why}.", ref.path, "invalid_image")


def not_taken(ref: ImageRef, model: str, able: Sequence[str], own: str = "") -> ApiError:
    """Return the 400 of an image for a model that takes none; `own`: what would have it take some."""
    names = ", ".join(shown(name) for name in able[:10])
    hint = f"Models here that do: {names}." if able else "No model here does."
    text = f"{ref.path}: the model {shown(model)} takes no images. {hint} {own}".rstrip()
    return bad_request(text, ref.path, "unsupported_value")
