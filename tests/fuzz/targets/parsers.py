"""Target `parsers`: each parser of tool calls and thoughts, its markers and 200,000 characters of filler, all cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from dynamo.llm.model_card import ModelCard
from dynamo.llm.parsers.factory import ParserFactory
from dynamo.llm.parsers.forced_calls import schema_for
from dynamo.llm.parsers.harmony import TOKENS
from dynamo.llm.parsers.parser_names import reasoning_parser_names, tool_parser_names
from dynamo.llm.parsers.reasoning_formats import THOUGHTS
from dynamo.llm.parsers.tool_formats import TOOLS

LENGTH: Final = 200_000
FILLERS: Final = (
    " ",
    "\n",
    "\t",
    " \n",
    "a",
    "a ",
    "_",
    ".",
    ",",
    ":",
    ";",
    "=",
    "/",
    "-",
    "<",
    ">",
    "</",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    '"',
    "'",
    "\\",
    '\\"',
    '{"a":',
    "[{",
    "f(",
    "a=",
    "a,",
    "`",
    "```",
    "functions.",
    "\u00a0",
    "\u200b",
    "é",
    "<|",
    "|>",
    "<tool",
    "</tool_call",
    "<parameter=a>",
    "<arg_key>",
    "1",
    "1.",
    "1e",
    "-",
    "\x00",
    "[]",
    "{}",
    "''",
)
_STARTS: Final = (
    "",
    "name",
    "name(",
    "[name(a=",
    '{"name": "f", "arguments": ',
    '[{"name": "f", "arguments": {',
    "f\n",
    " to=",
)
SIZES: Final = (0, 1, 3, 4, 17, 1000, LENGTH // 2)
"""Characters of a piece; 0: all at once."""
_BODY: Final[dict[str, Any]] = {
    "tools": [{"type": "function", "function": {"name": "name", "parameters": {"type": "object", "properties": {}}}}]
}
Choice = tuple[str, str, str, str, str, int]
"""Tool parser, reasoning parser, marker, start, filler, size."""


def markers(tool: str, reasoning: str) -> list[str]:
    """Everything that these two take for more than text."""
    form, thoughts = TOOLS.get(tool), THOUGHTS.get(reasoning)
    results = [] if form is None else [*form.blocks, *form.tails, *form.tokens, *([form.bare[0]] if form.bare else [])]
    results += [] if thoughts is None else [*thoughts.opens, *thoughts.closes]
    return [*dict.fromkeys(["", *results, *(TOKENS if form is None or thoughts is None else ())])]


def feed(tool: str, reasoning: str, text: str, size: int) -> int:
    """Read an answer that comes in pieces; return how much was said."""
    card = ModelCard(name="m", tool_call_parser=tool or None, reasoning_parser=reasoning or None)
    make = ParserFactory(card, None).parsers(_BODY)
    if make is None:
        return 0
    parser, said = make(), 0
    for at in range(0, len(text), size or len(text)):
        said += len(parser.feed(text[at : at + (size or len(text))]))
    return said + len(parser.finish())


def built(marker: str, start: str, filler: str, length: int = LENGTH) -> str:
    """The marker, what may stand behind it, and filler, with something else at last."""
    return marker + start + (filler * (length // len(filler) + 1))[:length] + "x"


def _run(choice: Choice) -> tuple[str, Callable[[], object]]:
    tool, reasoning, marker, start, filler, size = choice
    name = f"{tool or '-'}/{reasoning or '-'} {marker!r} {start!r} {filler!r} in pieces of {size}"
    return name, lambda: feed(tool, reasoning, built(marker, start, filler), size)


def _known() -> Iterator[Choice]:
    """What was slow once."""
    yield "mistral", "", "[TOOL_CALLS]", "name", " ", 0
    yield "mistral", "", "[TOOL_CALLS]", "name", "a", 4
    yield "pythonic", "", "[", "name(a=", "a", 4
    yield "pythonic", "", "[", "", "a", 4
    yield "", "gpt_oss", "<|channel|>", "", "a", 4
    yield "harmony", "gpt_oss", "<|channel|>", " to=", "a", 4
    for tool in tool_parser_names():
        yield tool, "", "", "", " ", 4
    for reasoning in reasoning_parser_names():
        yield "", reasoning, "", "", "\n", 4
        yield "", reasoning, (THOUGHTS[reasoning].opens or ("",))[0] if reasoning in THOUGHTS else "", "", " ", 4


def corpus() -> dict[str, Callable[[], object]]:
    """Those by name, and the calls that are forced."""
    deep = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(20_000)}}
    tools = [{"type": "function", "function": {"name": f"f{number}", "parameters": deep}} for number in range(3)]
    return dict(map(_run, _known())) | {"a schema of three large tools": lambda: schema_for(tools, None, None)}


def case(random: Random) -> tuple[str, Callable[[], object]]:
    """Any parser, any marker, any filler, any cut."""
    tool = random.choice(["", *tool_parser_names()])
    reasoning = random.choice(["", *reasoning_parser_names()])
    known = markers(tool, reasoning)
    marker = "".join(random.choices(known, k=random.choice((1, 1, 2, 3))))
    filler = random.choice((*FILLERS, random.choice(known) or " ", random.choice(known)[:-1] or "a"))
    return _run((tool, reasoning, marker, random.choice(_STARTS), filler, random.choice(SIZES)))
