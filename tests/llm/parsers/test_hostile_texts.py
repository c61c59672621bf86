"""Answers that are made to be slow to read: the work grows with the text and no faster, wherever it is cut.

Nothing is compared with a clock: one parser's CPU time for a hostile text stands beside its time for a plain one, and,
where it is more, beside its time for a quarter of the text.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.llm.parsers import hostile_texts as hostile
from tests.llm.parsers.cuts import joined, read

from dynamo.llm.parsers.events import Call, Content, Parser, Thought
from dynamo.llm.parsers.forced_calls import ForcedParser
from dynamo.llm.parsers.harmony import LONGEST_HEADER, HarmonyParser
from dynamo.llm.parsers.markers import LONGEST_SPACE
from dynamo.llm.parsers.parser import AnswerParser
from dynamo.llm.parsers.parser_names import reasoning_parser_names, tool_parser_names
from dynamo.llm.parsers.reasoning_formats import THOUGHTS
from dynamo.llm.parsers.section_calls import read_mistral, read_python
from dynamo.llm.parsers.tool_formats import TOOLS

MAKERS = hostile.makers()
LARGE, PIECE = 20_000, 160
"""A piece is long for a token: reading again what is held costs as much beside reading it once, with fewer of both."""


def alone() -> list[str]:
    """The names, of those with the same tables only the first."""
    seen: dict[int, str] = {}
    for name in MAKERS:
        kind, _, own = name.partition(" ")
        form = TOOLS.get(own) if kind == "tools" else THOUGHTS.get(own)
        seen.setdefault(id(form) if form is not None else hash(name), name)
    return list(seen.values())


def cpu(make: Callable[[], Parser], pieces: list[str]) -> float:
    """Seconds of CPU that reading takes."""
    parser, begin = make(), time.process_time()
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    return time.process_time() - begin


def least(make: Callable[[], Parser], pieces: list[str]) -> float:
    """The least of three times: what the machine did besides is in the others."""
    return min(cpu(make, pieces) for _ in range(3))


def test_all_parsers_are_fed() -> None:
    """Each name that a worker may be given is here."""
    assert len(MAKERS) == len(tool_parser_names()) + len(reasoning_parser_names())


@pytest.mark.parametrize("name", alone())
@pytest.mark.parametrize("size", [PIECE, LARGE], ids=["streamed", "whole"])
def test_work_is_linear(name: str, size: int) -> None:
    """20,000 characters of anything cost little more than as much plain text, or four times a quarter of them."""
    make = MAKERS[name]
    plain = max(least(make, hostile.pieces("a b " * (LARGE // 4), PIECE)), 0.0005)
    quarters = dict(hostile.texts(name, LARGE // 4))
    for called, text in hostile.texts(name, LARGE):
        large = cpu(make, hostile.pieces(text, size))
        if large < 4 * plain:
            continue
        small = least(make, hostile.pieces(quarters[called], size))
        if large >= 9 * small + plain:  # or something else took the time
            large = least(make, hostile.pieces(text, size))
        assert large < 9 * small + plain, f"{called}: {small:.4f} s for a quarter of it, {large:.4f} s for all"


@pytest.mark.parametrize("name", alone())
def test_cuts_do_not_show(name: str) -> None:
    """What is said of such a text is the same in one piece, in characters, and cut around the bounds."""
    make = MAKERS[name]
    for number, (called, text) in enumerate(hostile.texts(name, 1100)):
        whole = read(make, [text])
        bounds = [text[:255], text[255:1023], text[1023:1024], text[1024:1025], text[1025:]]
        for pieces in (bounds, hostile.pieces(text, 7 if number % 8 else 1)):
            assert read(make, pieces) == whole, called


def test_a_runaway_of_spaces_behind_a_name() -> None:
    """Mistral's header was cubic in them: 2 KB took 27 s on the event loop."""
    costs = []
    for size in (100_000, 200_000):
        text = "[TOOL_CALLS]name" + " " * size
        begin = time.process_time()
        assert read_mistral(text, {}) is None
        costs.append(time.process_time() - begin)
    assert costs[1] < 8 * costs[0] + 0.1
    assert read_mistral("[TOOL_CALLS]name" + " " * 10_000 + "{}", {}) == [Call("name", "{}")]


