"""Calls in tags are said while they are written: texts at once, values of other types once they are whole."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.llm.parsers.cuts import call, in_every_way, joined
from tests.llm.parsers.test_tool_formats import CODER, NOW, PARIS, parser

from dynamo.llm.parsers.events import CallStart, CallText, Content
from dynamo.llm.parsers.tool_formats import TOOLS

_BEGIN = "<tool_call>\n<function=get_weather>\n"
_END = "\n</function>\n</tool_call>"
_INVOKE = '<｜DSML｜invoke name="get_weather">'


def _coder(arguments: list[tuple[str, str]], block: str = "tool_call") -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<{block}>\n<function=get_weather>\n{written}</function>\n</{block}>"


def _minimax(arguments: list[tuple[str, str]]) -> str:
    written = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in arguments)
    return f'<minimax:tool_call>\n<invoke name="get_weather">\n{written}</invoke>\n</minimax:tool_call>'


def _glm(arguments: list[tuple[str, str]]) -> str:
    written = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments)
    return f"<tool_call>get_weather\n{written}</tool_call>"


def _dsml(arguments: list[tuple[str, str]]) -> str:
    parameter = "｜DSML｜parameter"
    written = "".join(
        f'<{parameter} name="{key}" string="{str(key in TEXTS).lower()}">{value}</{parameter}>\n'
        for key, value in arguments
    )
    return f"<｜DSML｜function_calls>\n{_INVOKE}\n{written}</｜DSML｜invoke>\n</｜DSML｜function_calls>"


TEXTS = ("city", "unit")
WRITTEN = {
    "qwen3_coder": _coder, "nemotron_nano": _coder, "seed_oss": lambda given: _coder(given, "seed:tool_call"),
    "minimax_m2": _minimax, "glm45": _glm, "glm47": _glm, "deepseek_v3_2": _dsml,
}  # fmt: skip
VALUE = st.one_of(
    st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"]), max_size=12).filter(lambda s: s.strip()),
    st.sampled_from(["a\n\nb", "</param", "<b>bold</b>", "</parameter> x", "a </arg_value>b", '"q\\', "é\n</func"]),
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(WRITTEN)),
    st.dictionaries(st.sampled_from(TEXTS), VALUE.map(lambda text: re.sub("^\n|\n$", "", text)), max_size=2),
    st.dictionaries(st.sampled_from(["days", "near"]), st.integers() | st.lists(st.text("ab", max_size=3)), max_size=2),
    st.lists(st.integers(1, 9), min_size=1),
)
@example("qwen3_coder", {"city": ""}, {}, [1])
def test_streamed_arguments_are_the_arguments(
    name: str, texts: dict[str, str], others: dict[str, Any], sizes: list[int]
) -> None:
    """Whatever they hold, and however the answer is cut: put together they are JSON, and what the model wrote."""
    arguments = [*texts.items(), *((key, json.dumps(value)) for key, value in others.items())]
    text, made = WRITTEN[name](arguments), parser(name)
    events, at = [], 0
    for size in itertools.cycle(sizes):
        events += made.feed(text[at : at + size])
        at += size
        if at >= len(text):
            break
    (read,) = joined(events + made.finish())
    assert (read.name, json.loads(read.arguments)) == ("get_weather", {**texts, **others})  # type: ignore[union-attr]


def test_texts_leave_while_they_are_written() -> None:
    """The name comes with the first of its arguments; what may be a tag, and the line break before one, waits."""
    single = parser("qwen3_coder")
    assert single.feed("Oh. " + _BEGIN + "<parameter=city>\nPar") == [
        Content("Oh."), CallStart("get_weather"), CallText('{"city": "Par'),
    ]  # fmt: skip
    assert single.feed('is "') == [CallText('is \\"')]
    assert single.feed("\n") == []
    assert single.feed("</para") == []
    assert single.feed("graph>") == [CallText("\\n</paragraph>")]
    assert single.feed("\n</parameter>\n<") == []
    assert single.feed("parameter=days>1") == [CallText('"')]
    assert single.feed("2</parameter></function>") == [CallText(', "days": 12'), CallText("}")]
    assert single.feed("</tool_call>") == []


BROKEN = [
    ("qwen3_coder", f"{_BEGIN}<parameter=city>\nPar", [call("get_weather", '{"city": "Par')]),
    ("qwen3_coder", f"{_BEGIN}<parameter=city>Par</tool_call>.", [call("get_weather", '{"city": "Par'), Content(".")]),
    ("qwen3_coder", f"{_BEGIN}<parameter=city>Par</function></tool_call>", [call("get_weather", '{"city": "Par')]),
    ("qwen3_coder", f"{_BEGIN}<parameter=city>Paris</parameter>", [PARIS]),
    ("qwen3_coder", f"{_BEGIN}<parameter=city>Paris</parameter></tool_call>", [PARIS]),
    ("qwen3_coder", f"{_BEGIN}<parameter=city>Paris</parameter>\n</function>\n</tool_c", [PARIS]),
    ("qwen3_coder", f"{_BEGIN}<parameter=city>Paris</parameter>?{_END}",
     [call("get_weather", '{"city": "Paris</parameter>?')]),
    ("qwen3_coder", CODER.replace(_END, _END.replace("</tool", "and so on</tool")) + ".",
     [PARIS, Content("\nand so on</tool_call>.")]),
    ("qwen3_coder", CODER.replace(_END, "\n</function><function=get_time></function></tool_call>"), [PARIS, NOW]),
    ("minimax_m2",
     "<minimax:tool_call><invoke name=get_weather><parameter name=city>Paris</parameter></minimax:tool_call>",
     [PARIS]),
    ("glm45", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Par", [call("get_weather", '{"city": "Par')]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "events"), BROKEN)
def test_what_breaks_off_behind_the_name(name: str, text: str, events: list[Any]) -> None:
    """What has been said stays said, and the rest of such a call is no text."""
    assert in_every_way(lambda: parser(name), text) == events


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_long_values_cost_by_their_length(name: str) -> None:
    """A text of a megabyte, a list of one, and gaps without end: in proportion, or the test's time limit ends this."""
    long = "x" * 1_000_000
    for text in (
        WRITTEN[name]([("city", long)]), WRITTEN[name]([("near", f'["{long}"]')]),
        WRITTEN[name]([("city", "a")]).replace("a", "</parameter> " * 80_000, 1),
        next(iter(TOOLS[name].blocks)) + " " * 300_000, WRITTEN[name]([("city", "\n" * 300_000)]),
    ):  # fmt: skip
        single = parser(name)
        for at in range(0, len(text), 100):
            single.feed(text[at : at + 100])
        single.finish()
