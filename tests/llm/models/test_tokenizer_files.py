"""Tokenizers in other forms than `tokenizer.json`: the same ids as the libraries that read those forms themselves."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from hypothesis import example, given
from hypothesis import strategies as st
from tests.llm.conftest import CORPUS, train_byte_level
from tokenizers import Tokenizer

from dynamo.llm import FileCache, Preprocessor, open_model
from dynamo.llm.models import sentencepiece as spm
from dynamo.llm.models import tiktoken as tik
from dynamo.llm.models.gguf_pretokenizers import KIMI, LLAMA3, QWEN2
from dynamo.llm.models.tokenizer_files import find_tokenizer
from dynamo.llm.tokenizer.encoders import probe_texts
from dynamo.llm.tokenizer.segment_cache import Layout, Model
from dynamo.llm.tokenizer.token_table import byte_characters
from dynamo.runtime.errors import InvalidArgument

TEXTS = st.text(
    st.sampled_from("ab cdE'sS\n\t12.,!?é漢字🙂\u00a0-_/\"ſK\u0301ﬁ½the") | st.characters(codec="utf-8"), max_size=40
)


def ranks_of(tokenizer: Tokenizer) -> dict[bytes, int]:
    """The tokens of a byte-level BPE in the order that tiktoken wants: bytes, then merges."""
    bytes_of = {character: byte for byte, character in byte_characters().items()}
    merged = ["".join(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes(bytes_of[character] for character in token) for token in dict.fromkeys(merged)]
    return {token: rank for rank, token in enumerate(tokens)}


RANKS = ranks_of(train_byte_level())
VOCABULARY = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in RANKS.items())


def trained(kind: str, **how: Any) -> bytes:
    """A SentencePiece model of our corpus."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=out, vocab_size=how.pop("vocab_size", 420), model_type=kind,
        minloglevel=2, hard_vocab_limit=False, **how,
    )  # fmt: skip
    return out.getvalue()


PLAIN = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
MODELS = {
    "llama-like": trained("bpe", **PLAIN),
    "gemma-like": trained("bpe", add_dummy_prefix=False, **PLAIN),
    "unigram": trained("unigram", **PLAIN),
    "t5-like": trained("unigram", vocab_size=150),
    "bpe that normalises": trained("bpe", byte_fallback=True, remove_extra_whitespaces=True,
                                   normalization_rule_name="identity"),
}  # fmt: skip


def hf(data: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(data))


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.fixture(scope="module", params=[QWEN2, LLAMA3, KIMI], ids=["qwen", "llama3", "kimi"])
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, tiktoken.Encoding]:
    """A converted vocabulary, and tiktoken's own reading of it."""
    code = f'class T:\n    pat_str = r"""{request.param}"""\n'
    ours = hf(tik.build(VOCABULARY, {}, [code]))
    return ours, tiktoken.Encoding("own", pat_str=request.param, mergeable_ranks=RANKS, special_tokens={})


@given(text=TEXTS)
@example(text="it's WE'LL 12345 \r\n\r\n  x  漢字かな mixed 中文English")
def test_tiktoken_ids(pair: tuple[Tokenizer, tiktoken.Encoding], text: str) -> None:
    """Any text has tiktoken's ids, and comes back."""
    ours, theirs = pair
    assert ids(ours, text) == theirs.encode_ordinary(text)
    assert ours.decode(ids(ours, text)) == text


@pytest.mark.parametrize("kind", MODELS)
def test_sentencepiece_ids_of_odd_texts(kind: str) -> None:
    """Those on which tokenizers differ."""
    theirs = sentencepiece.SentencePieceProcessor(model_proto=MODELS[kind])
    ours = hf(spm.build(MODELS[kind], {}))
    texts = [text for text in probe_texts(Layout(Model())) if "\0" not in text]
    assert {text: ids(ours, text) for text in texts} == {text: theirs.encode(text) for text in texts}


@pytest.fixture(scope="module", params=["llama-like", "gemma-like", "unigram", "bpe that normalises"])
def sp_pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, sentencepiece.SentencePieceProcessor]:
    """A converted model, and the library's own reading of it."""
    data = MODELS[request.param]
    return hf(spm.build(data, {})), sentencepiece.SentencePieceProcessor(model_proto=data)


@given(text=TEXTS.filter(lambda text: "\0" not in text))
@example(text="   leading and trailing   ")
def test_sentencepiece_ids(sp_pair: tuple[Tokenizer, sentencepiece.SentencePieceProcessor], text: str) -> None:
    """Any text has the library's ids."""
    ours, theirs = sp_pair
    assert ids(ours, text) == theirs.encode(text)


def checkout_of(folder: Path, name: str, data: bytes, settings: dict[str, Any], config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / name).write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_checkout_as_qwen_had_them(tmp_path: Path) -> None:
    """Special tokens, context and ids come through the whole way to a prompt; a second start converts nothing."""
    settings = {"tokenizer_class": "QWenTokenizer", "model_max_length": 8192, "eos_token": "<|im_end|>"}
    folder = checkout_of(tmp_path / "qwen", "qwen.tiktoken", VOCABULARY, settings, {"n_positions": 2048})
    cache = FileCache(tmp_path / "cache")
    model = open_model(folder, cache=cache)
    end = len(RANKS) + 2
    assert (model.card.vocab_size, model.card.eos_token_ids) == (len(RANKS) + 208, [end])
    assert model.card.context_length == 2048
    tokenizer = Preprocessor.load(model.card, model.files).tokenizer
    assert tokenizer.encode("a<|im_end|>") == [RANKS[b"a"], end]
    assert tokenizer.decode([RANKS[b"a"], end]) == "a"
    assert open_model(folder, cache=cache).card == model.card
    assert len(list((cache.root / "made").iterdir())) == 1


