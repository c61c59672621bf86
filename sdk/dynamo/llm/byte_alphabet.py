"""GPT-2's characters for bytes, in which byte-level tokenizers write their tokens."""

from __future__ import annotations

from collections.abc import Mapping


def byte_characters() -> dict[int, str]:
    """Return the character of each byte: printable ones stand for themselves, the others are moved above 255."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shown = set(plain)
    moved = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(moved)}


def written(data: bytes, characters: Mapping[int, str]) -> str:
    """Return the token that stands for `data`."""
    return "".join([characters[byte] for byte in data])