@pytest.mark.parametrize("name", ["hermes", "pythonic", "mistral", "qwen3_coder"])
def test_space_is_not_kept_back_for_ever(name: str) -> None:
    """What may belong to a marker is kept back up to a bound; the reader sees that the model has run away."""
    parser = MAKERS[f"tools {name}"]()
    said = joined(event for _ in range(40) for event in parser.feed(" " * 100))
    assert said == [Content(" " * (4000 - 4000 % LONGEST_SPACE))] or said == [Content(" " * 4000)]
    assert joined(said + parser.finish()) == [Content(" " * 4000)]


def test_short_space_is_dropped_as_before() -> None:
    """Around thoughts and calls, up to the bound."""
    make = lambda: AnswerParser(THOUGHTS["qwen3"], TOOLS["hermes"], {})  # noqa: E731
    gap = " " * (LONGEST_SPACE - 1)
    text = f'<think>{gap}a{gap}</think>\n\nb{gap}<tool_call>{{"name": "f"}}</tool_call>{gap}c'
    assert read(make, [text]) == [Thought("a"), Content("b"), Call("f", "{}"), Content("c")]


@pytest.mark.parametrize("name", ["pythonic", "hermes", "mistral", "glm45", "kimi_k2"])
def test_a_name_without_end_is_text(name: str) -> None:
    """Tools have names of 256 characters at most."""
    long = "a" * 257
    text = {
        "pythonic": f"[{long}()]",
        "hermes": f'<tool_call>{{"name": "{long}"}}</tool_call>',
        "mistral": f"[TOOL_CALLS]{long}{{}}",
        "glm45": f"<tool_call>{long}</tool_call>",
        "kimi_k2": f"<|tool_calls_section_begin|><|tool_call_begin|>{long}<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
    }[name]
    make = lambda: AnswerParser(None, TOOLS[name], {long: {}, long[1:]: {}})  # noqa: E731
    assert read(make, [text]) == [Content(text)]
    short = text.replace(long, long[1:])
    assert [event.name for event in read(make, [short]) if isinstance(event, Call)] == [long[1:]]


def test_code_without_end_is_text() -> None:
    """A list of calls in Python is parsed whole, so it has a bound; strings in it count for nothing."""
    make = MAKERS["tools pythonic"]
    long = "[f(a=[" + "1, " * 10_000 + "])]"
    assert read(make, hostile.pieces(long, 3)) == read(make, [long]) == [Content(long)]
    text = "[f(a='" + "x, " * 100_000 + "')]"
    assert read(make, hostile.pieces(text, 1000)) == [Call("f", '{"a": "' + "x, " * 100_000 + '"}')]


def test_code_in_strings_is_no_value() -> None:
    """f-strings are refused before they are parsed; what only looks like one within a string is a value."""
    known: dict[str, dict[str, str]] = {"f": {}}
    for prefix in ("f", "F", "rf", "fR"):
        assert read_python(f"[f(a={prefix}'" + "{a}" * 20_000 + "')]", known) is None
    assert read_python("""[f(a="f'x' rf'y' \\" f'", b='b')]""", known) == [
        Call("f", """{"a": "f'x' rf'y' \\" f'", "b": "b"}""")
    ]


def test_a_header_without_end_is_text() -> None:
    """gpt-oss's messages have short headers."""
    text = "<|channel|>analysis" + " " * LONGEST_HEADER + "<|message|>x<|end|>"
    make = lambda: HarmonyParser(thoughts=True, tools=True)  # noqa: E731
    whole = read(make, [text])
    assert whole[0] == Content(text.removesuffix("<|end|>"))
    assert read(make, hostile.pieces(text, 1)) == whole


def test_thoughts_before_a_forced_call() -> None:
    """All of a forced answer is read at its end: as fast, however many thoughts there are."""
    make = lambda: ForcedParser("f", lambda: AnswerParser(THOUGHTS["qwen3"], None, {}))  # noqa: E731
    costs = []
    for size in (10_000, 40_000):
        text = "<think>a</think>\n" * size + "{}"
        costs.append(min(cpu(make, [text]) for _ in range(2)))
        assert read(make, [text])[-1] == Call("f", "{}")
    assert costs[1] < 9 * costs[0] + 0.01


def test_what_is_nested_as_deep_as_can_be_read() -> None:
    """JSON that can be read and not written again is no call, and no error."""
    make = MAKERS["tools hermes"]
    for depth in range(100, 1200, 1):
        text = '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * depth + "]" * depth + "}}</tool_call>"
        assert len(read(make, [text])) == 1
