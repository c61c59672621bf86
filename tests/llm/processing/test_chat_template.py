"""Chat templates: rendered in a sandbox, refusals as sentences."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dynamo.llm import ChatTemplate
from dynamo.llm.processing.chat_template import MOST_VALUES
from dynamo.runtime.errors import InvalidArgument

HELLO = [{"role": "user", "content": "Hello"}]


def test_the_plain_template_serves_base_models() -> None:
    """Without a template, roles and contents as lines, and a cue for the answer."""
    template = ChatTemplate(special_tokens={"bos_token": "<bos>"})
    messages = [{"role": "system", "content": " Be kind. "}, *HELLO]
    assert template.render(messages) == "<bos>System: Be kind.\nUser: Hello\nAssistant:"
    assert template.render(HELLO, add_generation_prompt=False) == "<bos>User: Hello\n"


def test_blocks_are_trimmed_and_loops_controlled() -> None:
    """Whitespace and loop control as in the library that the templates were written for."""
    source = (
        "  {% for m in messages %}\n{% if m.content == 'b' %}\n{% break %}\n{% endif %}\n"
        "{{ m.content }}\n{% endfor %}\nend"
    )
    messages = [{"role": "user", "content": letter} for letter in "abc"]
    assert ChatTemplate(source).render(messages) == "a\nend"


def test_functions_of_hugging_face_templates() -> None:
    """`tojson` leaves characters alone, dates and the training tag work, variables of the request arrive."""
    source = (
        "{{ tools | tojson }}|{{ strftime_now('%Y') | length }}|{% generation %}g{% endgeneration %}|"
        "{{ enable_thinking }}|{{ eos_token }}"
    )
    template = ChatTemplate(source, special_tokens={"eos_token": "</s>"})
    shown = template.render(HELLO, tools=[{"a": "<é>"}], variables={"enable_thinking": False})
    assert shown == '[{"a": "<é>"}]|4|g|False|</s>'


def test_variables_of_a_request_can_not_replace_the_messages() -> None:
    """What the request says elsewhere wins over its template arguments."""
    assert ChatTemplate("{{ messages[0].content }}").render(HELLO, variables={"messages": []}) == "Hello"


def test_parts_are_flattened() -> None:
    """A list of text parts is one text; a missing content is empty."""
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.render([{"role": "user", "content": parts}, {"role": "assistant"}]) == "[a\nb][]"


def test_tool_calls_have_objects_as_arguments() -> None:
    """Arguments travel as JSON text; what is no JSON, or nested beyond what can be read, stays text."""
    template = ChatTemplate("{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }};{% endfor %}")
    calls = [{"function": {"name": "f", "arguments": text}} for text in ('{"x": 1}', "nonsense", "[" * 100_000)]
    deep = json.dumps("[" * 100_000)
    assert template.render([{"role": "assistant", "tool_calls": calls}]) == f'{{"x": 1}};"nonsense";{deep};'


def test_arguments_of_very_many_values_are_refused() -> None:
    """They would be parsed, for every request that repeats the conversation; a long text among them is not many."""
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments | length }}")

    def render(arguments: str) -> str:
        return template.render([{"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}])

    assert render('["' + "a" * 3_000_000 + '"]') == "1"
    for many in ("[" + "[]," * MOST_VALUES + "[]]", "[" + "1," * MOST_VALUES + "1]"):
        with pytest.raises(InvalidArgument, match="more than 262144 values"):
            render(many)


ASKED = {"type": "function", "id": "1", "function": {"name": "f", "arguments": '{"x": [1, "é"]}'}}


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{% for k, v in a.items() %}{{ k }}={{ v | tojson }}{% endfor %}", 'x=[1, "é"]'),
        ("{{ a | tojson }}{{ a is mapping }}{{ a is string }}", '{"x": [1, "é"]}TrueFalse'),
        ("{{ '```' + a + '```' }}", '```{"x": [1, "é"]}```'),
        ("{{ '```' ~ a }}{{ a }}", '```{"x": [1, "é"]}{"x": [1, "é"]}'),
        ("{{ a.x[1] }}", "é"),
    ],
)
def test_arguments_in_the_ways_of_templates(source: str, shown: str) -> None:
    """As an object where a template iterates it, as JSON where it is put between texts."""
    template = ChatTemplate("{% set a = messages[0].tool_calls[0].function.arguments %}" + source)
    assert template.render([{"role": "assistant", "tool_calls": [ASKED]}]) == shown


def test_content_of_a_message_with_calls() -> None:
    """Null where the template asks for that, as `transformers` gives it; else a text, which most take for granted."""
    messages = [{"role": "assistant", "content": None, "tool_calls": [ASKED]}, {"role": "assistant", "content": None}]
    deepseek = "{% for m in messages %}{{ 'calls' if m['content'] is none else '[' + m['content'] + ']' }}{% endfor %}"
    assert ChatTemplate(deepseek).render(messages) == "calls[]"
    other = "{% for m in messages %}[{{ m.content }}{{ '!' if m.tool_calls }}]{% endfor %}"
    assert ChatTemplate(other).render(messages) == "[!][]"


def test_the_tool_template_is_taken_with_tools() -> None:
    """Models with several templates have one for requests with tools."""
    template = ChatTemplate("plain", named={"tool_use": "with tools"})
    assert (template.render(HELLO), template.render(HELLO, tools=[{}])) == ("plain", "with tools")


@pytest.mark.parametrize(
    ("source", "messages", "sentence"),
    [
        ("{{ raise_exception('roles must alternate') }}", HELLO, "roles must alternate"),
        ("{{ messages[0].content + 5 }}", HELLO, "failed on the messages"),
        ("{{ 1 / 0 }}", HELLO, "failed on the messages"),
        ("{{ missing.attribute }}", HELLO, "refused the messages"),
        ("", ["text"], r"messages\[0\] must be an object"),
        ("", [{"role": "user", "content": 5}], r"messages\[0\]\.content must be"),
        ("", [{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] has type 'image_url'"),
        ("", [{"role": "user", "content": [{"type": "text"}]}], "a string text"),
    ],
)
def test_refusals_are_sentences(source: str, messages: list[Any], sentence: str) -> None:
    """What the template or the messages are wrong about is told to the caller."""
    with pytest.raises(InvalidArgument, match=sentence):
        ChatTemplate(source).render(messages)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    """A template reaches neither Python's insides nor our data."""
    messages = list(HELLO)
    try:
        shown = ChatTemplate(source).render(messages)
    except InvalidArgument:
        shown = ""
    assert shown == ""
    assert messages == HELLO


