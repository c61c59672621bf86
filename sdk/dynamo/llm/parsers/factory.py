"""Which parser reads the answer to a request: made once per model, asked once per request."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from dynamo.llm.model_card import ModelCard
from dynamo.llm.parsers import harmony
from dynamo.llm.parsers.events import Parser, tools_of
from dynamo.llm.parsers.harmony import HarmonyParser
from dynamo.llm.parsers.parser import AnswerParser, FirstCalls
from dynamo.llm.parsers.parser_names import GPT_OSS, HARMONY, check_parsers
from dynamo.llm.parsers.reasoning_formats import THOUGHTS
from dynamo.llm.parsers.tool_formats import TOOLS

_TAIL: Final = 12
"""Tokens at the end of a prompt that may hold a thought's marker, which some vocabularies spell in pieces."""
_NINE: Final = string.ascii_letters + string.digits


class Vocabulary(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...

    def token_id(self, content: str) -> int | None: ...


def call_id() -> str:
    """Make an id as OpenAI's."""
    return f"call_{random.getrandbits(96):024x}"


def nine_id() -> str:
    """Make an id as Mistral's templates take."""
    return "".join(random.choices(_NINE, k=9))


class ParserFactory:
    """Factory of one model's readers. Raises `InvalidArgument` where its card names a parser that isn't here."""

    def __init__(self, card: ModelCard, vocabulary: Vocabulary | None) -> None:
        tool, reasoning = card.tool_call_parser, card.reasoning_parser
        check_parsers(tool, reasoning)
        self._harmony = (reasoning == GPT_OSS, tool == HARMONY)
        self._tools, self._thoughts = TOOLS.get(tool or ""), THOUGHTS.get(reasoning or "")
        self._vocabulary = vocabulary
        self.new_id: Callable[[], str] = nine_id if self._tools is not None and self._tools.ids == "nine" else call_id
        for_thoughts = harmony.TOKENS if self._harmony[0] else self._thoughts.tokens if self._thoughts else ()
        for_tools = harmony.TOKENS if self._harmony[1] else self._tools.tokens if self._tools else ()
        self._shown = (_hidden(vocabulary, for_thoughts), _hidden(vocabulary, for_tools))

    @classmethod
    def of(cls, card: ModelCard, vocabulary: Vocabulary | None) -> ParserFactory | None:
        """Make the factory; None where the card names no parser: answers come as the model writes them."""
        return cls(card, vocabulary) if card.tool_call_parser or card.reasoning_parser else None

    @property
    def thinks(self) -> bool:
        """Tell whether the model's thoughts are told apart from its answers."""
        return self._harmony[0] or self._thoughts is not None

    def shown(self, body: Mapping[str, Any]) -> Mapping[int, str]:
        """Return special tokens that an answer's text must show, by their ids."""
        thoughts, tools = self._shown
        return {**thoughts, **tools} if wants_tools(body) else thoughts

    def parsers(self, body: Mapping[str, Any], prompt_ids: Sequence[int] = ()) -> Callable[[], Parser] | None:
        """Return what makes the parser of each choice; None where nothing of this request's answers is parsed."""
        tools = wants_tools(body)
        if any(self._harmony):
            thoughts, calls = self._harmony[0], self._harmony[1] and tools
            made: Callable[[], Parser] = partial(HarmonyParser, thoughts=thoughts, tools=calls)
            parses = thoughts or calls
        else:
            made = self._answers(body, prompt_ids, tools)
            parses = self._thoughts is not None or (tools and self._tools is not None)
        if not parses:
            return None
        return (lambda: FirstCalls(made())) if body.get("parallel_tool_calls") is False else made

    def without_tools(
        self, body: Mapping[str, Any], prompt_ids: Sequence[int]
    ) -> tuple[Callable[[], Parser] | None, Mapping[int, str]]:
        """Return what tells thoughts from the rest, and what the text must show for it."""
        plain = {**body, "tools": None, "parallel_tool_calls": None}
        return self.parsers(plain, prompt_ids), self.shown(plain)

    def _answers(self, body: Mapping[str, Any], prompt_ids: Sequence[int], tools: bool) -> Callable[[], Parser]:
        thoughts, form = self._thoughts, self._tools if tools else None
        known = tools_of(body.get("tools")) if form is not None else {}
        in_thought = thoughts is not None and thoughts.open_after(self._tail(prompt_ids))
        return partial(AnswerParser, thoughts, form, known, in_thought=in_thought)

    def _tail(self, prompt_ids: Sequence[int]) -> str:
        if self._vocabulary is None:
            return ""
        return self._vocabulary.decode(prompt_ids[-_TAIL:], skip_special=False)


def wants_tools(body: Mapping[str, Any]) -> bool:
    """Tell whether the answer may call tools."""
    return bool(body.get("tools")) and body.get("tool_choice") != "none"


def _hidden(vocabulary: Vocabulary | None, markers: Sequence[str]) -> dict[int, str]:
    """Return those of the markers that are one token each, which text doesn't show."""
    if vocabulary is None:
        return {}
    ids = {marker: vocabulary.token_id(marker) for marker in markers}
    return {
        token: marker for marker, token in ids.items()
        if token is not None and vocabulary.decode([token]) != vocabulary.decode([token], skip_special=False)
    }  # fmt: skip
