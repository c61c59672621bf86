"""Images in the mocker's cache: the names that a router gives, and what it says of them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv.image_blocks import cached_prompt
from dynamo.llm.kv.scheduler import KvScheduler
from dynamo.llm.protocols import ImageInput, PreprocessedRequest
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.mocker.images import OWN, description
from dynamo.worker.engines.mocker.scheduler import Limits, Scheduler
from dynamo.worker.engines.support.request_checks import check_images


def image(digit: str, at: int, tokens: int) -> ImageInput:
    return ImageInput(data=b"x", format="png", digest=digit * 32, width=280, height=140, at=at, tokens=tokens)


def names_after(request: PreprocessedRequest, answer: list[int]) -> set[int]:
    """What is cached when a request has been computed and answered."""
    scheduler: Scheduler[None] = Scheduler(Limits(block_size=4))
    sequence = scheduler.add(None, *cached_prompt(request, 4))
    for token in answer:
        assert scheduler.plan().producing
        scheduler.advance(sequence, token)
    return set(scheduler.pool.names())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 9), st.integers(1, 12))
def test_a_router_names_the_blocks_alike(sizes: list[int], before: int, answered: int) -> None:
    """Also the block that an image shares with the answer: the next turn's prompt finds all of it."""
    tokens = list(range(before)) + [99] * len(sizes)
    images = [image("abcd"[number], before + number, size) for number, size in enumerate(sizes)]
    first = PreprocessedRequest(model="m", token_ids=tokens, images=images)
    answer = list(range(100, 100 + answered))
    router = KvScheduler(4, Weights(), 0.0, Random(1).random, 1.0)
    following = PreprocessedRequest(model="m", token_ids=tokens + answer, images=images)
    prompt, media = cached_prompt(following, 4)
    assert names_after(first, answer) == set(router.prompt(prompt, media=media).hashes)


def test_other_images_are_other_blocks() -> None:
    """Of the same size, at the same place."""
    one, other = (
        PreprocessedRequest(model="m", token_ids=[1, 2, 3, 4, 99], images=[image(digit, 4, 8)]) for digit in "ab"
    )
    assert len(names_after(one, [7]) & names_after(other, [7])) == 1


def test_what_engines_refuse() -> None:
    """Images for an engine without, by its name, and places that the prompt hasn't."""
    request: Any = PreprocessedRequest(model="m", token_ids=[1], images=[image("a", 1, 2)])
    with pytest.raises(InvalidArgument, match="engine sglang takes none"):
        check_images(request, "sglang", None)
    with pytest.raises(InvalidArgument, match="no token"):
        check_images(request, "mocker", OWN)
    check_images(PreprocessedRequest(model="m", token_ids=[1]), "sglang", None)


def test_descriptions_are_bounded() -> None:
    """Eight of a thousand are described."""
    assert description([image("a", 0, 50)]) == " I see 1 image: png of 280 x 140 pixels, 50 tokens, aaaaaaaa."
    assert len(description([image("a", 0, 50)] * 1000)) < 700
