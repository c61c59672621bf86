"""What a JSON text is made of, counted without decoding it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dynamo.frontend.errors import ApiError
from dynamo.frontend.openai.body import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_STRINGS,
    Shape,
    check_shape,
    shape_of,
)
from dynamo.frontend.openai.request_structs import MAX_VALUES

TEXTS = ["", "a", 'quoted "text", {x: [1, 2]}', "back\\slash", '\\"', "\\\\", "}{][,", "é😀\n", "123,456"]


def made_up(source: random.Random, depth: int = 0) -> Any:
    """Some JSON value with what could be mistaken for structure in its strings."""
    kind = source.randrange(4 if depth < 6 else 2)
    if kind == 0:
        return source.choice(TEXTS)
    if kind == 1:
        return source.choice([0, -1.5, 10**30, True, None])
    inner = [made_up(source, depth + 1) for _ in range(source.randrange(4))]
    return inner if kind == 2 else {source.choice(TEXTS) + str(number): value for number, value in enumerate(inner)}


def counted(value: Any) -> Shape:
    """The same by walking the decoded value."""
    if isinstance(value, str):
        return Shape(0, 0, 1, 0, False)
    if not isinstance(value, list | dict):
        return Shape(0, 0, 0, 0, False)
    inner = [counted(one) for one in (value.values() if isinstance(value, dict) else value)]
    names = len(value) if isinstance(value, dict) else 0
    commas = max(0, len(value) - 1)
    return Shape(
        1 + max((one.depth for one in inner), default=0),
        1 + sum(one.containers for one in inner),
        names + sum(one.strings for one in inner),
        commas + sum(one.values for one in inner),
        False,
    )


@pytest.mark.parametrize("seed", range(200))
def test_counts_are_those_of_the_decoded_value(seed: int) -> None:
    """Brackets, commas, quotes and backslashes in strings count for nothing."""
    value = made_up(random.Random(seed))
    for raw in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert shape_of(raw.encode()) == counted(value)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested too deeply"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "nested too deeply"),
        (b"[" * 4_000_000, "nested too deeply"),
        (b"[" + b"[]," * 100 + b"[" * (MAX_DEPTH + 1), "nested too deeply"),
        (b"[" + b"[]," * MAX_CONTAINERS + b"1]", "objects and arrays"),
        (b"[" + b'"",' * (MAX_STRINGS + 1) + b"1]", "strings"),
        (b"[" + b"1," * (MAX_VALUES + 1) + b"1]", "values"),
        (b"[" + b" " * 70_000 + b"1" * (MAX_DIGITS + 1) + b"]", "digits"),
    ],
)
def test_too_much_of_anything_is_refused(raw: bytes, words: str) -> None:
    """Depth, containers, strings, values and digits each have a bound, and a sentence."""
    with pytest.raises(ApiError, match=words) as caught:
        check_shape(raw)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        b'{"prompt":"' + b"[" * 3_000_000 + b'"}',
        b'{"prompt":"' + b'{\\"a\\": [1, 2]},' * 200_000 + b'"}',
        b'{"prompt":"' + b"9" * 3_000_000 + b'"}',
        b'{"prompt":"' + b"\\\\" * 1_500_000 + b'"}',
        b'{"prompt":[' + b"123456," * 500_000 + b"1]}",
        b"[" + b'{"role":"user","content":[{"type":"text","text":"a"}]},' * 10_000 + b"{}]",
    ],
)
def test_what_models_are_asked_is_taken(raw: bytes) -> None:
    """Code, prose and numbers in strings are no structure; token ids and long chats are within the bounds."""
    check_shape(raw)
