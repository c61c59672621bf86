"""Tool calls of each family, as its own chat template shows them, however the text is cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.llm.parsers.cuts import call, in_every_way, joined, read

from dynamo.llm.parsers.events import Call, CallStart, CallText, Content, tools_of
from dynamo.llm.parsers.harmony import HarmonyParser
from dynamo.llm.parsers.parser import AnswerParser
from dynamo.llm.parsers.tool_formats import TOOLS

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "exact": {"type": "boolean"},
                "near": {"type": "array", "items": {"type": "string"}},
                "note": {"type": ["string", "null"]},
                "unit": {"enum": ["C", "F"]},
                "scale": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            },
        },
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
KNOWN = tools_of([WEATHER, TIME])
PARIS = call("get_weather", '{"city": "Paris"}')
NOW = call("get_time")
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
ONE, SEP, ONE_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
JSON = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
JSON_NOW = '{"name": "get_time", "arguments": {}}'
CODER = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
GLM = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
INVOKE = '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>'
DSML = (
    '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>'
)

CASES: list[tuple[str, str, list[Any]]] = [
    # One call, with and without text around it.
    ("hermes", f"<tool_call>\n{JSON}\n</tool_call>", [PARIS]),
    ("hermes", f"Let me see.\n\n<tool_call>\n{JSON}\n</tool_call>\n", [Content("Let me see."), PARIS]),
    ("hermes", f"<tool_call>{JSON}</tool_call>\nThat is all.", [PARIS, Content("That is all.")]),
    ("qwen25", f"<tool_call>\n{JSON}\n</tool_call>\n<tool_call>\n{JSON_NOW}\n</tool_call>", [PARIS, NOW]),
    ("qwen3", f"<tool_call>\n{JSON}", [PARIS]),
    ("jamba", f"<tool_calls>[\n{JSON},\n{JSON_NOW}\n]</tool_calls>", [PARIS, NOW]),
    ("jamba", '<tool_calls>[{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}]</tool_calls>', [PARIS]),
    ("nemotron_deci", f"<TOOLCALL>[{JSON}, {JSON_NOW}]</TOOLCALL>", [PARIS, NOW]),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', [PARIS]),
    ("llama3_json", f" <|python_tag|>{JSON}", [PARIS]),
    ("llama3_json", f"<|python_tag|>{JSON}; {JSON_NOW}", [PARIS, NOW]),
    ("llama3_json", f"{JSON}; {JSON_NOW}", [PARIS, NOW]),
    ("mistral", f"[TOOL_CALLS] [{JSON}, {JSON_NOW}]", [PARIS, NOW]),
    ("mistral", f"[TOOL_CALLS]{JSON}[/TOOL_CALLS]", [PARIS]),
    ("mistral", 'Well.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', [Content("Well."), PARIS]),
    ("mistral", '[TOOL_CALLS]get_weather{"city": "Paris"}[TOOL_CALLS]get_time{}', [PARIS, NOW]),
    ("mistral", "[TOOL_CALLS]get_time[CALL_ID]a1B2c3D4e[ARGS]{}", [call("get_time", id="a1B2c3D4e")]),
    ("phi4", f"functools[{JSON}, {JSON_NOW}]", [PARIS, NOW]),
    ("granite", f"<|tool_call|>[{JSON}]", [PARIS]),
    ("granite", f"<tool_call>[{JSON}]</tool_call>", [PARIS]),
    ("pythonic", '[get_weather(city="Paris"), get_time()]', [PARIS, NOW]),
    ("pythonic", "[get_weather(city='Par\\'is]', days=-3, near=['a', \"b\"], note=None)]",
     [call("get_weather", '{"city": "Par\'is]", "days": -3, "near": ["a", "b"], "note": null}')]),
    ("hunyuan_a13b", f"<tool_calls>[{JSON}]</tool_calls>", [PARIS]),
    ("longcat", f"<longcat_tool_call>{JSON}</longcat_tool_call>\n<longcat_tool_call>{JSON_NOW}</longcat_tool_call>",
     [PARIS, NOW]),
    ("seed_oss", CODER.replace("tool_call>", "seed:tool_call>"), [PARIS]),
    ("qwen3_coder", CODER, [PARIS]),
    ("nemotron_nano", f"I look.\n\n{CODER}\n{CODER}", [Content("I look."), PARIS, PARIS]),
    ("qwen3_coder", CODER.removeprefix("<tool_call>\n"), [PARIS]),
    ("qwen3_coder", CODER.removesuffix("\n</tool_call>"), [PARIS]),
    ("qwen3_coder", "<tool_call>\n<function=get_time>\n</function>\n</tool_call>", [NOW]),
    ("glm45", f"\n{GLM}", [PARIS]),
    ("glm45", "<tool_call>get_time\n</tool_call>", [NOW]),
    ("glm47", GLM.replace("\n", "") + GLM.replace("\n", ""), [PARIS, PARIS]),
    ("minimax_m2", f"<minimax:tool_call>\n{INVOKE}\n{INVOKE}\n</minimax:tool_call>\n", [PARIS, PARIS]),
    ("deepseek_v3_2", f"Hm.\n\n<｜DSML｜function_calls>\n{DSML}\n</｜DSML｜function_calls>",
     [Content("Hm."), call("get_weather", '{"city": "Paris", "days": 3}')]),
    ("deepseek_v4", f"<｜DSML｜tool_calls>\n{DSML}\n</｜DSML｜tool_calls>",
     [call("get_weather", '{"city": "Paris", "days": 3}')]),
    ("deepseek_v3",
     f'{BEGIN}{ONE}function{SEP}get_weather\n```json\n{{"city": "Paris"}}\n```{ONE_END}\n'
     f"{ONE}function{SEP}get_time\n```json\n{{}}\n```{ONE_END}{END}", [PARIS, NOW]),
    ("deepseek_v3_1", f'Ok{BEGIN}{ONE}get_weather{SEP}{{"city": "Paris"}}{ONE_END}{ONE}get_time{SEP}{{}}{ONE_END}{END}',
     [Content("Ok"), PARIS, NOW]),
    ("deepseek_v3_1", f'{BEGIN}{ONE}get_weather{SEP}{{"city": "Paris"}}{ONE_END}', [PARIS]),
    ("kimi_k2",
     f'{SECTION}<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{{"city": "Paris"}}'
     f"<|tool_call_end|><|tool_call_begin|>functions.get_time:1 <|tool_call_argument_begin|> {{}} <|tool_call_end|>"
     f"{SECTION_END}",
     [call("get_weather", '{"city": "Paris"}', "functions.get_weather:0"),
      call("get_time", "{}", "functions.get_time:1")]),
    ("kimi_k25",
     f"{SECTION}<|tool_call_begin|>get_time:0<|tool_call_argument_begin|>{{}}<|tool_call_end|>{SECTION_END}",
     [call("get_time", "{}", "get_time:0")]),
    # What the arguments hold.
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": "a </tool_call> \\" \\\\"}}</tool_call>.',
     [call("f", '{"x": "a </tool_call> \\" \\\\"}'), Content(".")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": "é\\u00e9\\ud83d\\ude00"}}</tool_call>',
     [call("f", '{"x": "é\\u00e9\\ud83d\\ude00"}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": "a\n\tb'
     '\n </tool_cal\nc"}}</tool_call>', [call("f", '{"x": "a\\n\\tb\\n </tool_cal\\nc"}')]),
    ("hermes", '<tool_call>[{"name": "f", "arguments": {"x": [{}]}}, {"name": "g", "arguments": "{}"}]</tool_call>',
     [call("f", '{"x": [{}]}'), call("g")]),
    ("hermes", '<tool_call>{"id": "x1", "type": "function", "name": "f", "arguments": {"y": 1}}</tool_call>',
     [call("f", '{"y": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": "\\ud83d"}}</tool_call>', [call("f", '{"x": "\\ud83d"}')]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', [call("f")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', [call("f")]),
    ("qwen3_coder",
     "<tool_call>\n<function=get_weather>\n<parameter=city>\n\n 12\n</parameter>\n<parameter=days>\n12\n</parameter>\n"
     "<parameter=exact>\nTrue\n</parameter>\n<parameter=near>\n[\"a\"]\n</parameter>\n<parameter=note>\nnull\n</parameter>"
     "\n<parameter=unit>\nC\n</parameter>\n<parameter=scale>\nNone\n</parameter>\n<parameter=more>\n[1, 2\n</parameter>"
     "\n</function>\n</tool_call>",
     [call("get_weather", '{"city": "\\n 12", "days": 12, "exact": true, "near": ["a"], "note": null, "unit": "C", '
           '"scale": null, "more": "[1, 2"}')]),
    ("qwen3_coder",
     "<tool_call>\n<function=write>\n<parameter=text>\n<parameter>x</parameter>\n</parameter>\n</function>\n</tool_call>",
     [call("write", '{"text": "<parameter>x</parameter>"}')]),
    # What is no call is content, to the letter.
    ("hermes", "No tools: < <tool <tool_ca ll>", [Content("No tools: < <tool <tool_ca ll>")]),
    ("hermes", " \n\n", [Content(" \n\n")]),
    ("hermes", "  Hello \n\n", [Content("  Hello \n\n")]),
    ("hermes", "", []),
    ("hermes", "a <tool_call>{'name': 'f'}</tool_call> b", [Content("a <tool_call>{'name': 'f'}</tool_call> b")]),
    ("hermes", '<tool_call>\n{"name": "f, "arguments": {}}\n</tool_call> Oh.',
     [Content('<tool_call>\n{"name": "f, "arguments": {}}\n</tool_call> Oh.')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
     [Content('<tool_call>{"name": "f", "arguments": [1]}</tool_call>')]),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>',
     [Content('<tool_call>{"name": "", "arguments": {}}</tool_call>')]),
    ("hermes", '<tool_call>{"name": "f\\ud83d", "arguments": {}}</tool_call>',
     [Content('<tool_call>{"name": "f\\ud83d", "arguments": {}}</tool_call>')]),
    ("hermes", "Look:\n<tool_call>broken", [Content("Look:\n<tool_call>broken")]),
    ("hermes", f"<tool_call>broken</tool_call>\n<tool_call>{JSON}</tool_call>",
     [Content("<tool_call>broken</tool_call>"), PARIS]),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": ', [
        Content('<tool_call>{"name": "get_weather", "arguments": ')]),
    ("llama3_json", '{"answer": [1, 2]}', [Content('{"answer": [1, 2]}')]),
    ("llama3_json", '{"name": "Bob", "parameters": {}} is Bob', [Content('{"name": "Bob", "parameters": {}} is Bob')]),
    ("llama3_json", "So: {\"a\": 1}", [Content("So: {\"a\": 1}")]),
    ("llama3_json", "<|python_tag|>print(1)", [Content("<|python_tag|>print(1)")]),
    ("mistral", "[TOOL_CALLS]no\nbrace {", [Content("[TOOL_CALLS]no\nbrace {")]),
    ("phi4", "functools are tools [1]", [Content("functools are tools [1]")]),
    ("pythonic", "[1, 2] is a list", [Content("[1, 2] is a list")]),
    ("pythonic", "[unknown(a=1)]", [Content("[unknown(a=1)]")]),
    ("pythonic", "[get_time(1)] [x", [Content("[get_time(1)] [x")]),
    ("pythonic", "[get_weather(city=open('x'))]", [Content("[get_weather(city=open('x'))]")]),
    ("pythonic", "[get_weather(days=1e999)]", [Content("[get_weather(days=1e999)]")]),
    ("qwen3_coder", "<tool_call>\nhello\n</tool_call>", [Content("<tool_call>\nhello\n</tool_call>")]),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>1</function></tool_call>",
     [Content("<tool_call><function=f><parameter=a>1</function></tool_call>")]),
    ("glm45", "<tool_call>two words</tool_call>", [Content("<tool_call>two words</tool_call>")]),
    ("deepseek_v3_1", f"{BEGIN}nothing{END}", [Content(f"{BEGIN}nothing{END}")]),
    ("kimi_k2", f"{SECTION}{SECTION_END}", [Content(f"{SECTION}{SECTION_END}")]),
]  # fmt: skip


BROKEN = [
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>.', [call("f", '{"a": 1}'), Content(".")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}\n</tool_c', [call("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', [call("f", '{"a": NaN}')]),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Par', [call("get_weather", '{"city": "Par')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"city": "Par\n  </tool_call>.',
     [call("f", '{"city": "Par'), Content(".")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}} and more</tool_call>',
     [call("f", '{"a": 1}'), Content(" and more</tool_call>")]),
    ("kimi_k2", f'{SECTION}<|tool_call_begin|>f:0<|tool_call_argument_begin|>{{"a": [1',
     [call("f", '{"a": [1', "f:0")]),
    ("deepseek_v3_1", f'{BEGIN}{ONE}f{SEP}{{"a": 1}}{ONE_END}{ONE}g',
     [call("f", '{"a": 1}'), Content(f"{ONE_END}{ONE}g")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "events"), BROKEN)
def test_what_breaks_off_behind_the_name(name: str, text: str, events: list[Any]) -> None:
    """What has been said stays said: such calls have the arguments that the model wrote."""
    assert in_every_way(lambda: parser(name), text) == events


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
WRITTEN = {
    "hermes": "<tool_call>{json}</tool_call>",
    "llama3_json": '{{"name": "get_weather", "parameters": {arguments}}}',
    "mistral": "[TOOL_CALLS]get_weather[ARGS]{arguments}",
    "jamba": "<tool_calls>[{json}, {json}]</tool_calls>",
    "deepseek_v3": f"{BEGIN}{ONE}function{SEP}get_weather\n```json\n{{arguments}}\n```{ONE_END}{END}",
    "kimi_k2": f"{SECTION}<|tool_call_begin|>get_weather:0<|tool_call_argument_begin|>{{arguments}}<|tool_call_end|>"
    f"{SECTION_END}",
    "harmony": "<|channel|>commentary to=functions.get_weather<|message|>{arguments}<|call|>",
}


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(WRITTEN)), st.dictionaries(st.text(max_size=4), VALUES, max_size=3), st.booleans(),
    st.lists(st.integers(1, 7), min_size=1),
)  # fmt: skip
def test_streamed_arguments_are_the_arguments(name: str, value: dict[str, Any], ascii: bool, sizes: list[int]) -> None:  # noqa: A002
    """Whatever they hold, and however the answer is cut: put together they are what the model wrote, and JSON."""
    arguments = json.dumps(value, ensure_ascii=ascii)
    whole = json.dumps({"name": "get_weather", "arguments": value}, ensure_ascii=ascii)
    text = WRITTEN[name].format(json=whole, arguments=arguments)
    made = HarmonyParser(thoughts=True, tools=True) if name == "harmony" else parser(name)
    events, at = [], 0
    for size in itertools.cycle(sizes):
        events += made.feed(text[at : at + size])
        at += size
        if at >= len(text):
            break
    calls = joined(events + made.finish())
    assert calls == [call("get_weather", arguments, "get_weather:0" if name == "kimi_k2" else None)] * len(calls)
    assert len(calls) == (2 if name == "jamba" else 1)


def test_arguments_leave_while_they_are_written() -> None:
    """A client sees the name at once, and each part of the arguments with the part of the answer that has it."""
    single = parser("hermes")
    assert single.feed('Oh. <tool_call>{"name": "get_weather", "arguments": {"') == [
        Content("Oh."), CallStart("get_weather"), CallText('{"'),
    ]  # fmt: skip
    assert single.feed('city": "Par') == [CallText('city": "Par')]
    assert single.feed("is\\") == [CallText("is")]
    assert single.feed('n"}}') == [CallText('\\n"}')]
    assert single.feed("</tool_call>") == []


def parser(name: str) -> AnswerParser:
    """The parser of a family, for a request with both tools."""
    return AnswerParser(None, TOOLS[name], KNOWN)


@pytest.mark.parametrize(("name", "text", "events"), CASES)
def test_every_cut(name: str, text: str, events: list[Any]) -> None:
    """The same is said of a text wherever it was cut, and no part of a marker is shown."""
    assert in_every_way(lambda: parser(name), text) == events


def test_every_family_is_in_the_table() -> None:
    """Each name has a text that calls, and its arguments are JSON objects."""
    calling = {name for name, _, events in CASES if any(isinstance(event, Call) for event in events)}
    assert calling == set(TOOLS)
    for _, _, events in CASES:
        assert all(isinstance(json.loads(e.arguments), dict) for e in events if isinstance(e, Call))


def test_no_marker_begins_another() -> None:
    """What stands first in a text is then one marker only."""
    for form in TOOLS.values():
        markers = list(form.blocks)
        assert not [(a, b) for a in markers for b in markers if a != b and b.startswith(a)]


MARKERS = sorted({marker for form in TOOLS.values() for marker in (*form.blocks, *form.tokens, *form.tails)})
PIECES = st.lists(
    st.sampled_from([*MARKERS, "{", "}", "[", "]", '"', "\\", "\n", " ", "<", "f", "get_time(", ")", JSON, GLM, CODER]),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(TOOLS)), PIECES, st.lists(st.integers(1, 9), min_size=1))
def test_any_text_in_any_pieces(name: str, parts: list[str], sizes: list[int]) -> None:
    """Markers, halves of them and nonsense in any order: cuts change nothing, and without calls nothing is lost."""
    text = "".join(parts)
    pieces, at = [], 0
    for size in [*sizes, len(text)]:
        pieces.append(text[at : at + size])
        at += size
    whole = read(lambda: parser(name), [text])
    assert read(lambda: parser(name), pieces) == whole
    if not any(isinstance(event, Call) for event in whole):
        assert "".join(event.text for event in whole if isinstance(event, Content)) == text


def test_text_is_said_at_once() -> None:
    """Only what may be a marker, or the white space before one, waits."""
    single = parser("hermes")
    assert single.feed("Hello") == [Content("Hello")]
    assert single.feed(" world ") == [Content(" world")]
    assert single.feed("<too") == []
    assert single.feed("th>") == [Content(" <tooth>")]


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_endless_repetitions(name: str) -> None:
    """Text that a model repeats without end costs time in proportion, or the test's time limit ends this."""
    form = TOOLS[name]
    opener = next(iter(form.blocks), form.bare[0] if form.bare else "")
    for part in ("<parameter=a>", "</parameter>", "<tool", '{"', "[f(", '\\"', ONE, SEP, "<arg_key>", "```json\n{}"):
        single = parser(name)
        text = opener + part * (200_000 // len(part))
        for at in range(0, len(text), 1000):
            single.feed(text[at : at + 1000])
        single.finish()


HARMONY = [
    ('<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>', [PARIS]),
    (" to=functions.get_time<|channel|>commentary json<|message|>{}", [NOW]),
    ("<|channel|>final<|message|>Hello<|return|>", [Content("Hello")]),
    ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.get_time<|channel|>commentary "
     "<|constrain|>json<|message|>{}<|call|>", [Content("I look."), NOW]),
    ("Just text < here", [Content("Just text < here")]),
    ("<|channel|>commentary to=functions.f<|message|>{broken<|call|>",
     [Content("<|channel|>commentary to=functions.f<|message|>{broken<|call|>")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "events"), HARMONY)
def test_harmony(text: str, events: list[Any]) -> None:
    """gpt-oss's messages, however they are cut."""
    assert in_every_way(lambda: HarmonyParser(thoughts=True, tools=True), text) == events
