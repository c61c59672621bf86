"""Names of KV blocks: a hash of a block's tokens, and one of everything up to its end.

Numbers equal those of Dynamo's `compute_block_hash_for_seq` and `compute_seq_hash_for_block`
(XXH3, 64 bits), so that its workers, clients and traces can be read. Only whole blocks have a hash.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from xxhash import xxh3_64_intdigest as _xxh3

SEED: Final = 1337
_WRAP: Final = (1 << 64) - 1
_TOKEN_BYTES: Final = 4
_link = struct.Struct("<QQ").pack


def seed_of(lora_name: str | None = None, cache_namespace: str | None = None) -> int:
    """Return the seed of a request's blocks: other adapters and other cache namespaces never share one."""
    seed = SEED
    if lora_name:
        seed += _xxh3(lora_name.encode(), seed=0)
    if cache_namespace:
        seed += _xxh3(cache_namespace.encode(), seed=1)
    return seed & _WRAP


def block_hashes(
    tokens: Sequence[int],
    block_size: int,
    *,
    seed: int = SEED,
    media: Sequence[Iterable[int]] = (),
    eagle: bool = False,
) -> list[int]:
    """Return one hash per whole block of `block_size` tokens, of its own tokens only.

    `media[i]` are the hashes (64 bits) of the images that touch block i. `eagle`: a block is named by one token
    more than it holds, as speculative decoding with EAGLE does. Raises `ValueError` for what isn't a token id.
    """
    data = _packed(tokens)
    stride = _stride(block_size)
    if not eagle and not any(media):
        # Most prompts, on every request: cut in C.
        pieces = struct.iter_unpack(f"{stride}s", data[: len(data) // stride * stride])
        return [_xxh3(piece, seed) for (piece,) in pieces]
    window = stride + _TOKEN_BYTES if eagle else stride
    starts = range(0, len(data) - window + 1, stride)
    if any(media):
        return [
            _xxh3(bytes(data[at : at + window]) + _media(media, index), seed=seed) for index, at in enumerate(starts)
        ]
    return [_xxh3(data[at : at + window], seed) for at in starts]


def sequence_hashes(blocks: Iterable[int], after: int | None = None) -> list[int]:
    """Return the hash of each prefix: the first block's hash, then each chained to the one before.

    `after` is the hash of the prefix that these blocks continue, if they don't begin a sequence.
    """
    chained: list[int] = []
    append, last = chained.append, after
    for block in blocks:
        last = block if last is None else _xxh3(_link(last, block), SEED)
        append(last)
    return chained


def compute_block_hash_for_seq(
    tokens: Sequence[int],
    kv_block_size: int,
    block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
    lora_name: str | None = None,
    is_eagle: bool | None = None,
    cache_namespace: str | None = None,
) -> list[int]:
    """Return `block_hashes` under NVIDIA Dynamo's name and with its arguments.

    Equal numbers (tests pin ai-dynamo 1.6.1's).

    `block_mm_infos` has per block None or `{"mm_objects": [{"mm_hash": int, ...}]}`. Raises `ValueError` for what
    isn't a token id, a block of no tokens, or media of another form.
    """
    seed = seed_of(lora_name, cache_namespace)
    return block_hashes(
        tokens, kv_block_size, seed=seed, media=media_hashes(block_mm_infos or ()), eagle=bool(is_eagle)
    )


compute_block_hash_for_seq_py = compute_block_hash_for_seq
"""The name up to 0.8."""


def media_hashes(block_mm_infos: Iterable[Mapping[str, Any] | None]) -> list[list[int]]:
    """Return the `media` of `block_hashes` from NVIDIA Dynamo's form; raises `ValueError` where it is another one."""
    try:
        return [[item["mm_hash"] & _WRAP for item in info["mm_objects"]] if info else [] for info in block_mm_infos]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"block_mm_infos has None or {{'mm_objects': [{{'mm_hash': int}}]}} for each block: {error!r}"
        ) from error


def _stride(block_size: int) -> int:
    if block_size < 1:
        raise ValueError(f"a KV block has at least one token, not {block_size}")
    return block_size * _TOKEN_BYTES


def _packed(tokens: Sequence[int]) -> memoryview:
    """Pack four bytes a token, little-endian."""
    try:
        if isinstance(tokens, list):
            ids = array("I")
            ids.fromlist(tokens)  # twice as quick as giving it to the constructor
        else:
            ids = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"a token id is a whole number from 0 to 2**32 - 1: {error}") from error
    if sys.byteorder == "big":
        ids.byteswap()
    return memoryview(ids).cast("B")


def _media(media: Sequence[Iterable[int]], index: int) -> bytes:
    own = sorted(media[index]) if index < len(media) else []
    return struct.pack(f"<{len(own)}Q", *own)
