"""What goes between a vLLM that computes a prompt and one that goes on with it."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.llm.protocols import PrefillResult, PreprocessedRequest
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.vllm.requests import asked, handed_over, sampling

KEPT = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2]], "remote_port": 5600}


def request(result: dict[str, Any] | None = None) -> PreprocessedRequest:
    handed = None if result is None else PrefillResult(disaggregated_params=result)
    return PreprocessedRequest(model="m", token_ids=[1, 2], prefill_result=handed)


@pytest.mark.parametrize(
    ("role", "given", "fields"),
    [
        ("aggregated", None, None),
        ("prefill", None, {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}),
        ("decode", None, None),
        ("decode", {"kv_transfer_params": KEPT}, {"kv_transfer_params": KEPT}),
        ("aggregated", {"kv_transfer_params": KEPT}, None),
    ],
)
def test_what_is_asked(role: str, given: dict[str, Any] | None, fields: dict[str, Any] | None) -> None:
    assert asked(role, request(given)) == fields
    assert sampling(request(given), 9, {}, role).get("extra_args") == fields


def test_what_another_kind_of_engine_has_computed_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="is it vLLM"):
        asked("decode", request({"bootstrap": 1}))


def test_what_is_kept_is_handed_over() -> None:
    """As a decode worker is given it; what a decode worker's own connector says is nobody's affair."""
    extras = handed_over(KEPT)
    assert asked("decode", request(extras["disaggregated_params"])) == {"kv_transfer_params": KEPT}
    assert handed_over(None) == handed_over({}) == handed_over({**KEPT, "do_remote_prefill": False}) == {}
