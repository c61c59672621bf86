"""Inputs, tokens and vectors, without any engine."""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any

import pytest

from dynamo.llm.model_card import ModelCard
from dynamo.llm.processing.embeddings import (
    MOST_INPUTS,
    InputTooLong,
    check_dimensions,
    dimensions_of,
    normalised,
    numbers_of,
    packed,
    read_inputs,
    read_vectors,
    shortened,
    tokenised,
)
from dynamo.llm.processing.preprocess import Preprocessor
from dynamo.llm.tokenizer.byte_level import ByteTokenizer
from dynamo.runtime.errors import InvalidArgument


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("ab", ["ab"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
    ],
)
def test_the_forms_of_input(given: Any, inputs: list[Any]) -> None:
    """OpenAI's four, and texts beside tokens."""
    assert read_inputs(given) == inputs


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "got NoneType"), ([], "an empty list"), (5, "got int"), ({}, "got dict"), ("", "entry 0 is empty"),
        (["a", ""], "entry 1 is empty"), (["a", 1], "entry 1 is neither"), ([[1], []], "entry 1 is neither"),
        ([1, -2], "entry 0 is neither"), ([1, True], "entry 0 is neither"), ([1.5], "entry 0 is neither"),
        (["a"] * (MOST_INPUTS + 1), f"at most {MOST_INPUTS}"),
    ],
)  # fmt: skip
def test_what_is_no_input(given: Any, said: str) -> None:
    """The sentence begins with the field and names the entry."""
    with pytest.raises(InvalidArgument, match=said) as caught:
        read_inputs(given)
    assert caught.value.message.startswith("input")


def ids(inputs: list[Any], **card: Any) -> list[list[int]]:
    """Their tokens by the built-in tokenizer."""
    made = Preprocessor(ModelCard(name="m", **card), ByteTokenizer())
    return asyncio.run(tokenised(inputs, made))


def test_inputs_become_tokens_up_to_the_context() -> None:
    """A text of just as many tokens fits: there is no answer to leave room for."""
    assert ids(["ab", [1, 2, 3], "abc"] * 50, context_length=3) == [[97, 98], [1, 2, 3], [97, 98, 99]] * 50


@pytest.mark.parametrize("given", ["abcd", [1, 2, 3, 4], "x" * 1_000_000])
def test_an_input_that_is_too_long_is_named(given: Any) -> None:
    """The number of the entry, its tokens and the context; a text far too long isn't tokenised first."""
    with pytest.raises(
        InputTooLong, match=r"maximum context length is 3 tokens, but input 1 has (at least )?\d+ tok"
    ) as caught:
        ids(["ok", given], context_length=3)
    assert caught.value.code == InvalidArgument.code


def test_a_token_beyond_the_vocabulary_is_named() -> None:
    """The first number that isn't a token, and where it stands."""
    with pytest.raises(InvalidArgument, match=r"entry 1 has the token id 9999, but the vocabulary ends at \d+"):
        ids([[1], [2, 9999]])


def test_a_vector_is_its_numbers_as_float32() -> None:
    """Little-endian, whatever the machine; what is read is what a float32 keeps."""
    vector = packed([1.0, -2.5, 0.1])
    assert vector == struct.pack("<3f", 1.0, -2.5, 0.1)
    assert numbers_of(vector) == list(struct.unpack("<3f", vector))
    assert dimensions_of(vector) == 3


def test_a_vector_that_is_cut_has_length_one_again() -> None:
    """The first numbers keep their direction; one that has no more than asked for stays as it is."""
    vector = packed([3.0, 4.0, 12.0])
    assert numbers_of(shortened(vector, 2)) == pytest.approx([0.6, 0.8])
    assert shortened(vector, 3) == shortened(vector, None) == vector
    assert normalised([0.0, 0.0]) == [0.0, 0.0]


def test_which_dimensions_can_be_given() -> None:
    """Its own always, fewer where its vectors may be cut, more never."""
    for wanted, cut in ((None, False), (8, False), (4, True), (8, True)):
        check_dimensions(wanted, 8, cut=cut)
    for wanted, cut in ((4, False), (9, False), (9, True)):
        with pytest.raises(InvalidArgument, match=r"dimensions: .* 8 numbers"):
            check_dimensions(wanted, 8, cut=cut)


def test_the_forms_of_an_answer() -> None:
    """Ours, NVIDIA Dynamo's and OpenAI's, with numbers or base64, say the same."""
    first, second = packed([1.0, 2.0]), packed([3.0, 4.0])
    assert read_vectors([1, second]).vectors == [(1, second)]
    original = read_vectors({"embeddings": [[1.0, 2.0], [3, 4]], "prompt_tokens": 5, "total_tokens": 5})
    data = [{"index": 1, "embedding": base64.b64encode(second).decode()}, {"index": 0, "embedding": [1, 2]}]
    openai = read_vectors({"object": "list", "data": data, "usage": {"prompt_tokens": 5, "total_tokens": 5}})
    assert dict(original.vectors) == dict(openai.vectors) == {0: first, 1: second}
    assert (original.prompt_tokens, openai.prompt_tokens) == (5, 5)


@pytest.mark.parametrize(
    "item", [7, None, [], [0], [0, "x"], ["0", b"1234"], [0, b"123"], {}, {"embeddings": ["x"]}, {"data": [{}]}]
)
def test_what_is_no_answer(item: Any) -> None:
    """It raises what a reader of foreign data expects."""
    with pytest.raises((ValueError, TypeError, KeyError)):
        read_vectors(item)
