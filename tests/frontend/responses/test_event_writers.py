"""Equal events, equal content: what the writers of all APIs make of one text is the same, wherever it is cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontend.responses.event_readers import READERS, Said

from dynamo.frontend.openai.constraints import Parsing, parsing_of
from dynamo.frontend.responses.generation_events import Ended, Usage
from dynamo.frontend.responses.responses_writer import ResponsesWriter, response_of
from dynamo.llm.model_card import ModelCard
from dynamo.llm.parsers.factory import ParserFactory

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}]
HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": "ü\\n"}}\n</tool_call>'
HARMONY = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "b"}<|call|>'
RECORDED = {
    ("qwen3", "hermes"): [
        f"<think>\nHm, \"quoted\".\n</think>\n\nI look.\n{HERMES}\n{HERMES}", HERMES, "only text: é 😀 \\ \n",
        "<think>thoughts without an end", f"<think>a</think>{HERMES}<think>b</think>then", "<tool_call>\n{broken", "",
    ],
    ("gpt_oss", "harmony"): [
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{HARMONY}",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Grüezi",
    ],
    ("", ""): ["only text: é 😀 \\ \n", f"<think>a</think>{HERMES}", ""],
}  # fmt: skip
TEXTS = [(parsers, text) for parsers, texts in RECORDED.items() for text in texts]


def parsing(reasoning: str, tools: str) -> Parsing | None:
    """How answers of a model with these parsers are read."""
    factory = ParserFactory.of(ModelCard(name="m", tool_call_parser=tools, reasoning_parser=reasoning), None)
    return parsing_of(factory, {"tools": TOOLS}, None)


def said(parsers: tuple[str, str], pieces: list[str], finish: str) -> Said:
    """What all writers agree to have been said."""
    first, *others = [read(parsing(*parsers), pieces, finish) for read in READERS]
    for other, reader in zip(others, READERS[1:], strict=True):
        assert other == first, reader.__name__
    return first


@pytest.mark.parametrize(("parsers", "text"), TEXTS)
def test_all_writers_say_the_same_at_every_cut(parsers: tuple[str, str], text: str) -> None:
    """Recorded answers of two families, and of a model without parsers, cut once at each place, and at all."""
    whole = said(parsers, [text] if text else [], "stop")
    assert said(parsers, list(text), "stop") == whole
    for at in range(1, len(text)):
        assert said(parsers, [text[:at], text[at:]], "stop").text == whole.text


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", HERMES, "<tool_call>", "\n", " ", "a", "é😀", '"\\', "text "])),
    st.lists(st.integers(0, 200)),
    st.sampled_from(["stop", "length", "none"]),
)
def test_all_writers_say_the_same(parts: list[str], cuts: list[int], finish: str) -> None:
    """Made-up answers, cut anywhere, that end in any way."""
    text = "".join(parts)
    places = sorted({at for at in cuts if at < len(text)} | {0, len(text)})
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    said(("qwen3", "hermes"), pieces, finish)


def test_log_probabilities_of_tokens_without_text_come_with_the_next() -> None:
    """The first half of a character has some, too; many of them are told once, with each token and at the end."""
    sent: list[bytes] = []
    writer = ResponsesWriter(response_of("resp_1", 0, "m", {}), sent.append, lambda: 0.0)
    writer.scored("", [{"token": "1"}])
    writer.scored("é", [{"token": "2"}])
    writer.scored("x", [{"token": "y" * (1 << 17)}])
    writer.say(Ended("stop"))
    writer.say(Usage(1, 3, 0))
    bodies = [json.loads(event.partition(b"data: ")[2]) for event in sent]
    deltas = [body["logprobs"] for body in bodies if body["type"] == "response.output_text.delta"]
    assert [*map(len, deltas)] == [2, 1]
    (done,) = [body for body in bodies if body["type"] == "response.output_text.done"]
    assert (done["text"], done["logprobs"]) == ("éx", [])
    (part,) = bodies[-1]["response"]["output"][0]["content"]
    assert part["logprobs"] == [probability for delta in deltas for probability in delta]
