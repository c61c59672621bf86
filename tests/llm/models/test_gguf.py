"""GGUF files: the header, the tokenizer made from it, and what a damaged file says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.chain_model import write_checkout, write_gguf
from tokenizers import Tokenizer as Native

from dynamo.llm import FileCache, ModelCard, open_model
from dynamo.llm.models.gguf_header import read_header
from dynamo.llm.models.gguf_pretokenizers import pre_tokenizer
from dynamo.llm.models.gguf_tokenizer import rebuild_merges
from dynamo.llm.tokenizer import load_tokenizer
from dynamo.llm.tokenizer.tokenizer import Tokenizer
from dynamo.runtime.errors import InvalidArgument


def _load_writer() -> Any:
    spec = importlib.util.spec_from_file_location("gguf_writer", Path(__file__).with_name("gguf_writer.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


writer = _load_writer()


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    """A cache of its own."""
    return FileCache(tmp_path / "cache")


def write(folder: Path, fields: dict[str, Any], name: str = "tiny.gguf") -> Path:
    """Write a model file."""
    path = folder / name
    path.write_bytes(writer.gguf_bytes(fields))
    return path


def opened(path: Path, cache: FileCache) -> tuple[ModelCard, Tokenizer]:
    """Open a model and its tokenizer."""
    model = open_model(path, cache=cache)
    return model.card, load_tokenizer(model.card, model.files)


def test_header_fields_are_read(tmp_path: Path) -> None:
    """Scalars, strings and arrays come back as they were written."""
    fields = {"a": 7, "b": True, "c": "text é", "d": [1.5, 2.5], "e": ["x", "", "▁y"], "f": [1, 2]}
    assert read_header(write(tmp_path, fields)).fields == fields


def test_sentencepiece_becomes_a_tokenizer(tmp_path: Path, cache: FileCache) -> None:
    """Merges, byte fallback, BOS, control tokens and the leading space."""
    card, tokenizer = opened(write(tmp_path, writer.sentencepiece_fields()), cache)
    ids = tokenizer.encode("the cat é<|end|>\n")
    tokens = writer.sentencepiece_fields()["tokenizer.ggml.tokens"]
    assert [tokens[number] for number in ids] == ["<s>", "▁the", "▁cat", "▁", "<0xC3>", "<0xA9>", "<|end|>", "\n"]
    assert tokenizer.decode(ids) == "the cat é\n"
    assert (card.context_length, card.bos_token_id, card.add_bos) == (128, 1, True)
    assert card.eos_token_ids == [2, tokens.index("<|end|>")]
    assert card.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_merges_are_ordered_by_score() -> None:
    """Each way to split a normal token into two, best score first; other tokens take no part."""
    tokens = ["a", "b", "ab", "abb", "bb", "<c>", "aab"]
    assert list(rebuild_merges(tokens, [1, 1, 1, 1, 1, 3, 4], [0.0, 0.0, -5.0, -1.0, -2.0, 0.0, 0.0])) == [
        ("a", "bb"), ("ab", "b"), ("b", "b"), ("a", "b"),
    ]  # fmt: skip


def test_no_space_prefix_where_the_file_says_so(tmp_path: Path, cache: FileCache) -> None:
    """Gemma's files switch the leading space off."""
    fields = writer.sentencepiece_fields(**{"tokenizer.ggml.add_space_prefix": False})
    _, tokenizer = opened(write(tmp_path, fields), cache)
    assert tokenizer.encode("the", add_special=False) == [fields["tokenizer.ggml.tokens"].index("the")]


def test_byte_level_gives_the_same_ids_as_the_original(tmp_path: Path, cache: FileCache, byte_level_file: Path) -> None:
    """A `gpt2` file made from a tokenizer.json encodes as that did."""
    data = json.loads(byte_level_file.read_text())
    card, tokenizer = opened(write(tmp_path, writer.byte_level_fields(data, "gpt-2")), cache)
    original = Native.from_file(str(byte_level_file))
    assert card.eos_token_ids == [2, 1]

    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
    def check(text: str) -> None:
        assert tokenizer.encode(text) == original.encode(text, add_special_tokens=False).ids

    check()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "I'm 1234 ok", ["I", "'m", "Ġ1234", "Ġok"]),
        ("smollm", "a 1234", ["a", "Ġ", "1", "2", "3", "4"]),
        ("llama-bpe", "I'M 12345\n\nok", ["I", "'M", "Ġ", "123", "45", "ĊĊ", "ok"]),
        ("qwen2", "x 123.(y)", ["x", "Ġ", "1", "2", "3", ".(", "y", ")"]),
        ("tekken", "HelloWorld 12/\n", ["Hello", "World", "Ġ", "1", "2", "/Ċ"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", "Ġ", "123", "4"]),
    ],
)
def test_pre_tokenizers_cut_as_their_models_do(name: str, text: str, words: list[str]) -> None:
    """Digits, contractions, case and line ends: one telling text per kind."""
    normalizer, splitter = pre_tokenizer(name)
    data: dict[str, Any] = {
        "version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": splitter,
        "post_processor": None, "decoder": None, "model": {"type": "BPE", "vocab": {}, "merges": []},
    }  # fmt: skip
    native = Native.from_str(json.dumps(data))
    assert native.pre_tokenizer is not None
    assert [word for word, _ in native.pre_tokenizer.pre_tokenize_str(text)] == words


