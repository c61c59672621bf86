"""Tokens as bytes, in the two kinds of vocabulary that GGUF files have."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.llm.models.gguf_header import Header
from dynamo.runtime.errors import EngineError
from dynamo.worker.engines.llamacpp.vocabulary import Vocabulary, byte_alphabet


def vocabulary(kind: str, tokens: list[str]) -> Vocabulary:
    fields: dict[str, Any] = {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": tokens}
    return Vocabulary(Header(fields, digest="d"))


def test_byte_fallback() -> None:
    """A byte token is its byte, the marked space a space; text is UTF-8, ids outside are nothing."""
    known = vocabulary("llama", ["<0xF0>", "\u2581Berlin", "\u00fc"])
    assert [known.token_bytes(n) for n in range(4)] == [b"\xf0", b" Berlin", "\u00fc".encode(), b""]
    assert known.token_bytes(-1) == b""
    assert known.byte_id(0xF0) == 0
    with pytest.raises(EngineError, match="0x93"):
        known.byte_id(0x93)


def test_byte_alphabet() -> None:
    """Every byte has its own character; tokens of them are bytes, special tokens their own text."""
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["\u0120"], alphabet["A"], alphabet["\u010a"]) == (0x20, 0x41, 0x0A)
    known = vocabulary("gpt2", ["\u0120Berlin", "\u00f0", "\uff5cend\uff5c"])
    assert [known.token_bytes(n) for n in range(3)] == [b" Berlin", b"\xf0", "\uff5cend\uff5c".encode()]
    assert known.byte_id(0xF0) == 1
