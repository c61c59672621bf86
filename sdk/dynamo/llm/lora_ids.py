"""`lora_name_to_id`: the number by which engines know an adapter, from its name: BLAKE3, as NVIDIA Dynamo has it.

There are no adapters in this version; programs use the number for their engine's own. BLAKE3 of one short text is forty
lines, and a library for it would be a compiled dependency of everybody.
"""

from __future__ import annotations

import struct
from typing import Final

from dynamo.runtime.errors import InvalidArgument

LONGEST: Final = 1024
"""Bytes: one chunk of BLAKE3, which is then no tree."""
_BLOCK: Final = 64
_IV: Final = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
_ORDER: Final = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_CHUNK_START, _CHUNK_END, _ROOT = 1, 2, 8
_MIXED: Final = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
_WORD: Final = 0xFFFFFFFF


def lora_name_to_id(lora_name: str) -> int:
    """Return a number from 0 to 2**31 - 1; the same name gives the same everywhere.

    `InvalidArgument` above 1,024 bytes.
    """
    data = lora_name.encode()
    if len(data) > LONGEST:
        raise InvalidArgument(f"the name of an adapter has at most {LONGEST} bytes, this one {len(data)}")
    return _digest(data)[1] & 0x7FFFFFFF


def _digest(data: bytes) -> list[int]:
    """Return the first two words, big-endian, of BLAKE3 of at most one chunk."""
    blocks = [data[at : at + _BLOCK] for at in range(0, len(data), _BLOCK)] or [b""]
    chain = list(_IV)
    for number, block in enumerate(blocks):
        flags = (_CHUNK_START if number == 0 else 0) | (_CHUNK_END | _ROOT if number == len(blocks) - 1 else 0)
        words = list(struct.unpack("<16I", block.ljust(_BLOCK, b"\0")))
        chain = _compress(chain, words, len(block), flags)
    return list(struct.unpack(">2I", struct.pack("<2I", *chain[:2])))


def _compress(chain: list[int], words: list[int], length: int, flags: int) -> list[int]:
    state = [*chain, *_IV[:4], 0, 0, length, flags]
    for _ in range(7):
        for number, places in enumerate(_MIXED):
            _mix(state, places, words[2 * number], words[2 * number + 1])
        words = [words[at] for at in _ORDER]
    return [state[at] ^ state[at + 8] for at in range(8)]


def _mix(state: list[int], places: tuple[int, int, int, int], first: int, second: int) -> None:
    a, b, c, d = places
    for word, (turn_d, turn_b) in ((first, (16, 12)), (second, (8, 7))):
        state[a] = (state[a] + state[b] + word) & _WORD
        state[d] = _turned(state[d] ^ state[a], turn_d)
        state[c] = (state[c] + state[d]) & _WORD
        state[b] = _turned(state[b] ^ state[c], turn_b)


def _turned(word: int, bits: int) -> int:
    return (word >> bits) | (word << (32 - bits)) & _WORD
