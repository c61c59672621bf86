"""GGUF files of the kind `bert`: the ids are those of the model's own tokenizer, and of llama.cpp on the same file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.llm.models import gguf_writer as writer
from tests.llm.models.test_gguf_llamacpp import Encode, llamacpp
from tokenizers import Tokenizer as Native
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from dynamo.llm import FileCache, LocalModel, open_model
from dynamo.llm.tokenizer import load_tokenizer
from dynamo.llm.tokenizer.tokenizer import Tokenizer
from dynamo.runtime.errors import InvalidArgument

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SMALL = [
    *SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "cat", "un", "##aff", "##able", "hello", "world",
    ",", ".", "!", "?", "'", "-", "/", "(", ")", "$", "漢", "字", "é", "##é", "ß", "##ß",
]  # fmt: skip
CASED = [*SMALL, "The", "Cat", "A", "##A", "É"]
TEXTS = [
    "the cats, unaffable!", "Hello World", "", "  the\t\ncat  ", "the\u00a0cat", "école ECOLE É", "漢字the漢", "$5/5",
    "a" * 101, "xyz~", "don't", "\u200bthe", "[MASK] the [SEP] cat", "cat\x00s", "Straße ﬁ",
]  # fmt: skip
ODD = st.sampled_from("the catsABC,.é漢 \n$") | st.characters(exclude_categories=["Cs"])


def original(pieces: list[str], *, lowercase: bool) -> Native:
    """The tokenizer that such a model comes with, put together by its library."""
    vocab = {piece: number for number, piece in enumerate(pieces)}
    native = Native(WordPiece(vocab, unk_token="[UNK]"))
    native.normalizer = BertNormalizer(lowercase=lowercase)
    native.pre_tokenizer = BertPreTokenizer()
    native.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    )
    native.add_special_tokens(SPECIAL)
    return native


def opened(folder: Path, fields: dict[str, Any], name: str = "bert.gguf") -> tuple[LocalModel, Tokenizer]:
    path = folder / name
    path.write_bytes(writer.gguf_bytes(fields))
    model = open_model(path, cache=FileCache(folder / "cache"))
    return model, load_tokenizer(model.card, model.files)


@pytest.mark.parametrize(("pieces", "lowercase"), [(SMALL, True), (CASED, False)])
def test_ids_are_the_originals(tmp_path: Path, pieces: list[str], lowercase: bool) -> None:
    """With what stands around a text and without; capitals and accents count where the vocabulary has capitals."""
    _, tokenizer = opened(tmp_path, writer.word_piece_fields(pieces))
    native = original(pieces, lowercase=lowercase)

    def check(text: str) -> None:
        assert tokenizer.encode(text) == native.encode(text).ids, text
        assert tokenizer.encode(text, add_special=False) == native.encode(text, add_special_tokens=False).ids, text

    for text in TEXTS:
        check(text)
    given(st.text(st.sampled_from("the catsABC,.é漢 \n$") | st.characters(exclude_categories=["Cs"]), max_size=30))(
        check
    )()
    assert tokenizer.decode(native.encode("the cats").ids) == "the cats"


def test_what_the_card_says(tmp_path: Path) -> None:
    """How much it reads, and what begins and ends a text."""
    model, _ = opened(tmp_path, writer.word_piece_fields(SMALL))
    card = model.card
    assert (card.context_length, card.vocab_size, card.bos_token_id, card.add_bos) == (512, len(SMALL), 2, True)
    assert card.special_tokens == {"bos_token": "[CLS]", "eos_token": "[SEP]"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tokenizer.ggml.add_bos_token": False}, ["the", "[SEP]"]),
        ({"tokenizer.ggml.add_sep_token": False}, ["[CLS]", "the"]),
        ({"tokenizer.ggml.cls_token_id": 4}, ["[MASK]", "the", "[SEP]"]),
        ({"tokenizer.ggml.seperator_token_id": 10**6, "tokenizer.ggml.eos_token_id": 0}, ["[CLS]", "the", "[PAD]"]),
    ],
)
def test_what_the_file_says_of_begin_and_end(tmp_path: Path, more: dict[str, Any], words: list[str]) -> None:
    """It has the last word; a number beyond the vocabulary is none."""
    _, tokenizer = opened(tmp_path, writer.word_piece_fields(SMALL, **more))
    assert [SMALL[number] for number in tokenizer.encode("the")] == words


def test_a_vocabulary_without_its_unknown_token(tmp_path: Path) -> None:
    """A word that it lacks would have no token at all."""
    with pytest.raises(InvalidArgument, match=r"no token for what it doesn't know \(\[UNK\]\)"):
        opened(tmp_path, writer.word_piece_fields(["[CLS]", "[SEP]", "the"]))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Encode, Encode]]:
    """Our reading, and llama.cpp's."""
    folder = tmp_path_factory.mktemp("bert")
    path = folder / "tiny.gguf"
    path.write_bytes(writer.runnable_bytes(writer.word_piece_fields(SMALL)))
    model = open_model(path, cache=FileCache(folder / "cache"))
    tokenizer = load_tokenizer(model.card, model.files)
    with llamacpp(path) as theirs:
        yield lambda text: tokenizer.encode(text, add_special=False), theirs


@settings(max_examples=60)
@given(text=st.text(st.sampled_from("the cats unaffable HELLO wOrld 19,.!?'-/()$漢字\t\n"), max_size=30))
def test_llamacpp_has_the_same_ids(pair: tuple[Encode, Encode], text: str) -> None:
    """Of words, capitals, digits, punctuation and Chinese; accents it keeps, which the models' own tokenizers drop."""
    ours, theirs = pair
    assert ours(text) == theirs(text)
