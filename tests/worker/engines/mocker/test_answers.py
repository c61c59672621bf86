"""What the mocker says is what parsers read, and it says it again wherever it goes on."""

from __future__ import annotations

import json

import pytest

from dynamo.llm import Tokenizer, load_tokenizer, open_model
from dynamo.llm.parsers.events import CallStart, CallText, Event, Parser, tools_of
from dynamo.llm.parsers.harmony import HarmonyParser
from dynamo.llm.parsers.parser import AnswerParser
from dynamo.llm.parsers.parser_names import tool_parser_names
from dynamo.llm.parsers.tool_formats import TOOLS
from dynamo.llm.protocols import EOS, LENGTH, PreprocessedRequest, SamplingOptions, StopConditions
from dynamo.worker.engines.mocker.answers import AnswerWriter
from dynamo.worker.engines.mocker.arguments import MockArguments
from dynamo.worker.engines.mocker.spoken_calls import SpokenCall, calls_asked_for, spoken

CALLS = [SpokenCall("f", {"city": "Paris", "days": 3}), SpokenCall("g", {})]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
KNOWN = tools_of([{"function": {"name": "f", "parameters": SCHEMA}}, {"function": {"name": "g"}}])
SILENT = ("deepseek_v3", "deepseek_v3_2", "deepseek_v4")
"""Families whose words the mocker doesn't know."""


def called(events: list[Event]) -> list[SpokenCall]:
    """The calls that a parser heard."""
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallStart):
            calls.append((event.name, ""))
        elif isinstance(event, CallText):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
        else:
            calls.append((getattr(event, "name", "no call"), getattr(event, "arguments", "{}")))
    return [SpokenCall(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("name", sorted(set(tool_parser_names()) - set(SILENT)))
def test_calls_are_said_in_the_words_of_each_family(name: str) -> None:
    """Each family's parser reads them back."""
    text = spoken(name, CALLS)
    assert text is not None
    harmony = HarmonyParser(thoughts=True, tools=True)
    parser: Parser = harmony if name == "harmony" else AnswerParser(None, TOOLS[name], KNOWN)
    assert called(parser.feed(text) + parser.finish()) == CALLS


def test_calls_that_a_prompt_asks_for() -> None:
    """At its end only: what was asked for earlier has been answered."""
    asked = 'Please call f {"city": "Paris", "days": 3} call g {}'
    assert calls_asked_for(f"user: {asked}<|im_end|>\n<|im_start|>assistant\n") == CALLS
    assert calls_asked_for(f"call h {{}} and then. {asked}") == CALLS
    for text in (f"{asked}{' x' * 60}", "call f", "call f {broken", "", "call f {" * 300):
        assert calls_asked_for(text) == []


def writer() -> tuple[AnswerWriter, Tokenizer]:
    """A writer with the built-in tokenizer."""
    model = open_model(None)
    tokenizer = load_tokenizer(model.card, model.files)
    return AnswerWriter(MockArguments(), tokenizer, tools="hermes", thoughts="qwen3"), tokenizer


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("Hello", {}), ('call f {"a": [1, 2]}', {}), ("Hello", {"guided_decoding": {"regex": "[a-z]{30}"}}),
        ("Hello", {"seed": 5}),
    ],
)  # fmt: skip
def test_another_one_goes_on(prompt: str, options: dict[str, object]) -> None:
    """From any token on, the rest of the answer is the same, and so is its end."""
    write, tokenizer = writer()
    ids = tokenizer.encode(prompt)

    def rest(given: list[int]) -> tuple[list[int], str]:
        request = PreprocessedRequest(
            model="m", token_ids=ids + given, answered_tokens=len(given), sampling_options=SamplingOptions(**options),  # type: ignore[arg-type]
            stop_conditions=StopConditions(max_tokens=1000 - len(ids) - len(given)),
        )  # fmt: skip
        answer = write.answer(request, 1000 - len(ids) - len(given), {})
        made: list[int] = []
        while answer is not None and not answer.over:
            made.append(answer.take())
        return made, EOS if answer is None else answer.end

    whole, end = rest([])
    assert end == EOS
    for at in {1, len(whole) // 2, len(whole) - 1}:
        assert rest(whole[:at]) == (whole[at:], end)
    if "guided_decoding" in options:
        assert rest(whole) == ([], EOS)


def test_a_wanted_length_is_kept() -> None:
    """Thoughts and text together."""
    write, tokenizer = writer()
    for wanted in (5, 200):
        request = PreprocessedRequest(
            model="m", token_ids=tokenizer.encode("Hi"), stop_conditions=StopConditions(max_tokens=wanted)
        )
        answer = write.answer(request, 1000, {})
        assert answer is not None
        made = []
        while not answer.over:
            made.append(answer.take())
        assert (len(made), answer.end) == (wanted, LENGTH)
        assert tokenizer.decode(made).startswith("<think>") is (wanted == 200)


@pytest.mark.parametrize("guided", [None, {"json": SCHEMA}])
def test_answers_to_one_prompt_differ(guided: dict[str, object] | None) -> None:
    """Where no seed tells them apart their number does, the same on each worker; at temperature 0 all are alike."""
    mocker, tokenizer = writer()

    def said(choice: int, **options: object) -> list[int]:
        ids = tokenizer.encode("Hello", add_special=False)
        sampling = SamplingOptions(guided_decoding=guided and dict(guided), **options)  # type: ignore[arg-type]
        request = PreprocessedRequest(
            model="m", token_ids=ids, choice=choice, sampling_options=sampling,
            stop_conditions=StopConditions(max_tokens=40),
        )  # fmt: skip
        answer = mocker.answer(request, 100, {})
        assert answer is not None
        tokens: list[int] = []
        while not answer.over:
            tokens.append(answer.take())
        return tokens

    assert len({tuple(said(choice)) for choice in range(4)}) > 1
    assert said(3) == said(3)
    assert len({tuple(said(choice, temperature=0)) for choice in range(4)}) == 1
    assert said(2, seed=5) == said(0, seed=5)
