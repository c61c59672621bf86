"""A random answer that keeps to a grammar: a seeded walk over its bytes, which likes to end soon.

For engines without a model (the mocker). It runs in the process that compiles constraints, whose time and memory are
bounded; the walk has bounds of its own, so that a grammar without an end gives an answer that is cut.
"""

from __future__ import annotations

import random
import string
import time
from typing import Any, Final

from dynamo.runtime.errors import InvalidArgument

MOST_BYTES: Final = 8192
"""Of an answer; one that isn't over by then is cut."""
WALK_SECONDS: Final = 0.2
"""CPU time of a walk: with that of the trial before it, it stays under the process's."""
_LETTERS: Final = b"etaoinshr"
_SPACE: Final = frozenset(b" \t\n\r")
_NUMBER_MARKS: Final = frozenset(b".eE+-")
_OPENERS: Final = frozenset(b"{[")
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\')
_MARKS: Final = ((ord("}"), 0.95), (ord("]"), 0.5), (ord(","), 0.5))
"""What ends a part of an answer, and its chance: few objects get more properties than they need."""
_OTHERS: Final = 0.15
_JOINS: Final = b"@:/.-"
"""What a text of a format may need before it can end, in the order of need."""
_WORD: Final = frozenset((string.ascii_letters + string.digits).encode())
_SOON: Final = 256
"""Bytes after which everything that may end does; half of what there is room for, where that is less."""
_ENDS: Final = 0.35
"""Chance that a text which may end at a place does."""


def written(matcher: Any, kind: str, seed: int, room: int = 0) -> tuple[str, bool]:
    """Return a text that the matcher accepts, and whether it is whole: else it was cut at a bound.

    `room`: tokens that it may have, each a byte at least; 0: any number.
    """
    soon = min(_SOON, room // 2) if room else _SOON
    draw, out = random.Random(seed), bytearray()
    began = time.process_time()
    while len(out) < MOST_BYTES and time.process_time() - began < WALK_SECONDS:
        accepted = bool(matcher.is_accepting())
        if accepted and (kind == "json" or (out and draw.random() < _ENDS)):
            return out.decode(errors="ignore"), True
        allowed = _allowed(matcher.compute_bitmask())
        if not allowed or matcher.is_error():
            return out.decode(errors="ignore"), accepted
        byte = _choose(allowed, out, draw, kind, soon)
        out.append(byte)
        if not matcher.consume_token(byte):
            raise InvalidArgument(f"guided decoding ({kind}): {matcher.get_error().splitlines()[0][:500]}")
    return out.decode(errors="ignore"), bool(matcher.is_accepting())


def _allowed(mask: bytes) -> list[int]:
    return [byte for byte in range(256) if mask[byte // 8] >> (byte % 8) & 1]


def _choose(allowed: list[int], out: bytearray, draw: random.Random, kind: str, soon: int) -> int:
    """Choose the next byte: in free text a letter or its end, elsewhere what closes rather than what opens."""
    if len(allowed) == 1:
        return allowed[0]
    known = frozenset(allowed)
    closes = min(1.0, 0.3 + len(out) / max(1, soon))
    if known.issuperset(_LETTERS):
        return _in_text(known, out, draw, closes, kind)
    for mark, chance in _MARKS:
        if mark in known and draw.random() < max(closes, chance):
            return mark
    places = known - _SPACE or known
    places = places - _NUMBER_MARKS or places
    if len(out) > soon:
        places = places - _OPENERS or places
    places = places & _PLAIN | places & frozenset(b'"') or places
    return draw.choice(sorted(places))


def _in_text(known: frozenset[int], out: bytearray, draw: random.Random, closes: float, kind: str) -> int:
    """Choose a character of free text. A text is closed where it may be, but seldom before its first character."""
    quote, empty = ord('"') in known and kind != "regex", out[-1:] == b'"'
    if quote and draw.random() < (closes / 8 if empty else closes):
        return ord('"')
    if not quote and kind == "json":  # it must go on, as an address up to its sign does
        joins = [mark for mark in _JOINS if mark in known]
        return joins[0] if joins and draw.random() < closes else draw.choice(_LETTERS)
    if quote:
        return ord(" ") if ord(" ") in known and not empty and draw.random() < _OTHERS else draw.choice(_LETTERS)
    ends = sorted(known & _PLAIN - _WORD)  # a text that isn't in quotes ends with what is no word
    if ends and draw.random() < closes / 2:
        return ord(" ") if ord(" ") in known else draw.choice(ends)
    return draw.choice(_LETTERS if draw.random() > _OTHERS else sorted(known & _WORD))
