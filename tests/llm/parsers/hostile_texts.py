"""Answers that make a careless parser slow: each marker of each format, and behind it one thing without end.

Plain functions over the parsers' own tables, so that a new parser is covered without a word here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from dynamo.llm.parsers import harmony
from dynamo.llm.parsers.events import Parser
from dynamo.llm.parsers.harmony import HarmonyParser
from dynamo.llm.parsers.parser import AnswerParser
from dynamo.llm.parsers.parser_names import GPT_OSS, HARMONY, reasoning_parser_names, tool_parser_names
from dynamo.llm.parsers.reasoning_formats import THOUGHTS
from dynamo.llm.parsers.tool_formats import TOOLS

FILLERS: Final = {
    "spaces": " ", "lines": "\n", "indents": "\n  ", "tabs": "\t", "wide spaces": "\u3000", "separators": "\u2028\x1c",
    "letters": "a", "names": "a.", "digits": "1", "lists": "[", "objects": "{", "groups": "(", "calls": "a(",
    "nested": '{"a":', "nested lists": "[[],", "ends": "]", "closed": "}", "quotes": '"', "apostrophes": "'",
    "backslashes": "\\", "escaped quotes": '\\"', "tags": "<", "end tags": "</", "commas": ",", "minus": "-",
    "fences": "`", "fences and lines": "\n```", "pipes": "<|", "strings": '"a" ', "texts": "a b ", "emoji": "😀",
}  # fmt: skip
"""What is repeated, by its name."""
_WORST: Final = ("spaces", "lines", "letters", "names", "lists", "quotes", "backslashes", "tags")
_STUBS: Final = ("f", "f ", '{"name": "', '{"name": "f", "arguments": {"a": "', "[f(a=", "\n")
_TAGS: Final = (
    "<function=f>", "<function=f><parameter=a>", '<invoke name="f">', '<invoke name="f"><parameter name="a">',
    "<arg_key>", "<arg_key>a</arg_key>", "<arg_key>a</arg_key><arg_value>", '<｜DSML｜invoke name="f"',
    '<｜DSML｜invoke name="f"><｜DSML｜parameter name="a"', "</parameter>", "</arg_value>",
    "<|channel|>commentary to=functions.f <|message|>", "<|channel|>analysis<|message|>", "<|channel|>",
)  # fmt: skip


def makers() -> dict[str, Callable[[], Parser]]:
    """What makes each parser, of tools and of thoughts, by its name."""
    known = {"f": {"a": {"type": ["string", "null"]}}}
    results: dict[str, Callable[[], Parser]] = {}
    for name in tool_parser_names():
        results[f"tools {name}"] = (
            partial(HarmonyParser, thoughts=False, tools=True)
            if name == HARMONY
            else partial(AnswerParser, None, TOOLS[name], known)
        )
    for name in reasoning_parser_names():
        results[f"thoughts {name}"] = (
            partial(HarmonyParser, thoughts=True, tools=False)
            if name == GPT_OSS
            else partial(AnswerParser, THOUGHTS[name], None, {}, in_thought=THOUGHTS[name].open_at_start)
        )
    return results


def markers(name: str) -> list[str]:
    """All that the parser of this name (as `makers` gives it) looks for."""
    kind, _, own = name.partition(" ")
    if own in (HARMONY, GPT_OSS):
        return list(harmony.TOKENS)
    if kind == "thoughts":
        return [*THOUGHTS[own].tokens]
    form = TOOLS[own]
    return list(dict.fromkeys([*form.blocks, *form.tokens, *form.tails, *([form.bare[0]] if form.bare else [])]))


def heads(name: str) -> list[str]:
    """What such a parser takes for the beginning of something inside of its first markers."""
    opens = markers(name)[:2]
    tagged = [opener + tag for opener in opens[:1] for tag in _TAGS]
    return list(dict.fromkeys([*(opener + stub for opener in opens for stub in _STUBS), *tagged]))


def texts(name: str, size: int) -> Iterator[tuple[str, str]]:
    """Answers of about `size` characters for the parser of this name, each with what it is called."""
    for number, head in enumerate(["", *markers(name), *heads(name)]):
        few = number > len(markers(name))
        for called in _WORST if few else FILLERS:
            yield f"{head!r} and {called}", head + FILLERS[called] * (size // len(FILLERS[called]))
    for marker in markers(name):
        for cut in {1, len(marker) // 2 or 1, len(marker)}:
            yield f"{marker[:cut]!r} again and again", marker[:cut] * (size // cut)
        yield f"{marker!r} in lines", f"\n {marker} \n" * (size // (len(marker) + 4))
        yield f"spaces and {marker!r}", " " * size + marker
        yield f"groups of spaces and {marker!r}", (" " * 1000 + marker) * (size // 1000)


def pieces(text: str, size: int) -> list[str]:
    """The text as it comes from an engine whose tokens have `size` characters."""
    return [text[at : at + size] for at in range(0, len(text), size)]
