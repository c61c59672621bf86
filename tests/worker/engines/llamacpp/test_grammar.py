"""What constrains an answer of llama.cpp, against the library that compiles it."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.llamacpp.requests import grammar_of

ENDS = '"minimum": -999999999999999, "maximum": 999999999999999'
TIGHT = '"x-guidance": {"whitespace_flexible": false}'
"""Small models fill white space without end."""


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        ({"grammar": 'root ::= "a"'}, 'T0: "a"'),
        ({"grammar": '%llguidance {}\nstart: "a"'}, '\nstart: "a"'),
        ({"json": {"type": "object"}}, f'start: %json {{"type": "object", {TIGHT}}}'),
        ({"json": ' {"type":\n "object"}'}, f'start: %json {{"type": "object", {TIGHT}}}'),
        (
            {"json": {"x-guidance": {"whitespace_flexible": True}}},
            'start: %json {"x-guidance": {"whitespace_flexible": true}}',
        ),
        (
            {"json": {"properties": {"type": {"type": "integer"}}, "default": {"type": "integer"}}},
            f'{{"properties": {{"type": {{"type": "integer", {ENDS}}}}}, "default": {{"type": "integer"}}, {TIGHT}}}',
        ),
        ({"json": {"type": "integer", "maximum": 5}}, f'{{"type": "integer", "maximum": 5, {TIGHT}}}'),
        ({"json": True, "whitespace_pattern": "[ ]?"}, 'start: %json {"x-guidance": {"whitespace_pattern": "[ ]?"}}'),
        ({"regex": "a/b+"}, "start: /"),
        ({"choice": ['say "yes"', "no"]}, 'CHOICE: "say \\"yes\\"" | "no"'),
    ],
)
def test_each_kind_has_its_grammar(wanted: dict[str, Any], part: str) -> None:
    """One that the library compiles."""
    assert part in (grammar_of(wanted) or "")


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"json": {"type": "nonsense"}, "backend": "auto"}, r"guided decoding \(json\)"),
        ({"json": "{"}, r"guided decoding \(json\): the schema is no JSON"),
        ({"json": "[" * 100_000}, r"guided decoding \(json\): the schema is no JSON"),
        ({"json": '{"type": "object"}\nother: "rule"'}, "the schema is no JSON"),
        ({"regex": "(", "backend": "auto"}, r"guided decoding \(regex\)"),
        ({"structural_tag": "x"}, "by structural_tag: it takes"),
    ],
)
def test_what_can_not_be_compiled_is_refused(wanted: dict[str, Any], says: str) -> None:
    """By the kind that is wrong; a schema in a text is one, and brings no rules of its own."""
    with pytest.raises(InvalidArgument, match=says):
        grammar_of(wanted)


def test_nothing_wanted() -> None:
    """Is no grammar; what was compiled elsewhere is taken as it is."""
    assert grammar_of(None) is None
    assert grammar_of({"compiled": "it"}) == "it"
