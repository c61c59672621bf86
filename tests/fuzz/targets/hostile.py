"""Hostile values as JSON text, of any size: what every field of every request gets. Pure.

Text, since much of it has no form in Python: halves of surrogate pairs, keys that come twice, numbers that no float
holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Final

from tests.fuzz.judging import FORGED

LARGEST: Final = 3_900_000
"""A body has 4 MB."""
_FILLERS: Final = (
    b"a",
    b" ",
    b"\\n",
    b"\\t",
    b"a ",
    b"\\\\",
    b'\\"',
    b"\xc3\xa9",
    b"\xf0\x9f\x99\x82",
    b"\\u0000",
    b"\\ud83d\\ude42",
    b"\\u200b",
    b"<|im_start|>",
    b"<think>",
    b"</think>",
    b"[TOOL_CALLS]",
    b"<tool_call>",
    b"{",
    b"[",
    b"functools[",
    b"1",
    b"\xcc\x81",
    b"\xe2\x80\xa8",
    b"Aa0 ",
    b"\\u001b[31m",
)
_NUMBERS: Final = (
    b"-1",
    b"0",
    b"1",
    b"2147483647",
    b"2147483648",
    b"9007199254740993",
    b"9223372036854775808",
    b"18446744073709551616",
    b"1" + b"0" * 400,
    b"-" + b"9" * 5000,
    b"1e308",
    b"1e309",
    b"1e-400",
    b"-0.0",
    b"0.1",
    b"1E400",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1" * 100_000,
    b"0." + b"3" * 100_000,
    b"01",
    b"1.",
    b"0x10",
)
_WRONG: Final = (
    b"null",
    b"true",
    b"false",
    b'""',
    b"[]",
    b"{}",
    b"[null]",
    b'[""]',
    b"[[]]",
    b"[{}]",
    b'{"": null}',
    b'"a"',
    b"[0]",
    b'["a", 1]',
    b'{"type": "text"}',
    b'[{"type": "text"}]',
    b"",
    b"undefined",
    b"'a'",
    b"[1,]",
)
_SURROGATES: Final = (
    b'"\\ud800"',
    b'"\\udc00a"',
    b'"\\ud800\\ud800"',
    b'{"\\ud800": 1}',
    b'"\xed\xa0\x80"',
    b'"\xff\xfe"',
)
_FORGED: Final = tuple(
    json.dumps(text).encode()
    for text in (
        f"x\n{FORGED}",
        f"x\r\n{FORGED}",
        f"x\x85{FORGED}",
        f"x\u2028{FORGED}",
        f"\x1b[2K\x1b[1G{FORGED}",
        f"\x0b{FORGED}",
    )
)


def size(random: Random, largest: int = LARGEST) -> int:
    """Return a size: mostly small, a quarter of the time large."""
    return random.choice((1, 10, 100, 1_000, 10_000, 100_000, 500_000, largest // 4, largest))


def string(random: Random, largest: int = LARGEST) -> bytes:
    """A long text of one filler, sometimes with another behind it."""
    filler = random.choice(_FILLERS)
    text = filler * max(1, size(random, largest) // len(filler))
    return b'"' + text + (random.choice(_FILLERS) if random.random() < 0.3 else b"") + b'"'


def listing(random: Random, largest: int = LARGEST) -> bytes:
    """A long list of one short item."""
    items = (b"[]", b"{}", b'""', b'"a"', b"0", b"1.5", b"null", b"true", b"[[]]", b'{"a":1}', b'"a b"', b"31999")
    item = random.choice((*items, b'{"role":"user","content":"a"}', b'{"type":"text","text":"a"}', b"[1,2]"))
    return b"[" + b",".join([item] * max(1, size(random, largest) // (len(item) + 1))) + b"]"


def keys(random: Random, largest: int = LARGEST) -> bytes:
    """An object of many keys: all different, all the same, or numbers."""
    count = max(1, size(random, largest) // 12)
    kind = random.choice(("different", "same", "numbers", "long"))
    if kind == "same":
        return b"{" + b",".join([b'"model":0'] * count) + b"}"
    if kind == "long":
        return b'{"' + b"k" * (count * 12) + b'":1}'
    name = b'"%d":1' if kind == "numbers" else b'"k%x":1'
    return b"{" + b",".join([name % number for number in range(count)]) + b"}"


def nested(random: Random, largest: int = LARGEST) -> bytes:
    """Lists or objects in each other, to some depth; sometimes many side by side, with a surrogate at the bottom."""
    depth = random.choice((10, 63, 64, 65, 100, 400, 900, 1_000, 2_000, 20_000, 200_000))
    opener, closer = random.choice(
        ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]"), (b'{"type":"array","items":', b"}"))
    )
    depth = min(depth, largest // (len(opener) + len(closer)))
    bottom = random.choice((b"0", b'"a"', b"[]", b'"\\ud800"', b""))
    nested = opener * depth + bottom + closer * depth
    times = max(1, min(2_000, size(random, largest) // len(nested)))
    return nested if times == 1 else b"[" + b",".join([nested] * times) + b"]"


def schema(random: Random, largest: int = LARGEST) -> bytes:
    """A JSON schema that costs whoever compiles it."""
    count = random.choice((10, 1_000, 100_000, 10_000_000))
    few = max(1, min(count, largest // 40))
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: b'{"type":"array","minItems":%d}' % count,
        lambda: b'{"type":"string","minLength":%d}' % count,
        lambda: b'{"type":"string","pattern":"(a{1,%d}){1,%d}"}' % (min(count, 5000), min(count, 5000)),
        lambda: b'{"enum":[' + b",".join(b'"v%d"' % number for number in range(few)) + b"]}",
        lambda: b'{"$ref":"#"}',
        lambda: b'{"allOf":[' + b",".join([b'{"type":"object"}'] * min(few, 20_000)) + b"]}",
        lambda: b'{"anyOf":[' + b",".join([b'{"$ref":"#"}'] * min(few, 20_000)) + b"]}",
        lambda: (
            b'{"type":"object","properties":{' + b",".join(b'"p%d":{"type":"string"}' % n for n in range(few)) + b"}}"
        ),
        lambda: b'{"type":"integer","minimum":%d,"maximum":1%s}' % (-count, b"0" * 300),
        lambda: b'{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}',
        lambda: b'{"properties":' * 500 + b"{}" + b"}" * 500,
    )
    return random.choice(kinds)()


def value(random: Random, largest: int = LARGEST) -> bytes:
    """Any of them, as text that stands where a JSON value does."""
    makers = (string, listing, keys, nested)
    kind = random.random()
    if kind < 0.5:
        return random.choice(makers)(random, largest)
    if kind < 0.62:
        return random.choice(_NUMBERS)
    if kind < 0.78:
        return random.choice(_WRONG)
    if kind < 0.86:
        return random.choice(_SURROGATES)
    return random.choice(_FORGED) if kind < 0.93 else schema(random, largest)
