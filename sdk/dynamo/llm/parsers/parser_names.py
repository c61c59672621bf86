"""The parsers by their names, as workers are told them: which there are, and what is said of those there aren't."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from dynamo.llm.parsers.reasoning_formats import THOUGHTS
from dynamo.llm.parsers.tool_formats import TOOLS
from dynamo.runtime.errors import InvalidArgument

HARMONY: Final = "harmony"
GPT_OSS: Final = "gpt_oss"


def tool_parser_names() -> list[str]:
    """Return what `--dyn-tool-call-parser` may be."""
    return sorted([*TOOLS, HARMONY])


def reasoning_parser_names() -> list[str]:
    """Return what `--dyn-reasoning-parser` may be."""
    return sorted([*THOUGHTS, GPT_OSS])


def check_parsers(tool: str | None, reasoning: str | None) -> None:
    """Raise `InvalidArgument` for the first that there isn't, with those there are."""
    for kind, name, known in (
        ("tool call", tool, tool_parser_names()), ("reasoning", reasoning, reasoning_parser_names()),
    ):  # fmt: skip
        if name and name not in known:
            name = name[:100]
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InvalidArgument(f"there is no {kind} parser {name!r}: {hint}there are {', '.join(known)}")
