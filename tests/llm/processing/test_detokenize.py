"""One choice's tokens to text: whole characters, ends, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm import Detokenizer, openai_finish_reason
from dynamo.llm.tokenizer.byte_level import EOS_ID, ByteTokenizer
from dynamo.llm.tokenizer.huggingface import open_hf_tokenizer
from dynamo.llm.tokenizer.token_table import take_characters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dynamo.llm import Tokenizer

BYTES = ByteTokenizer()
REPLACEMENT = "\ufffd"


def run(tokenizer: Tokenizer, ids: Sequence[int], finish: str | None = "length", **how: Any) -> tuple[str, Any, Any]:
    """Feed one id at a time."""
    detokenizer = Detokenizer(tokenizer, **how)
    shown = ""
    for token_id in ids:
        shown += detokenizer.push_one(token_id)
    text, reason, stop = detokenizer.push([], finish)
    return shown + text, reason, stop


def whole_characters(text: str) -> str:
    """Drop an incomplete character at the end, which a stream never shows."""
    return text.rstrip(REPLACEMENT)


@given(st.lists(st.integers(0, 257), max_size=40))
def test_byte_streams_equal_the_decoded_whole(ids: list[int]) -> None:
    """Random bytes, valid UTF-8 or not, give what decoding them at once gives."""
    shown, _, _ = run(BYTES, ids)
    assert whole_characters(shown) == whole_characters(BYTES.decode(ids))


@given(st.text(max_size=30), st.integers(1, 7))
def test_no_push_shows_half_a_character(text: str, step: int) -> None:
    """However many bytes arrive at once, what is shown is a beginning of the text."""
    try:
        ids = BYTES.encode(text)
    except ValueError:
        return
    detokenizer = Detokenizer(BYTES)
    shown = ""
    for begin in range(0, len(ids), step):
        shown += detokenizer.push(ids[begin : begin + step])[0]
        assert text.startswith(shown)
    assert shown == text


def test_byte_level_models_stream_what_they_decode(byte_level_file: Path) -> None:
    """A trained byte-level BPE: random ids, specials shown and hidden, equal the library's decoding."""
    tokenizer = open_hf_tokenizer(byte_level_file)
    assert tokenizer.uses_table

    @given(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=30), st.booleans())
    def check(ids: list[int], skip: bool) -> None:
        shown, _, _ = run(tokenizer, ids, skip_special_tokens=skip)
        assert whole_characters(shown) == whole_characters(tokenizer.decode(ids, skip))

    check()


def test_fallback_models_stream_what_they_decode(fallback_file: Path) -> None:
    """Byte fallback: random ids whose runs of bytes are valid equal the library's decoding."""
    tokenizer = open_hf_tokenizer(fallback_file)
    assert tokenizer.uses_table

    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    def check(ids: list[int]) -> None:
        expected = tokenizer.decode(ids)
        if REPLACEMENT not in expected:
            assert run(tokenizer, ids)[0] == expected

    check()


def test_fallback_texts_come_back(fallback_file: Path) -> None:
    """Any text survives encoding and streaming, characters outside the vocabulary as bytes."""
    tokenizer = open_hf_tokenizer(fallback_file)

    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=30))
    def check(text: str) -> None:
        assert run(tokenizer, tokenizer.encode(text))[0] == text

    check()


def test_a_space_at_the_start_is_kept_after_a_prompt(fallback_file: Path) -> None:
    """Only the beginning of a whole text may lose its space, not that of an answer."""
    tokenizer = open_hf_tokenizer(fallback_file)
    space = tokenizer.token_id("▁")
    assert space is not None
    assert run(tokenizer, [space], prompt_ids=tokenizer.encode("The"))[0] == " "


def test_a_character_that_began_in_the_prompt_is_completed() -> None:
    """A prompt of token ids may end within a character."""
    first, *rest = "é".encode()
    assert run(BYTES, [*rest, ord("x")], prompt_ids=[ord("a"), first])[0] == "éx"


