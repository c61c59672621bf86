"""`tool_choice: required` and a named tool: the schema, which a validator reads as an engine does, and the answer."""

from __future__ import annotations

from functools import partial
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from tests.llm.parsers.cuts import call, in_every_way

from dynamo.llm.parsers.events import Content, Thought
from dynamo.llm.parsers.forced_calls import ForcedParser, schema_for
from dynamo.llm.parsers.parser import AnswerParser
from dynamo.llm.parsers.reasoning_formats import THOUGHTS
from dynamo.runtime.errors import InvalidArgument


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    """A function as a request names it."""
    return {
        "type": "function",
        "function": {"name": name, **({} if parameters is None else {"parameters": parameters})},
    }


POINT = {"type": "object", "properties": {"at": {"$ref": "#/$defs/Point"}}, "required": ["at"],
         "$defs": {"Point": {"type": "object", "required": ["x"]}}}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        ([{"name": "go", "parameters": {"at": {"x": 1}}}], True),
        ([{"name": "go", "parameters": {"at": {"x": 1}}}, {"name": "stay", "parameters": {}}], True),
        ([], False),
        ([{"name": "go", "parameters": {"at": {}}}], False),
        ([{"name": "fly", "parameters": {}}], False),
        ({"name": "stay", "parameters": {}}, False),
    ],
)
def test_the_schema_of_required(answer: Any, fits: bool) -> None:
    """At least one of the tools, with arguments that fit; definitions are found at the root."""
    schema = schema_for([tool("go", POINT), tool("stay")], None, None)
    assert jsonschema.Draft202012Validator(schema).is_valid(answer) is fits


def test_one_call_at_most() -> None:
    """`parallel_tool_calls: false` is part of the schema."""
    schema = schema_for([tool("stay")], None, 1)
    table = {"name": "stay", "parameters": {}}
    assert jsonschema.Draft202012Validator(schema).is_valid([table])
    assert not jsonschema.Draft202012Validator(schema).is_valid([table, table])


def test_the_schema_of_a_named_tool() -> None:
    """It is that of the arguments, of which a tool without parameters has none."""
    assert schema_for([tool("go", POINT), tool("stay")], "go", None) == POINT
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    assert schema_for([tool("stay")], "stay", None) == none


@pytest.mark.parametrize(
    ("tools", "name", "sentence"),
    [
        ([], None, "there are no tools"),
        ([tool("go")], "fly", "'fly' is none of the tools"),
        ([{"function": {}}], None, r"tools\[0\] must be"),
        ([tool("go", 5)], None, "must be a JSON schema"),
        ([tool("go", POINT), tool("fly", {"$defs": {"Point": {}}})], None, "'Point' differently"),
    ],
)
def test_refusals_are_sentences(tools: list[Any], name: str | None, sentence: str) -> None:
    """What can't be asked for is said."""
    with pytest.raises(InvalidArgument, match=sentence):
        schema_for(tools, name, None)


@pytest.mark.parametrize(
    ("name", "text", "events"),
    [
        ("f", ' {"a": 1}', [call("f", '{"a": 1}')]),
        ("f", '{"a": ', [call("f", '{"a": ')]),
        ("f", '{a', [Content('{a')]),
        (None, '[{"name": "f", "parameters": {"a": [1', [call("f", '{"a": [1')]),
        ("f", "", []),
        (None, '[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]',
         [call("f", '{"a": 1}'), call("g")]),
        (None, "[]", [Content("[]")]),
        (None, '[{"name": "f"', [Content('[{"name": "f"')]),
    ],
)  # fmt: skip
def test_the_answer(name: str | None, text: str, events: list[Any]) -> None:
    """Calls, or, of an answer that broke off, its text."""
    assert in_every_way(lambda: ForcedParser(name), text) == events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ('{"a": 1}', [call("f", '{"a": 1}')]),
        ('Hm.</think>{"a": 1}', [Thought("Hm."), call("f", '{"a": 1}')]),
        ("Hm.</think>{", [Thought("Hm."), Content("{")]),
        ("Hm.", [Thought("Hm.")]),
    ],
)
def test_an_engine_that_lets_the_model_think_first(text: str, events: list[Any]) -> None:
    """Thoughts that the prompt has opened stand before the schema, or are left out by it."""
    thoughts = partial(AnswerParser, THOUGHTS["qwen3"], None, {}, in_thought=True)
    assert in_every_way(lambda: ForcedParser("f", thoughts), text) == events
