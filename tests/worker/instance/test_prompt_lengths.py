"""Prompts that are too long are refused before they are decoded, and lists that are too long while they are."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from dynamo.llm.protocols import MOST_IDS, PreprocessedRequest
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.instance.prompt_lengths import MOST_TOKENS, array_length, within

DECODE = msgspec.msgpack.Decoder(PreprocessedRequest).decode


def encoded(**fields: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode({"model": "m", "token_ids": [1], **fields}))


@pytest.mark.parametrize("length", [0, 15, 16, 65_535, 65_536, 200_000])
def test_the_length_of_an_array(length: int) -> None:
    """In each of its forms."""
    assert array_length(msgspec.msgpack.encode([7] * length)) == length


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\xdc\x01", b"\xdd\x00\x00", b"\xa3abc"])
def test_what_is_no_array(data: bytes) -> None:
    """Is for the decoder to refuse."""
    assert array_length(data) == 0


def test_prompts_over_the_context() -> None:
    """Refused by their length alone; the most that a context has is let through."""
    check = within(1000)
    check(encoded(token_ids=[1] * 1000))
    with pytest.raises(InvalidArgument, match="a prompt of 1001 tokens"):
        check(encoded(token_ids=[1] * 1001))
    within(None)(encoded(token_ids=[1] * 1001))
    with pytest.raises(InvalidArgument, match=str(MOST_TOKENS)):
        within(None)(msgspec.Raw(b"\x81\xa9token_ids\xdd\x10\x00\x00\x01" + bytes(0x10000001)))


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_conditions": {"stop_token_ids": [5] * 3_000_000}},
        {"eos_token_ids": [5] * 3_000_000},
        {"sampling_options": {"logit_bias": {str(n): 1.0 for n in range(300_000)}}},
        {"stop_conditions": {"stop": ["x"] * 1_000_000}},
        {"annotations": ["x"] * 1_000_000},
    ],
    ids=["stop ids", "eos ids", "bias", "stop strings", "annotations"],
)
def test_long_lists(fields: dict[str, Any]) -> None:
    """They aren't read: the length that they name is enough. Much faster than what reading them takes."""
    data = encoded(**fields)
    began = time.thread_time()
    with pytest.raises(msgspec.ValidationError):
        DECODE(data)
    refused = time.thread_time() - began
    began = time.thread_time()
    msgspec.msgpack.decode(data)
    assert refused < (time.thread_time() - began) / 4


def test_the_most_that_is_taken() -> None:
    """As many ids as the bound says."""
    request = DECODE(encoded(stop_conditions={"stop_token_ids": [5] * MOST_IDS}))
    assert len(request.stop_conditions.stop_token_ids) == MOST_IDS
