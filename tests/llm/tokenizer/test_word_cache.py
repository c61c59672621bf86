"""Short texts are encoded word by word with exactly the ids of the whole, or not at all."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex as NativeRegex
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dynamo.llm.tokenizer import word_cache
from dynamo.llm.tokenizer.huggingface import HfTokenizer, open_hf_tokenizer
from dynamo.llm.tokenizer.word_cache import Words

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = ["It's the Quick brown fox, isn't it? 12345 tokens\n\n  indented\tcode = {x: 1}\r\n"] * 4 + [string.printable]


def trained(pattern: str | None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    steps: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is not None:
        split = pre_tokenizers.Split(NativeRegex(pattern), "isolated")
        steps = pre_tokenizers.Sequence([split, steps])
    tokenizer.pre_tokenizer = steps
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(scope="module", params=[LLAMA3, O200K, None], ids=["llama3", "o200k", "gpt2"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HfTokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    trained(request.param).save(str(path))
    return open_hf_tokenizer(path, "default")


def whole(tokenizer: HfTokenizer, text: str) -> list[int]:
    return tokenizer._encode_native([text])[0]


def by_words(tokenizer: HfTokenizer) -> Words:
    assert isinstance(tokenizer._encode_all, Words), "this pre-tokenizer should be known"
    return tokenizer._encode_all


@given(data=st.lists(st.text(st.characters(max_codepoint=127), max_size=60), min_size=1, max_size=4))
def test_ids_are_those_of_the_whole(opened: HfTokenizer, data: list[str]) -> None:
    """Any ASCII text, whether its pieces are new or known, has the library's own ids."""
    encode = by_words(opened)
    for text in [*data, *data]:
        assert encode([text]) == [whole(opened, text)]


def test_known_pieces_ask_nobody(opened: HfTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of known words is encoded without the library."""
    encode = by_words(opened)
    text = "It's the Quick fox, the Quick fox"
    expected = whole(opened, text)
    encode([text])
    monkeypatch.setattr(encode, "_encode", None)
    assert encode([text]) == [expected]


def test_only_new_pieces_are_asked_for(opened: HfTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text with one new word costs that word, not the whole again."""
    encode, asked = by_words(opened), list[str]()
    encode(["It's the Quick fox"])
    native = encode._encode

    def counted(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return native(texts)

    monkeypatch.setattr(encode, "_encode", counted)
    text = "It's the Quick brownish fox"
    assert encode([text]) == [whole(opened, text)]
    assert asked == [" brownish"]


def test_other_letters_are_the_library_s(opened: HfTokenizer) -> None:
    """Text that is not ASCII, and long text, goes to the library whole."""
    for text in ("naïve café", "x\u0085y", "word " * 2000):
        assert by_words(opened)([text]) == [whole(opened, text)]


def test_memory_is_bounded(opened: HfTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many words come, a bounded number is remembered, and the ids stay right."""
    monkeypatch.setattr(word_cache, "MOST_KNOWN", 50)
    encode, rng = by_words(opened), random.Random(7)
    for _ in range(200):
        text = " ".join("".join(rng.choices(string.ascii_letters, k=5)) for _ in range(8))
        assert encode([text]) == [whole(opened, text)]
        assert len(encode._known) <= 50 + word_cache.MOST_LEARNED


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "Whitespace"}},
    ],
    ids=["normalizer", "prefix space", "other kind"],
)
def test_other_tokenizers_are_left_alone(change: dict[str, Any], tmp_path: Path) -> None:
    """Whatever is not plainly byte-level BPE is encoded by the library."""
    data = json.loads(trained(None).to_str()) | change
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    assert not isinstance(open_hf_tokenizer(path, "default")._encode_all, Words)


def test_added_tokens_that_stand_in_text_are_left_alone(tmp_path: Path) -> None:
    """A token that isn't cut out beforehand could stand inside a word."""
    tokenizer = trained(None)
    tokenizer.add_tokens(["Quick fox"])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    opened = open_hf_tokenizer(path, "default")
    assert opened.encode("the Quick fox") == tokenizer.encode("the Quick fox").ids
    assert not isinstance(opened._encode_all, Words)
