"""The engine contract of tests/worker over vLLM: the same cases, not a copy of them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
from tests.worker import test_engine_contract as contract


def over_vllm(case: Callable[..., None]) -> Callable[..., None]:
    """`case` as it stands, for the engine of this folder's `run` instead of those that it names."""
    assert isinstance(case, types.FunctionType)
    made = types.FunctionType(case.__code__, case.__globals__, case.__name__, case.__defaults__, case.__closure__)
    made.__doc__, made.__annotations__ = case.__doc__, case.__annotations__
    marks: list[Any] = [mark for mark in getattr(case, "pytestmark", []) if mark.args[:1] != ("run",)]
    made.pytestmark = marks  # type: ignore[attr-defined] # where pytest keeps them
    return made


test_streams_to_its_length = over_vllm(contract.test_streams_to_its_length)
test_nothing_wanted = over_vllm(contract.test_nothing_wanted)
test_eight_at_once = over_vllm(contract.test_eight_at_once_are_as_one_by_one)
test_cancel = over_vllm(contract.test_cancel_frees_the_slot)
test_going_on = over_vllm(contract.test_answers_go_on_where_another_engine_was_cut)
test_stop_token_ids = over_vllm(contract.test_stop_token_ids)
test_eos = over_vllm(contract.test_eos_ends_unless_ignored)
test_over_long_prompts = over_vllm(contract.test_over_long_prompts_fail_before_any_output)
test_cached_tokens = over_vllm(contract.test_cached_tokens_are_counted)
test_cancel_of_a_long_prompt = over_vllm(contract.test_a_cancel_reaches_a_long_prompt)
test_ids = over_vllm(contract.test_ids_outside_the_vocabulary_are_refused)


@pytest.mark.usefixtures("known")
def test_stop_ends_open_requests() -> None:
    """With an engine of its own, since it is stopped."""
    contract.test_stop_ends_open_requests("vllm")


def test_nothing_of_the_contract_is_left_out() -> None:
    """What isn't above is about engines by name, or about llama.cpp alone."""
    here = {made.__code__ for made in globals().values() if isinstance(made, types.FunctionType)}
    others = {
        "test_stop_ends_open_requests", "test_unknown_arguments_are_refused", "test_engines_are_known_by_name",
        "test_the_listener_of_llamacpp_is_private", "test_real_text",
    }  # fmt: skip
    cases = {name: case for name, case in vars(contract).items() if name.startswith("test_")}
    assert {name for name, case in cases.items() if case.__code__ not in here} == others