def reference_characters(data: bytes) -> tuple[str, bytes]:
    """Byte by byte: a whole character, else the beginning of one at the very end, else an invalid byte."""
    text, at = "", 0
    while at < len(data):
        for size in (1, 2, 3, 4):
            try:
                text += data[at : at + size].decode()
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data" and at + size >= len(data):
                    return text, data[at:]
                continue
            at += size
            break
        else:
            text, at = text + REPLACEMENT, at + 1
    return text, b""


@given(st.one_of(st.binary(max_size=12), st.text(max_size=4).map(lambda t: t.encode(errors="ignore")[:-1])))
def test_invalid_bytes_are_replaced_one_by_one(data: bytes) -> None:
    """Whole characters, one replacement per invalid byte, and the beginning of a character left over."""
    assert take_characters(data) == reference_characters(data)


def test_an_eos_ends_and_is_hidden() -> None:
    """EOS counts as used, adds no text, and is OpenAI's `stop` without a reason."""
    detokenizer = Detokenizer(BYTES, eos_token_ids=[EOS_ID, ord("!")])
    assert detokenizer.push([ord("a"), ord("!"), ord("b")]) == ("a", "stop", None)
    assert detokenizer.tokens == 2
    assert detokenizer.push([ord("c")], "length") == ("", "stop", None)


def test_ignore_eos_goes_on() -> None:
    """With `ignore_eos` the end token is one like others."""
    assert run(BYTES, [ord("a"), EOS_ID, ord("b")], eos_token_ids=[EOS_ID], ignore_eos=True) == ("ab", "length", None)


def test_a_stop_id_is_named() -> None:
    """A stop id that the request chose is the stop reason; its text is hidden unless asked for."""
    assert run(BYTES, b"a.b", stop_token_ids=[ord(".")]) == ("a", "stop", ord("."))
    shown = run(BYTES, b"a.b", stop_token_ids=[ord(".")], include_stop_str_in_output=True)
    assert shown == ("a.", "stop", ord("."))


def test_min_tokens_puts_off_every_end() -> None:
    """Below `min_tokens` neither EOS nor stop strings end the text."""
    assert run(BYTES, b"..x.y", eos_token_ids=[ord(".")], min_tokens=3) == ("..x", "stop", None)
    assert run(BYTES, b"ababab", stop=["ab"], min_tokens=3) == ("ab", "stop", "ab")


def test_max_tokens_ends_with_length() -> None:
    """The own count ends the text and shows what was held back."""
    assert run(BYTES, b"abEN!!", None, max_tokens=4, stop=["END"]) == ("abEN", "length", None)
    assert Detokenizer(BYTES, max_tokens=0).finish_reason == "length"


def test_held_text_is_shown_at_the_end() -> None:
    """A beginning of a stop string that stays one is text."""
    assert run(BYTES, b"so EN", "stop", stop=["END"]) == ("so EN", "stop", None)


def test_a_stop_string_may_cross_tokens_and_characters() -> None:
    """Stop strings are found in the text, wherever tokens begin."""
    assert run(BYTES, "один два".encode(), stop=["н д"]) == ("оди", "stop", "н д")
    shown = run(BYTES, b"a</s>b", stop=["</s>"], include_stop_str_in_output=True)
    assert shown == ("a</s>", "stop", "</s>")


def test_length_is_the_offset_of_the_next_token() -> None:
    """Offsets count held-back characters too."""
    detokenizer = Detokenizer(BYTES, stop=["END"], measured=True)
    offsets = []
    for token_id in b"aENx":
        offsets.append(detokenizer.length)
        detokenizer.push_one(token_id)
    assert offsets == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("engine", "openai"), [("eos", "stop"), ("stop", "stop"), ("length", "length"), ("cancelled", "stop")]
)
def test_engine_reasons_have_openai_names(engine: str, openai: str) -> None:
    """Each end that an engine may give has one name for clients."""
    assert openai_finish_reason(engine) == openai
    assert run(BYTES, b"a", engine)[1] == openai
