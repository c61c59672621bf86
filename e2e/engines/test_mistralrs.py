"""Gemma 3 270M by mistral.rs, through frontend and worker: the tests that `make test` has with llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.examples.test_examples import engine_serves
from tests.frontend.engines.test_gemma_engines import (
    TOKENS,
    Real,
    serving,
    test_a_base_model_is_made_to_call_tools,
    test_eight_streams_at_once,
    test_eight_whole_streams_at_once,
    test_it_says_what_the_engine_says,
)

# `make test` has them with llama.cpp; `make e2e` has the example with this one.
pytest.mark.full(test_a_base_model_is_made_to_call_tools)
pytest.mark.full(test_it_says_what_the_engine_says)
pytest.mark.full(test_eight_streams_at_once)
pytest.mark.full(test_eight_whole_streams_at_once)


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    with serving("mistralrs", of_mistralrs) as served:
        yield served


def of_mistralrs(engine: Any, prompt: str) -> str:
    """The answer of mistral.rs' own completions, which don't stream, to the same text."""
    import mistralrs

    asked = mistralrs.CompletionRequest(prompt=f"<bos>{prompt}", model="default", max_tokens=TOKENS, temperature=0.0)
    return str(engine._runner.send_completion_request(asked).choices[0].text)


def test_its_example_serves(tmp_path: Path) -> None:
    """`examples/engines/mistralrs.yaml`: greeted, asked, counted; it knows a capital."""
    engine_serves("mistralrs", tmp_path)