def test_the_template_of_the_file_is_used(tmp_path: Path, cache: FileCache) -> None:
    """Templates, the default and named ones, become files of the card."""
    fields = writer.sentencepiece_fields(
        **{"tokenizer.chat_template": "T{{ messages }}", "tokenizer.chat_template.tool_use": "U"}
    )
    model = open_model(write(tmp_path, fields), cache=cache)
    ref = model.card.files["chat_template"]
    assert model.files[ref.digest].read_text() == "T{{ messages }}"
    assert "chat_template.tool_use" in model.card.files


def test_the_conversion_is_cached(tmp_path: Path, cache: FileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second start converts nothing, and a damaged cache entry is made again."""
    path = write(tmp_path, writer.sentencepiece_fields())
    first = open_model(path, cache=cache)
    digest = first.card.files["tokenizer"].digest
    with monkeypatch.context() as patch:
        patch.setattr("dynamo.llm.models.gguf.build_tokenizer", None)
        assert open_model(path, cache=cache).card == first.card
    first.files[digest].write_bytes(b"damaged")
    assert open_model(path, cache=cache).files[digest].read_bytes() != b"damaged"
    next((cache.root / "made").iterdir()).write_bytes(b"{")
    assert open_model(path, cache=cache).card == first.card


@pytest.mark.parametrize("keep", [5, 20, 60, 1000, -300, -1])
def test_a_file_cut_off_is_refused(tmp_path: Path, cache: FileCache, keep: int) -> None:
    """Cut within the header or within the weights: one sentence that says so."""
    path = tmp_path / "half.gguf"
    path.write_bytes(writer.gguf_bytes(writer.sentencepiece_fields())[:keep])
    with pytest.raises(InvalidArgument, match=r"half\.gguf.* cut off"):
        open_model(path, cache=cache)


@given(st.binary(max_size=200))
def test_garbage_after_the_magic_is_refused(data: bytes) -> None:
    """Whatever follows the letters GGUF, a broken header is never a traceback."""
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(b"GGUF" + data)
        file.flush()
        with pytest.raises(InvalidArgument):
            open_model(file.name, cache=FileCache(Path(file.name + "-cache")))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "no vocabulary"),
        ({"tokenizer.ggml.tokens": ["a"]}, "no tokenizer"),
        ({"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "rwkv"}, "kind 'rwkv'"),
        ({"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "llama"}, "no score"),
        ({"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "gpt2"}, "no merges"),
        (
            {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a"]},
            "malformed merge",
        ),
        (
            {
                "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a a"],
                "tokenizer.ggml.pre": "qwen3",
            },
            "'qwen3', which is not known here .*'qwen35'",
        ),
    ],
)  # fmt: skip
def test_what_can_not_be_converted_is_named(
    tmp_path: Path, cache: FileCache, fields: dict[str, Any], sentence: str
) -> None:
    """A tokenizer of another kind is refused by name, with what to do instead."""
    with pytest.raises(InvalidArgument, match=sentence):
        open_model(write(tmp_path, {"general.architecture": "tiny", **fields}), cache=cache)


def test_other_files_are_no_gguf(tmp_path: Path, cache: FileCache) -> None:
    """A text file or an old version is refused."""
    path = tmp_path / "notes.txt"
    for content, sentence in ((b"hello world", "no GGUF file"), (b"", "no GGUF file")):
        path.write_bytes(content)
        with pytest.raises(InvalidArgument, match=sentence):
            open_model(path, cache=cache)
    path.write_bytes(writer.gguf_bytes({"a": 1}, version=1))
    with pytest.raises(InvalidArgument, match="version 1"):
        open_model(path, cache=cache)


def test_another_description_of_a_file(tmp_path: Path, cache: FileCache) -> None:
    """`described_by`: tokenizer, template and end tokens are the folder's; name, path and the shorter context stay."""
    folder, file = write_checkout(tmp_path / "described"), write_gguf(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    own, other = open_model(file, cache=cache), open_model(folder, cache=cache)
    model = open_model(file, cache=cache, described_by=folder)
    assert (model.path, model.card.name) == (file, own.card.name)
    assert model.card.files == other.card.files != own.card.files
    assert model.card.eos_token_ids == other.card.eos_token_ids
    assert model.card.context_length == min(own.card.context_length or 0, other.card.context_length or 0)
    assert set(model.files) == set(other.files)


def test_a_description_of_another_model(tmp_path: Path, cache: FileCache, checkout: Path) -> None:
    """One whose tokens the file doesn't know, and a folder that has its own, are refused."""
    file = write(tmp_path, writer.sentencepiece_fields())
    with pytest.raises(InvalidArgument, match=r"has \d+ tokens, and tiny\.gguf knows \d+: it belongs to another"):
        open_model(file, cache=cache, described_by=checkout)
    with pytest.raises(InvalidArgument, match=r"can describe a \.gguf file only"):
        open_model(checkout, cache=cache, described_by=checkout)
