"""Thoughts of each family, alone and before tool calls, however the text is cut; and what a prompt says of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.llm.parsers.cuts import call, in_every_way, read

from dynamo.llm.parsers.events import Content, Thought
from dynamo.llm.parsers.harmony import HarmonyParser
from dynamo.llm.parsers.parser import AnswerParser
from dynamo.llm.parsers.reasoning_formats import THOUGHTS
from dynamo.llm.parsers.tool_formats import TOOLS

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
SECTION = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
ANALYSIS = "<|channel|>analysis<|message|>"
THINK = [Thought("Let me see."), Content("Hello")]

CASES = [
    ("basic", "", "<think>Let me see.</think>Hello", THINK),
    ("qwen3", "", "<think>\nLet me see.\n</think>\n\nHello", THINK),
    ("qwen3", "", "\n<think>\n\n</think>\n\n  Hello", [Content("  Hello")]),
    ("qwen3", "<think>\n", "Let me see.\n</think>\n\nHello", THINK),
    ("qwen3", "<think>\n\n</think>\n\n", "Hello", [Content("Hello")]),
    ("qwen3", "", "Hello", [Content("Hello")]),
    ("qwen3", "", "\n\nHello\n", [Content("\n\nHello\n")]),
    ("qwen3", "", "<thin", [Content("<thin")]),
    ("qwen3", "", "<think>\nwhat is </thi", [Thought("what is </thi")]),
    ("qwen3", "", "Write <think> and </think>.", [Content("Write <think> and </think>.")]),
    ("qwen3", "", "<think>a</think>\n<think>b</think>c", [Thought("ab"), Content("c")]),
    ("deepseek_r1", "", "Let me see.\n</think>\n\nHello", THINK),
    ("deepseek_r1", "", "<think>\nLet me see.\n</think>\n\nHello", THINK),
    ("deepseek_r1", "<think>\n", "\nLet me see.</think>Hello ", [Thought("Let me see."), Content("Hello ")]),
    ("deepseek_r1", "</think>", "Hello", [Content("Hello")]),
    ("deepseek_r1", "", "never ends \n", [Thought("never ends")]),
    ("step3", "", "Let me see.</think>\nHello", THINK),
    ("minimax_m2", "<think>\n", "Let me see.</think>\n\nHello", THINK),
    ("nemotron_nano", "<think></think>", "Hello", [Content("Hello")]),
    ("nemotron_deci", "", "<think>\nLet me see.</think>\nHello", THINK),
    ("glm45", "", "\n<think>Let me see.</think>\nHello", THINK),
    ("glm47", "<think>", "Let me see.</think>Hello", THINK),
    ("deepseek_v3", "<think>", "Let me see.</think>Hello", THINK),
    ("deepseek_v3_1", "</think>", "Hello", [Content("Hello")]),
    ("deepseek_v3_2", "<think>", "Let me see.</think>Hello", THINK),
    ("mistral", "", "[THINK]Let me see.[/THINK]Hello", THINK),
    ("mistral", "", "Hello [THINK]", [Content("Hello [THINK]")]),
    ("seed_oss", "", "<seed:think>\nLet me see.\n</seed:think>Hello", THINK),
    ("kimi", "", "◁think▷Let me see.◁/think▷Hello", THINK),
    ("kimi_k2", "", "<think> Let me see. </think>Hello", THINK),
    ("kimi_k25", "<think>", "Let me see.</think>Hello", THINK),
    ("kimi_k25", "<think></think>", "Hello", [Content("Hello")]),
    ("granite", "", "Here's my thought process: Let me see.\n\nHere is my response: Hello", THINK),
    ("granite", "", "Here is my thought process:\nLet me see. Here's my response:\nHello", THINK),
    ("granite", "", "Here is my hat", [Content("Here is my hat")]),
]  # fmt: skip


def parser(name: str, tail: str, tools: str = "") -> AnswerParser:
    """The parser of a family, behind a prompt that ends so."""
    thoughts = THOUGHTS[name]
    return AnswerParser(thoughts, TOOLS.get(tools), {"f": {}}, in_thought=thoughts.open_after(f"<|assistant|>{tail}"))


@pytest.mark.parametrize(("name", "tail", "text", "events"), CASES)
def test_every_cut(name: str, tail: str, text: str, events: list[Any]) -> None:
    """The same is said of a text wherever it was cut, with a parser for tools behind it, too."""
    assert in_every_way(lambda: parser(name, tail), text) == events
    assert in_every_way(lambda: parser(name, tail, "hermes"), text) == events


def test_every_family_is_in_the_table() -> None:
    """Each name has a text with a thought."""
    assert {name for name, *_ in CASES} == set(THOUGHTS)


@pytest.mark.parametrize(
    ("name", "tools", "text", "events"),
    [
        ("qwen3", "hermes", f"<think>\nUse f.\n</think>\n\n{CALL}", [Thought("Use f."), call("f")]),
        ("qwen3", "hermes", f"<think>\nUse {CALL}?\n</think>\n\nNo.", [Thought(f"Use {CALL}?"), Content("No.")]),
        ("qwen3", "hermes", f"<think>a</think>\n\nSo:\n{CALL}\n<think>b</think>{CALL}",
         [Thought("a"), Content("So:"), call("f"), Thought("b"), call("f")]),
        ("qwen3", "llama3_json", '<think>a</think>{"name": "f"}', [Thought("a"), call("f")]),
        ("kimi_k2", "kimi_k2", f"<think>a {SECTION}", [Thought("a"), call("f", id="functions.f:0")]),
        ("kimi_k2", "", f"<think>a {SECTION}", [Thought(f"a {SECTION}")]),
        ("mistral", "mistral", "[THINK]a[/THINK]b[TOOL_CALLS]f[ARGS]{}", [Thought("a"), Content("b"), call("f")]),
    ],
)  # fmt: skip
def test_thoughts_and_calls(name: str, tools: str, text: str, events: list[Any]) -> None:
    """A call that a model only thinks of is none; one behind a thought is."""
    assert in_every_way(lambda: parser(name, "", tools), text) == events


@pytest.mark.parametrize(
    ("thoughts", "text", "events"),
    [
        (True, f"{ANALYSIS}Let me see.<|end|><|start|>assistant<|channel|>final<|message|>Hello", THINK),
        (False, f"{ANALYSIS}Let me see.<|end|><|start|>assistant<|channel|>final<|message|>Hello",
         [Content("Let me see.Hello")]),
        (True, "<|channel|>analysis<|message|>cut off <|en", [Thought("cut off <|en")]),
        (True, "<|channel|>analysis<|message|>Let me see.<|channel|>final<|message|>Hello<|return|>", THINK),
        (True, "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
         [Content("<|channel|>commentary to=functions.f<|message|>{}<|call|>")]),
        (True, "<|channel|>ana", [Content("<|channel|>ana")]),
        (True, "", []),
    ],
)  # fmt: skip
def test_harmony(thoughts: bool, text: str, events: list[Any]) -> None:
    """gpt-oss's channels; calls stay as they are where nobody asked for tools."""
    assert in_every_way(lambda: HarmonyParser(thoughts=thoughts, tools=False), text) == events


PARTS = [
    "<think>", "</think>", "<", "th", "\n", " ", "a", CALL, "<|tool_calls_section_begin|>", "Here's my ", "response:",
    "thought process:", "[THINK]", "[/THINK]",
]  # fmt: skip
PIECES = st.lists(st.sampled_from(PARTS), max_size=10)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(THOUGHTS)), st.sampled_from(["", "hermes", "kimi_k2"]), PIECES, st.integers(1, 9))
def test_any_text_in_any_pieces(name: str, tools: str, parts: list[str], size: int) -> None:
    """Markers, halves of them and nonsense in any order: cuts change nothing."""
    text = "".join(parts)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert read(lambda: parser(name, "", tools), pieces) == read(lambda: parser(name, "", tools), [text])


def test_thoughts_are_said_at_once() -> None:
    """Only what may be the end, or the white space before it, waits."""
    single = parser("qwen3", "")
    assert single.feed("<think>") == []
    assert single.feed("\nso ") == [Thought("so")]
    assert single.feed("on <") == [Thought(" on")]
    assert single.feed("3") == [Thought(" <3")]
