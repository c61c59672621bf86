"""The sampling fields: each of them reaches each engine, by the engine's own name."""

from typing import Final

import msgspec
import pytest

from dynamo.engine_catalog import EngineName
from dynamo.frontend.openai.request_structs import Sampling
from dynamo.llm.processing.request_options import sampling_options
from dynamo.llm.protocols import SAMPLING_FIELDS, SamplingOptions
from dynamo.worker.engines.support.sampling import NAMES, sampling_of

CONVERTED: Final = {"n", "bad_words", "best_of", "logit_bias", "guided_decoding", "include_stop_str_in_output"}
"""Fields that the frontend or an adapter makes something else of."""
VALUES: Final = {field: number for number, field in enumerate(SAMPLING_FIELDS, 1)}


def test_the_list_is_complete() -> None:
    """A field of the request that is neither listed nor converted would reach no engine."""
    assert {field.name for field in msgspec.structs.fields(SamplingOptions)} == CONVERTED | {*SAMPLING_FIELDS}
    assert {*SAMPLING_FIELDS} <= {field.name for field in msgspec.structs.fields(Sampling)}


def test_a_body_sets_every_field() -> None:
    """What a client sends is in the options, at top level or in nvext (but for the seed, which only OpenAI's has)."""
    options = sampling_options(VALUES, choice=0)
    assert {field: getattr(options, field) for field in SAMPLING_FIELDS} == VALUES
    options = sampling_options({"nvext": VALUES}, choice=0)
    assert {field: getattr(options, field) for field in SAMPLING_FIELDS} == {**VALUES, "seed": None}


@pytest.mark.parametrize("engine", NAMES)
def test_an_engine_gets_what_is_set(engine: EngineName) -> None:
    """Fields that are left out are left to the engine; the others come by its names, each to one."""
    assert sampling_of(engine, SamplingOptions()) == {}
    assert NAMES[engine].keys() <= {*SAMPLING_FIELDS}
    given = sampling_of(engine, SamplingOptions(**VALUES))  # type: ignore[arg-type]
    expected = {NAMES[engine].get(field, field): value for field, value in VALUES.items()}
    assert given == {name: value for name, value in expected.items() if name}


def test_names_that_differ() -> None:
    """Three engines spell a field their own way, or take it only converted."""
    options = SamplingOptions(repetition_penalty=1.5, seed=7, top_k=3, temperature=0.0)
    assert sampling_of(EngineName.LLAMACPP, options) == {
        "repeat_penalty": 1.5, "temperature": 0.0, "top_k": 3, "seed": 7,
    }  # fmt: skip
    assert sampling_of(EngineName.SGLANG, options) == {
        "repetition_penalty": 1.5, "temperature": 0.0, "top_k": 3, "sampling_seed": 7,
    }  # fmt: skip
    assert sampling_of(EngineName.MISTRALRS, options) == {"repetition_penalty": 1.5, "temperature": 0.0}