def test_special_tokens_of_kimis_kind() -> None:
    """Named ones by their number, the reserved ones between them."""
    settings = {"added_tokens_decoder": {"300": {"content": "[BOS]"}, "301": {"content": "[EOS]", "special": True}}}
    tokens = tik.special_tokens({b"a": 0, b"b": 299}, settings, "TikTokenTokenizer")
    assert (tokens["[BOS]"], tokens["[EOS]"], tokens["<|reserved_token_302|>"]) == (300, 301, 302)
    assert len(tokens) == 256


def test_a_checkout_as_llama_had_them(tmp_path: Path) -> None:
    """BOS before prompts by the tokenizer's class, unless the configuration says otherwise."""
    for settings, ids_of_a in (({"tokenizer_class": "LlamaTokenizer"}, 1), ({"add_bos_token": False}, 0)):
        folder = tmp_path / f"llama-{ids_of_a}"
        checkout_of(folder, "tokenizer.model", MODELS["llama-like"], {**settings, "bos_token": "<s>"}, {})
        model = open_model(folder, cache=FileCache(tmp_path / "cache"))
        tokenizer = Preprocessor.load(model.card, model.files).tokenizer
        expected = sentencepiece.SentencePieceProcessor(model_proto=MODELS["llama-like"]).encode("the lazy dog")
        assert tokenizer.encode("the lazy dog") == [1] * ids_of_a + expected
        assert tokenizer.decode(expected) == "the lazy dog"
        assert model.card.bos_token_id == 1


def test_a_vocabulary_that_only_is_called_sentencepiece(tmp_path: Path) -> None:
    """Llama 3 calls a tiktoken file tokenizer.model."""
    assert tik.is_tiktoken(VOCABULARY)
    assert not tik.is_tiktoken(MODELS["llama-like"])
    folder = checkout_of(tmp_path / "l3", "tokenizer.model", VOCABULARY, {"tokenizer_class": "ChatGLM4Tokenizer"}, {})
    tokenizer = find_tokenizer(folder, {"tokenizer_class": "ChatGLM4Tokenizer"}, FileCache(tmp_path / "cache"))
    assert tokenizer is not None
    assert ids(Tokenizer.from_file(str(tokenizer[1])), "the") == tiktoken.Encoding(
        "x", pat_str=LLAMA3, mergeable_ranks=RANKS, special_tokens={}
    ).encode("the")


@pytest.mark.parametrize(
    ("code", "pattern"),
    [
        (r'PAT_STR = r"""\p{L}+|x"""', r"\p{L}+|x"),
        ("class T:\n    pat_str = '|'.join([r'\\p{L}+', r'\\p{N}{1,3}+'])", r"\p{L}+|\p{N}{1,3}"),
        (r"def f(self):" "\n" r"    self._pattern = r'\p{L}' + 'y'", r"\p{L}y"),
        ("pat_str = open('/etc/passwd').read()", None),
        ("pat_str = 5\npattern = 'no classes'", None),
        ("this is no Python", None),
        ("(" * 5000, None),
        *((f"pat_str = {'+'.join(['x'] * depth)}", None) for depth in (500, 990, 3000)),
    ],
)
def test_the_expression_in_the_code_is_read_and_never_run(code: str, pattern: str | None) -> None:
    """Only strings, sums of strings and joined strings count."""
    assert tik.pattern_in(code) == pattern


@pytest.mark.parametrize("data", [b"!!! 5\n", b"YQ== x\n", b"", b"YQ==\n"])
def test_a_broken_vocabulary(data: bytes) -> None:
    """A sentence, not a traceback."""
    with pytest.raises(InvalidArgument, match="get the file again"):
        tik.build(data, {"tokenizer_class": "QWenTokenizer"}, [])


def test_a_special_token_whose_number_is_none() -> None:
    """It is left out, as others that can't be read."""
    stated = {"9" * 5000: {"content": "far"}, "300": {"content": "near"}}
    assert tik.special_tokens({b"a": 0}, {"added_tokens_decoder": stated}, "") == {"near": 300}
    built = spm.build(MODELS["llama-like"], {"added_tokens_decoder": stated})
    assert "near" in [token["content"] for token in built["added_tokens"]]


def test_a_vocabulary_without_its_expression() -> None:
    """A near miss would give a model tokens that it was never trained on."""
    with pytest.raises(InvalidArgument, match=r"pat_str in a \.py file"):
        tik.build(VOCABULARY, {}, [])


@given(st.integers(0, len(MODELS["t5-like"]) - 1), st.binary(max_size=4))
def test_a_broken_sentencepiece_model(cut: int, more: bytes) -> None:
    """Cut anywhere, with anything behind: read, or refused in a sentence."""
    with contextlib.suppress(InvalidArgument):
        assert spm.read(MODELS["t5-like"][:cut] + more).pieces


@pytest.mark.parametrize("number", [b"\x7f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"], ids=["127", "-1"])
def test_a_sentencepiece_model_without_its_unknown_piece(number: bytes) -> None:
    """The trainer's part names it by number; one that is there instead of it would be taken for every odd text."""
    piece, trainer = b"\x0a\x03\x0a\x01a", b"\x18\x02\xc0\x02" + number
    with pytest.raises(InvalidArgument, match="unknown"):
        spm.build(piece + b"\x12" + bytes([len(trainer)]) + trainer, {})
