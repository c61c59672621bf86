"""Prompts with images as caches see them: expanded, and named by what is in the images."""

from __future__ import annotations

import msgspec
import pytest

from dynamo.llm.kv.block_hash import block_hashes, compute_block_hash_for_seq
from dynamo.llm.kv.image_blocks import cached_prompt, hash_of
from dynamo.llm.protocols import ImageInput, PreprocessedRequest


def image(digit: str, at: int, tokens: int) -> ImageInput:
    return ImageInput(data=b"x", format="png", digest=digit * 32, width=1, height=1, at=at, tokens=tokens)


def request(*images: ImageInput) -> PreprocessedRequest:
    return PreprocessedRequest(model="m", token_ids=[1, 2, 99, 3, 99, 4], images=list(images) or None)


def test_each_image_takes_its_tokens_and_touches_its_blocks() -> None:
    """Three tokens of one image and five of the next, in blocks of four."""
    asked = request(image("a", 2, 3), image("b", 4, 5))
    prompt = cached_prompt(asked, 4)
    assert prompt.tokens == [1, 2, 99, 99, 99, 3, 99, 99, 99, 99, 99, 4]
    assert len(prompt.tokens) == asked.prompt_tokens == 12
    first, second = 0xAAAAAAAAAAAAAAAA, 0xBBBBBBBBBBBBBBBB
    assert prompt.media == [[first], [first, second], [second]]
    assert cached_prompt(request(), 4) == ([1, 2, 99, 3, 99, 4], [])


def test_two_images_are_two_names_from_their_first_block_on() -> None:
    """Equal tokens and other pixels share the blocks before the image, and none behind; NVIDIA Dynamo names alike."""
    one, other = (cached_prompt(request(image(digit, 4, 9)), 4) for digit in "ab")
    names, others = (block_hashes(prompt.tokens, 4, media=prompt.media) for prompt in (one, other))
    assert one.tokens == other.tokens
    assert names[0] == others[0]
    assert not {*names[1:]} & {*others[1:]}
    theirs = [{"mm_objects": [{"mm_hash": number} for number in own]} for own in one.media]
    assert compute_block_hash_for_seq(one.tokens, 4, theirs) == names


@pytest.mark.parametrize("places", [(6,), (4, 2), (2, 2)])
def test_places_that_are_none(places: tuple[int, ...]) -> None:
    """A request may come from anybody in the namespace."""
    with pytest.raises(ValueError, match="images stand"):
        cached_prompt(request(*[image("a", at, 2) for at in places]), 4)


def test_a_request_travels_with_its_images() -> None:
    """And one without says nothing of them."""
    asked = request(image("c", 2, 3))
    data = msgspec.msgpack.encode(asked)
    back = msgspec.msgpack.decode(data, type=PreprocessedRequest)
    assert back.images is not None
    assert hash_of(back.images[0]) == 0xCCCCCCCCCCCCCCCC
    assert b"images" not in msgspec.msgpack.encode(request())
    for wrong in ({"digest": "zz" * 16}, {"tokens": 0}, {"format": "svg"}, {"width": 0}, {"at": -1}):
        plain = msgspec.to_builtins(asked)
        plain["images"][0] |= wrong
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(plain, PreprocessedRequest)
