"""What is kept of a stream so that it can go on elsewhere, and the request for the rest: pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.frontend.generation.migration import GUIDED, TEXT, TOO_LONG, MigrationState, rest_of
from dynamo.frontend.limits.settings import MigrationSettings
from dynamo.llm.protocols import OutputOptions, PreprocessedRequest, SamplingOptions, StopConditions, TextRequest
from dynamo.runtime.errors import EngineError


def request(prompt: int = 3, **more: Any) -> PreprocessedRequest:
    return PreprocessedRequest(model="m", token_ids=list(range(prompt)), **more)


@given(st.lists(st.integers(0, 1 << 20), max_size=40), st.lists(st.integers(1, 10), max_size=4))
def test_rests_of_rests_are_one_rest(tokens: list[int], cuts: list[int]) -> None:
    """However often it is cut: the prompt and all tokens in order, and as many left as there were."""
    whole = request(stop_conditions=StopConditions(max_tokens=50, min_tokens=20))
    rest, kept, at = whole, MigrationState(whole, MigrationSettings(9)), 0
    assert kept.add is not None
    for cut in [*cuts, len(tokens)]:
        for token in tokens[at : at + cut]:
            kept.add(token)
        remainder = rest_of(rest, kept.take())
        assert remainder is not None
        rest, at = remainder, min(len(tokens), at + cut)
    sent = tokens[:at]
    assert (rest.token_ids, rest.answered_tokens) == (whole.token_ids + sent, len(sent))
    assert rest.stop_conditions.max_tokens == 50 - len(sent)
    assert rest.stop_conditions.min_tokens == max(0, 20 - len(sent))
    assert whole == request(stop_conditions=StopConditions(max_tokens=50, min_tokens=20))


def test_what_a_rest_asks_for() -> None:
    """Everything as before, but the prompt's log probabilities; no rest where all tokens have come."""
    whole = request(
        output_options=OutputOptions(logprobs=2, prompt_logprobs=1),
        sampling_options=SamplingOptions(seed=5, temperature=0.5),
        stop_conditions=StopConditions(stop=["x"], stop_token_ids=[4], ignore_eos=True),
    )
    rest = rest_of(whole, [7])
    assert rest is not None
    assert rest.output_options == OutputOptions(logprobs=2)
    assert (rest.sampling_options, rest.stop_conditions) == (whole.sampling_options, whole.stop_conditions)
    assert rest_of(request(stop_conditions=StopConditions(max_tokens=2)), [1, 2]) is None


def test_who_keeps_nothing() -> None:
    """No limit, text, guided decoding whose answer is drawn."""
    guided = constrained(temperature=0.7)
    text = TextRequest(model="m", kind="chat", body={})
    for asked, limit, barred in ((request(), 0, ""), (guided, 3, GUIDED), (text, 3, TEXT)):
        kept = MigrationState(asked, MigrationSettings(limit))
        assert (kept.add, kept.barred) == (None, barred)


def constrained(**options: Any) -> PreprocessedRequest:
    return request(sampling_options=SamplingOptions(guided_decoding={"json": {}}, **options))


@pytest.mark.parametrize("drawn", [{"temperature": 0}, {"seed": 3}, {"top_k": 1}])
def test_constrained_answers_that_are_made_anew(drawn: dict[str, Any]) -> None:
    """The whole request once more, and what came before is dropped, however it comes; another answer is an error."""
    whole = constrained(**drawn)
    kept = MigrationState(whole, MigrationSettings(3))
    assert kept.replay() is None
    for came in ([1, 2], [3], []):
        for token in came:
            assert kept.add is not None
            kept.add(token)
        assert kept.rest(whole) == whole
    for cuts in ((1, 1, 1, 1), (3, 1), (2, 2), (4,)):
        again = kept.replay()
        assert again is not None
        ids = iter([1, 2, 3, 4])
        new = [token for cut in cuts for token in again.new([next(ids) for _ in range(cut)])]
        assert (new, again.over) == ([4], True)
    other = kept.replay()
    assert other is not None
    assert (other.new([1]), other.over) == ([], False)
    with pytest.raises(EngineError, match="another answer"):
        other.new([7])


def test_constrained_answers_that_go_on() -> None:
    """An engine that goes on within a constraint gets the rest, drawn or not; log probabilities aren't made anew."""
    whole = constrained()
    kept = MigrationState(whole, MigrationSettings(3), resumes=True)
    assert kept.add is not None
    kept.add(5)
    rest = kept.rest(whole)
    assert rest is not None
    assert (rest.token_ids[-1], rest.answered_tokens, kept.replay()) == (5, 1, None)
    scored = msgspec.structs.replace(constrained(temperature=0), output_options=OutputOptions(logprobs=1))
    assert MigrationState(scored, MigrationSettings(3)).barred == GUIDED


@pytest.mark.parametrize(("longest", "tokens", "barred"), [(5, 2, ""), (5, 3, TOO_LONG), (2, 0, TOO_LONG), (3, 0, "")])
def test_the_longest_sequence(longest: int, tokens: int, barred: str) -> None:
    """At the limit it may still go on, beyond it nothing is kept; that is told once. It counts across migrations."""
    numbers: list[int] = []
    kept = MigrationState(request(3), MigrationSettings(1, longest), lambda: numbers.append(1))
    for token in range(tokens):
        if kept.add is not None:
            kept.add(token)
    assert kept.barred == barred
    assert len(numbers) == bool(barred)
    assert kept.take() == ([] if barred else list(range(tokens)))
    for token in range(9):
        if kept.add is not None:
            kept.add(token)
    assert kept.barred == TOO_LONG
    assert len(numbers) == 1
