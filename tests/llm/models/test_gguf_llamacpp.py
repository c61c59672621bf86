"""GGUF files of the kind `gpt2`: llama.cpp itself reads the same file and must give the same ids."""

from __future__ import annotations

import json
import unicodedata
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xllamacpp
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.llm.models import gguf_writer as writer

from dynamo.llm import FileCache, Preprocessor, open_model
from dynamo.llm.models.gguf_pretokenizers import NAMES
from dynamo.llm.tokenizer.encoders import probe_texts
from dynamo.llm.tokenizer.segment_cache import Layout, Model

KINDS = sorted({str(pattern): name for name, pattern in NAMES.items()}.values())
"""One name of each way to cut words."""
APPROXIMATED = ("gpt-4o", "kimi-k2", "llama4", "tekken")
"""llama.cpp takes capitals outside of ASCII for small letters there; the models' own expressions don't."""
CASED = ("Lu", "Ll", "Lt", "Lm", "Mn", "Mc", "Me")
ODD = "ab cdE'sS\n\t12.,!?é漢字🙂\u00a0-_/\"ſKﬁ½ｱ한the"
Encode = Callable[[str], list[int]]


@contextmanager
def llamacpp(path: Path) -> Iterator[Encode]:
    """llama.cpp's own reading of a file."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.n_ctx, params.cpuparams.n_threads = str(path), 1, 64, 1
    params.verbosity = -1
    server = xllamacpp.Server(params)

    def encode(text: str) -> list[int]:
        body = json.dumps({"content": text, "parse_special": True, "add_special": False}).encode()
        request = urllib.request.Request(f"{server.listening_address}/tokenize", body)
        with urllib.request.urlopen(request, timeout=20) as answer:
            numbers: list[int] = json.load(answer)["tokens"]
        return numbers

    yield encode


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A name that GGUF files give their way to cut words."""
    backend: str = request.param
    return backend


@pytest.fixture(scope="module")
def pair(kind: str, tmp_path_factory: pytest.TempPathFactory, byte_level_file: Path) -> Iterator[tuple[Encode, Encode]]:
    """Our reading, and theirs."""
    folder = tmp_path_factory.mktemp("gpt2")
    path = folder / "tiny.gguf"
    fields = writer.byte_level_fields(json.loads(byte_level_file.read_text()), kind)
    path.write_bytes(writer.runnable_bytes(fields))
    model = open_model(path, cache=FileCache(folder / "cache"))
    tokenizer = Preprocessor.load(model.card, model.files).tokenizer
    with llamacpp(path) as theirs:
        yield lambda text: tokenizer.encode(text, add_special=False), theirs


def test_odd_texts_have_llamacpps_ids(pair: tuple[Encode, Encode]) -> None:
    """Those on which tokenizers differ, special tokens among them."""
    ours, theirs = pair
    texts = [unicodedata.normalize("NFC", text) for text in probe_texts(Layout(Model())) if "\0" not in text]
    assert {text: ours(text) for text in texts} == {text: theirs(text) for text in texts}


@settings(max_examples=40)
@given(text=st.text(st.sampled_from(ODD) | st.characters(codec="utf-8", exclude_characters="\0"), max_size=30))
def test_any_text_has_llamacpps_ids(pair: tuple[Encode, Encode], kind: str, text: str) -> None:
    """Composed characters, since llama.cpp leaves out the composing that some models' own files have."""
    ours, theirs = pair
    text = unicodedata.normalize("NFC", text)
    if kind in APPROXIMATED:
        text = "".join(c for c in text if c.isascii() or unicodedata.category(c) not in CASED)
    assert ours(text) == theirs(text)