def test_a_broken_template_is_told_at_load() -> None:
    """The line of the error is named."""
    with pytest.raises(InvalidArgument, match="line 2"):
        ChatTemplate("ok\n{% if %}")


def test_tools_for_a_template_without_any() -> None:
    """They are told in the system's words, and calls and answers are text; one that knows them has its own way."""
    plain = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    tool = {"type": "function", "function": {"name": "f"}}
    messages = [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [ASKED]},
        {"role": "tool", "tool_call_id": "1", "content": "5"},
    ]  # fmt: skip
    told = ChatTemplate(plain).render(messages, tools=[tool])
    system, rest = told.split("<user>", 1)
    assert system.startswith("<system>You may call")
    assert json.dumps(tool) in system
    assert rest == (
        'Hi<assistant><tool_call>\n{"name": "f", "arguments": {"x": [1, "é"]}}\n</tool_call>'
        "<user><tool_response>\n5\n</tool_response>"
    )
    spoken = [{"role": "system", "content": "Be brief."}, *messages[:1]]
    assert ChatTemplate(plain).render(spoken, tools=[tool]).startswith("<system>Be brief.\n\nYou may call")
    assert ChatTemplate(plain).render(messages[:1]) == "<user>Hi"
    assert ChatTemplate("{{ tools | length }}" + plain).render(messages[:1], tools=[tool]) == "1<user>Hi"
