"""A prompt with images as KV caches see it: each image's tokens one by one, and which blocks it touches. Pure.

A request's `cache_salt` is hashed into its first block, on which the names of all others follow.

Two images of one size are the same tokens, so a block's hash also has the digests of the images that touch it
(`block_hash.block_hashes`, as NVIDIA Dynamo and vLLM do). Routers and simulated engines both ask here, so that their
names of a block are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from dynamo.llm.protocols import ImageInput, PreprocessedRequest

_SALT_SEED: Final = 1
"""NVIDIA Dynamo's for names of caches."""
_DIGITS: Final = 16
"""Hexadecimal digits of a digest that make the 64 bits in a block's hash."""


class CachedPrompt(NamedTuple):
    """Tokens as they stand in a cache."""

    tokens: list[int]
    media: list[list[int]]
    """Of each block, also the last one that isn't whole: hashes of the images that touch it. Empty: of no block."""


def cached_prompt(request: PreprocessedRequest, block_size: int) -> CachedPrompt:
    """Return a request's prompt; raises `ValueError` where its images stand where there are no tokens."""
    salt = salt_of(request)
    if request.images is None:
        return CachedPrompt(request.token_ids, [] if salt is None else _salted([], salt))
    spans = _spans(request.token_ids, request.images)
    tokens: list[int] = []
    taken = 0
    for image in request.images:
        tokens += request.token_ids[taken : image.at]
        tokens += [request.token_ids[image.at]] * image.tokens
        taken = image.at + 1
    tokens += request.token_ids[taken:]
    media: list[list[int]] = [[] for _ in range(-(-len(tokens) // block_size))]
    for (begin, end), image in zip(spans, request.images, strict=True):
        for block in range(begin // block_size, (end - 1) // block_size + 1):
            media[block].append(hash_of(image))
    return CachedPrompt(tokens, media if salt is None else _salted(media, salt))


def is_plain(request: PreprocessedRequest) -> bool:
    """Tell whether its tokens alone name its blocks."""
    return request.images is None and (request.routing is None or request.routing.cache_salt is None)


def salt_of(request: PreprocessedRequest) -> str | None:
    """Return what keeps its blocks apart from those of others."""
    return None if request.routing is None else request.routing.cache_salt


def _salted(media: list[list[int]], salt: str) -> list[list[int]]:
    first = [*(media[0] if media else ()), xxh3_64_intdigest(salt.encode(), seed=_SALT_SEED)]
    return [first, *media[1:]]


def hash_of(image: ImageInput) -> int:
    """Return the 64 bits by which blocks tell it from others."""
    return int(image.digest[:_DIGITS], 16)


def _spans(tokens: Sequence[int], images: Sequence[ImageInput]) -> list[tuple[int, int]]:
    spans, added, before = [], 0, -1
    for image in images:
        if not before < image.at < len(tokens):
            raise ValueError("images stand at tokens of the prompt, each behind the one before")
        spans.append((image.at + added, image.at + added + image.tokens))
        added, before = added + image.tokens - 1, image.at
    return spans
