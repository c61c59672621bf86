"""From a card and a request to the parser of its answers, over a real vocabulary with special tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.llm.conftest import train_byte_level
from tests.llm.parsers.cuts import call, joined
from tokenizers import Tokenizer as Native

from dynamo.llm.model_card import ModelCard
from dynamo.llm.parsers.events import Content, Event, Thought
from dynamo.llm.parsers.factory import ParserFactory, nine_id
from dynamo.llm.processing.detokenize import Detokenizer
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.llm.tokenizer.huggingface import HfTokenizer, open_hf_tokenizer
from dynamo.runtime.errors import InvalidArgument

TOOLS = [{"type": "function", "function": {"name": "f"}}]
SPECIAL = [
    "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<think>", "</think>", "<|channel|>", "<|message|>", "<|start|>",
    "<|end|>", "<|call|>", "<|constrain|>",
]  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> HfTokenizer:
    """Qwen's chat markers, and those of Mistral and gpt-oss as special tokens."""
    native: Native = train_byte_level()
    native.add_special_tokens(SPECIAL)
    path: Path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    path.write_text(json.dumps(json.loads(native.to_str())))
    return open_hf_tokenizer(path, "default")


def answered(vocabulary: HfTokenizer, card: ModelCard, prompt: str, text: str, **body: Any) -> list[Event]:
    """What is said of an answer's tokens, one at a time, as a frontend does it."""
    reading = ParserFactory(card, vocabulary)
    ids = vocabulary.encode(prompt, add_special=False)
    make = reading.parsers(body, ids)
    request = PreprocessedRequest(model="m", token_ids=ids)
    detokenizer = Detokenizer.for_request(vocabulary, request, reading.shown(body))
    events: list[Event] = []
    if make is None:
        return [Content("".join(map(detokenizer.push_one, vocabulary.encode(text, add_special=False))))]
    parser = make()
    for token in vocabulary.encode(text, add_special=False):
        events += parser.feed(detokenizer.push_one(token))
    return joined(events + parser.finish())


MISTRAL = ModelCard(name="m", tool_call_parser="mistral", reasoning_parser="mistral")
OSS = ModelCard(name="m", tool_call_parser="harmony", reasoning_parser="gpt_oss")
CALL = '[THINK]So.[/THINK]Ok[TOOL_CALLS]f[ARGS]{"x": "é<|im_end|>"}'
MESSAGES = (
    "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    "<|constrain|>json<|message|>{}<|call|>"
)


def test_special_tokens_are_shown_to_the_parser_only(vocabulary: HfTokenizer) -> None:
    """Those that the parser needs; others stay unseen, and without tools so do those of calls."""
    expected = [Thought("So."), Content("Ok"), call("f", '{"x": "é"}')]
    assert answered(vocabulary, MISTRAL, "[THINK]x[/THINK]", CALL, tools=TOOLS) == expected
    assert answered(vocabulary, MISTRAL, "", CALL) == [Thought("So."), Content('Okf{"x": "é"}')]
    assert answered(vocabulary, MISTRAL, "", CALL, tools=TOOLS, tool_choice="none")[-1] == Content('Okf{"x": "é"}')
    assert answered(vocabulary, OSS, "<|start|>assistant", MESSAGES, tools=TOOLS) == [Thought("So."), call("f")]


def test_the_end_of_the_prompt(vocabulary: HfTokenizer) -> None:
    """A thought that the template has opened, or closed, though its markers are special tokens."""
    card = ModelCard(name="m", reasoning_parser="deepseek_r1")
    qwen = ModelCard(name="m", reasoning_parser="qwen3")
    text = "So.</think>Ok"
    assert answered(vocabulary, qwen, "<|im_start|>assistant\n<think>\n", text) == [Thought("So."), Content("Ok")]
    assert answered(vocabulary, qwen, "<|im_start|>assistant\n", "Ok") == [Content("Ok")]
    assert answered(vocabulary, card, "<|im_start|>assistant\n", text) == [Thought("So."), Content("Ok")]
    assert answered(vocabulary, card, "<think>\n\n</think>\n\n", "Ok") == [Content("Ok")]


def test_nothing_is_parsed_where_nothing_is_asked_for(vocabulary: HfTokenizer) -> None:
    """A parser for tools costs a request without tools nothing."""
    card = ModelCard(name="m", tool_call_parser="hermes")
    assert ParserFactory.of(ModelCard(name="m"), vocabulary) is None
    reading = ParserFactory(card, vocabulary)
    assert reading.parsers({"messages": []}) is None
    assert reading.parsers({"tools": TOOLS, "tool_choice": "none"}) is None
    assert reading.parsers({"tools": TOOLS}) is not None


def test_ids() -> None:
    """Mistral's templates take nine letters and digits only."""
    assert ParserFactory(MISTRAL, None).new_id is nine_id
    assert nine_id().isalnum()
    assert len(nine_id()) == 9


def test_a_card_with_a_parser_that_is_not_here() -> None:
    """Its model is not served: what its answers hold would come out wrong."""
    with pytest.raises(InvalidArgument, match="no tool call parser 'of_2030'"):
        ParserFactory.of(ModelCard(name="m", tool_call_parser="of_2030"), None)


def test_cards_with_other_parsers_are_other_sets() -> None:
    """A request is answered by workers that are read alike; without parsers a card's digest is as it was."""
    plain = ModelCard(name="m")
    assert len({plain.digest, MISTRAL.digest, OSS.digest}) == 3
    assert plain.same_tokens(MISTRAL)
