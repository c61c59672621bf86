"""Encoding with a model's own tokenizer: cutting and caching never change the ids."""

from __future__ import annotations

import asyncio
import json
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.llm.models.hostile_files import tokenizer_json
from tokenizers import Tokenizer as Native

from dynamo.llm.tokenizer import encoders, huggingface
from dynamo.llm.tokenizer.byte_level import ByteTokenizer
from dynamo.llm.tokenizer.huggingface import HfTokenizer, open_hf_tokenizer
from dynamo.llm.tokenizer.segment_cache import SegmentCache
from dynamo.llm.tokenizer.tokenizer import Mode, Tokenizer
from dynamo.runtime.errors import InvalidArgument

MARKERS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "<|im", "_start|>", " ", "\n", "\n\n"]
prompts = st.lists(
    st.one_of(st.sampled_from(MARKERS), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)), max_size=12
).map("".join)


def changed(path: Path, folder: Path, change: Any) -> Path:
    """Write a variant of a tokenizer file."""
    data = json.loads(path.read_text())
    change(data)
    target = folder / "tokenizer.json"
    target.write_text(json.dumps(data))
    return target


@pytest.mark.parametrize("mode", ["default", "fastokens"])
def test_cutting_is_exact(byte_level_file: Path, mode: Mode) -> None:
    """Segments put together equal the uncut encoding, first uncached, then from the cache."""
    tokenizer = open_hf_tokenizer(byte_level_file, mode)
    native = Native.from_file(str(byte_level_file))
    assert tokenizer.cuts

    @given(prompts, st.booleans())
    def check(text: str, special: bool) -> None:
        expected = native.encode(text, add_special_tokens=special).ids
        assert tokenizer.encode(text, special) == expected
        assert tokenizer.encode(text, special) == expected

    check()
    assert tokenizer.cache.hits > 0


def test_cutting_is_exact_with_byte_fallback(fallback_file: Path) -> None:
    """The same for SentencePiece-like files, where each segment may get a leading space."""
    tokenizer = open_hf_tokenizer(fallback_file, "default")
    native = Native.from_file(str(fallback_file))

    @given(prompts.map(lambda text: text.replace("<s>", "<bos>").replace("<|im_end|>", "<unk>")))
    def check(text: str) -> None:
        assert tokenizer.encode(text) == native.encode(text).ids

    check()


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_flags_of_special_tokens_stay_exact(byte_level_file: Path, tmp_path: Path, flag: str) -> None:
    """A marker that swallows spaces, wants word borders or is found later is handled or not cut at."""

    def change(data: dict[str, Any]) -> None:
        data["added_tokens"][1][flag] = True

    path = changed(byte_level_file, tmp_path, change)
    tokenizer = open_hf_tokenizer(path, "default")
    native = Native.from_file(str(path))

    @given(prompts)
    def check(text: str) -> None:
        assert tokenizer.encode(text) == native.encode(text).ids

    check()


def test_overlapping_added_tokens_stay_exact(byte_level_file: Path, tmp_path: Path) -> None:
    """A plain added token that begins before a marker and runs into it wins, as in the library."""

    def change(data: dict[str, Any]) -> None:
        for content in ("x<|im", "<|im_start|>user", "|>y"):
            number = 1 + max(token["id"] for token in data["added_tokens"])
            number = max(number, 600)
            plain = {**data["added_tokens"][0], "id": number, "content": content, "special": False}
            data["added_tokens"].append(plain)

    path = changed(byte_level_file, tmp_path, change)
    tokenizer = open_hf_tokenizer(path, "default")
    native = Native.from_file(str(path))
    assert tokenizer.cuts
    for text in ("x<|im_start|>y", "<|im_start|>user<|im_end|>y", "a<|im_end|>yx<|im", "x<|imx<|im_end|>"):
        assert tokenizer.encode(text) == native.encode(text).ids


def test_a_first_segment_that_is_special_is_not_cut(byte_level_file: Path, tmp_path: Path) -> None:
    """Where only the text's beginning gets a space, segments depend on their place."""

    def change(data: dict[str, Any]) -> None:
        data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}

    tokenizer = open_hf_tokenizer(changed(byte_level_file, tmp_path, change), "default")
    assert not tokenizer.cuts


def test_an_odd_post_processor_is_left_to_the_library(byte_level_file: Path, tmp_path: Path) -> None:
    """What is put around a text is only taken over where it is the same for every text."""

    def change(data: dict[str, Any]) -> None:
        twice = {"Sequence": {"id": "A", "type_id": 0}}
        data["post_processor"]["single"] = [twice, {"SpecialToken": {"id": "<s>", "type_id": 0}}, twice]

    path = changed(byte_level_file, tmp_path, change)
    tokenizer = open_hf_tokenizer(path)
    expected = Native.from_file(str(path)).encode("fox <|im_end|>dog").ids
    assert tokenizer.encode("fox <|im_end|>dog") == expected
    assert asyncio.run(tokenizer.encode_async("fox <|im_end|>dog")) == expected


def test_fastokens_is_only_used_where_it_is_equal(byte_level_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another id anywhere in the probes, or no installation, and the model's own tokenizer is taken."""

    class Wrong:
        def encode(self, text: str) -> Any:
            return types.SimpleNamespace(ids=[0])

    for loaded, reason in ((Wrong(), "other ids"), ("it is not installed", "not installed")):
        monkeypatch.setattr(huggingface, "load_fast", lambda path, loaded=loaded: loaded)
        assert not busy(open_hf_tokenizer(byte_level_file)).uses_fastokens
        with pytest.raises(InvalidArgument, match=f"fastokens can't be used: .*{reason}"):
            open_hf_tokenizer(byte_level_file, "fastokens")
    monkeypatch.undo()
    assert busy(open_hf_tokenizer(byte_level_file)).uses_fastokens


def busy(tokenizer: HfTokenizer) -> HfTokenizer:
    """Return it after so much was encoded that fastokens was loaded, or was found wanting."""
    tokenizer.encode("The quick brown fox. " * 1000)
    for thread in threading.enumerate():
        if thread.name == "fastokens":
            thread.join()
    return tokenizer


def test_fastokens_is_loaded_where_there_is_much_to_encode(
    byte_level_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short questions never load it, much text does once, whoever counts or encodes; ids stay the same."""
    loads: list[Path] = []

    def load(path: Path) -> Any:
        loads.append(path)
        return encoders.load_fast(path)

    monkeypatch.setattr(huggingface, "load_fast", load)
    native = Native.from_file(str(byte_level_file))
    for ask in (HfTokenizer.encode, HfTokenizer.count):
        tokenizer = open_hf_tokenizer(byte_level_file)
        texts = [f"The quick brown fox number {number}." for number in range(1000)]
        for text in texts[:100]:
            ask(tokenizer, text)
        assert not loads, "a few questions load it"
        before = tokenizer.encode(texts[0])
        for text in texts:
            ask(tokenizer, text)
        busy(tokenizer)
        for text in texts[:3]:
            ask(tokenizer, text)
        assert tokenizer.uses_fastokens
        assert len(loads) == 1, "it is loaded again and again"
        for text in (texts[0], "never seen 你好 <|im_end|> fox", "long " * 2000):
            assert tokenizer.encode(text) == native.encode(text).ids
        assert tokenizer.encode(texts[0]) == before
        loads.clear()


def test_a_byte_that_a_vocabulary_lacks(byte_level_file: Path, tmp_path: Path) -> None:
    """fastokens refuses the text, so the model's own tokenizer is taken, which leaves the byte out."""

    def lack(data: Any) -> None:
        vocab = data["model"]["vocab"]
        vocab["<another>"] = vocab.pop("×")  # as a byte-level vocabulary writes 0xD7
        data["model"]["merges"] = []

    path = changed(byte_level_file, tmp_path, lack)
    tokenizer = busy(open_hf_tokenizer(path))
    assert not tokenizer.uses_fastokens
    assert (
        tokenizer.encode("a \u05d0 b", False)
        == Native.from_file(str(path)).encode("a \u05d0 b", add_special_tokens=False).ids
    )
    with pytest.raises(InvalidArgument, match=r"fastokens can't be used: it gave up on a text .*0xd7"):
        open_hf_tokenizer(path, "fastokens")


@pytest.mark.parametrize("mode", ["default", "fastokens"])
def test_an_error_of_a_library_is_the_refusal_of_a_text(byte_level_file: Path, mode: Mode) -> None:
    """Of whatever type it is: what no probe shows, a request may."""
    tokenizer = open_hf_tokenizer(byte_level_file, mode)

    class Broken:
        def encode(self, text: str) -> Any:
            raise ValueError("byte 0xd7 has no token")

        def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> Any:
            raise Exception("byte 0xd7 has no token")  # as the library does

    tokenizer._encode_all = encoders._fast(Broken()) if mode == "fastokens" else tokenizer._encode_native
    tokenizer._native = Broken()  # type: ignore[assignment]
    for encode in (tokenizer.encode, tokenizer.count):
        with pytest.raises(InvalidArgument, match="the model's tokenizer failed on the text: byte 0xd7 has no token"):
            encode("never seen")


@pytest.mark.parametrize("prefix", ["##", "#", "é", ""])
def test_a_prefix_of_pieces_that_fits_its_merges(prefix: str, tmp_path: Path) -> None:
    """A BPE that marks what goes on within a word takes the mark off the second part of each merge."""
    vocab = {name: number for number, name in enumerate(["a", f"{prefix}b", f"{prefix}é", "ab", "abé"])}
    merges = [["a", f"{prefix}b"], ["ab", f"{prefix}é"]]
    for written in (merges, [" ".join(pair) for pair in merges]):
        model = {"type": "BPE", "vocab": vocab, "merges": written, "continuing_subword_prefix": prefix}
        path = tmp_path / "tokenizer.json"
        path.write_bytes(tokenizer_json(model=model))
        assert open_hf_tokenizer(path).encode("abé", False) == [4]


def test_truncation_and_padding_of_the_file_are_off(byte_level_file: Path, tmp_path: Path) -> None:
    """A file saved with a training setup does not shorten prompts."""

    def change(data: dict[str, Any]) -> None:
        data["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}

    tokenizer = open_hf_tokenizer(changed(byte_level_file, tmp_path, change))
    assert len(tokenizer.encode("The quick brown fox jumps over the lazy dog")) > 3


def test_an_unknown_decoder_still_streams(byte_level_file: Path, tmp_path: Path) -> None:
    """Decoders that no table describes go through the library's stream."""

    def change(data: dict[str, Any]) -> None:
        data["decoder"] = {"type": "Sequence", "decoders": [data["decoder"], {"type": "Fuse"}]}

    tokenizer = open_hf_tokenizer(changed(byte_level_file, tmp_path, change))
    assert not tokenizer.uses_table
    ids = tokenizer.encode("naïve 你好 👩‍👩‍👧 fox")
    stream = tokenizer.text_stream()
    assert "".join(map(stream.step, ids)) == "naïve 你好 👩‍👩‍👧 fox"


@pytest.mark.parametrize("kind", ["byte-level", "fallback", "unknown decoder", "bytes"])
def test_the_bytes_of_many_tokens(byte_level_file: Path, fallback_file: Path, tmp_path: Path, kind: str) -> None:
    """They are those of each token, also where one is no whole character, or no token at all."""

    def unknown(data: dict[str, Any]) -> None:
        data["decoder"] = {"type": "Sequence", "decoders": [data["decoder"], {"type": "Fuse"}]}

    files = {"byte-level": byte_level_file, "fallback": fallback_file}
    if kind == "unknown decoder":
        files[kind] = changed(byte_level_file, tmp_path, unknown)
    tokenizer: Tokenizer = ByteTokenizer() if kind == "bytes" else open_hf_tokenizer(files[kind], "default")

    @given(st.lists(st.integers(-2, tokenizer.vocab_size + 1), max_size=12))
    def check(ids: list[int]) -> None:
        assert tokenizer.bytes_of(ids) == b"".join(map(tokenizer.token_bytes, ids))

    check()
    for text in ("The quick brown fox", "naïve 你好 👩‍👩‍👧 fox"):
        assert tokenizer.bytes_of(tokenizer.encode(text, add_special=False)).decode().strip() == text


def test_lone_surrogates_are_refused_and_nul_passes(byte_level_file: Path) -> None:
    """JSON may hold what is no Unicode text: that is the caller's mistake, said in one sentence."""
    for mode in ("default", "fastokens"):
        tokenizer = open_hf_tokenizer(byte_level_file, mode)
        with pytest.raises(InvalidArgument, match=r"lone surrogate \(U\+D800\) at character 2"):
            tokenizer.encode("ab\ud800")
        assert tokenizer.decode(tokenizer.encode("a\0b")) == "a\0b"


async def test_long_texts_leave_the_loop_free(byte_level_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is long is encoded in a thread, what is short (or cached) at once."""
    tokenizer = open_hf_tokenizer(byte_level_file, "default")
    threads: list[Any] = []

    async def to_thread(function: Any, *args: Any) -> Any:
        threads.append(args)
        return function(*args)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    text = "The quick brown fox. " * 1000

    await tokenizer.encode_async("short")
    assert not threads
    first = await tokenizer.encode_async(text)
    assert len(threads) == 1
    assert await tokenizer.encode_async(text) == first
    assert len(threads) == 1
    await tokenizer.encode_async("x" * (huggingface.INLINE_CUT + 1))
    assert len(threads) == 2


def test_long_segments_are_kept_when_they_come_again(byte_level_file: Path) -> None:
    """With fastokens; short ones at once, and with the slow library all of them."""
    text = "The quick brown fox. " * 300
    for mode, kept in (("fastokens", [0, 1, 1]), ("default", [1, 1, 1])):
        tokenizer = open_hf_tokenizer(byte_level_file, "fastokens" if mode == "fastokens" else "default")
        first = tokenizer.encode(text)
        seen = [tokenizer.cache.bytes > 0]
        for _ in range(2):
            assert tokenizer.encode(text) == first
            seen.append(tokenizer.cache.bytes > 0)
        assert seen == list(map(bool, kept))
        tokenizer.encode("short")
        before = tokenizer.cache.hits
        tokenizer.encode("short")
        assert tokenizer.cache.hits == before + 1


def test_many_places_that_look_like_markers(byte_level_file: Path) -> None:
    """A text full of the markers' first character is cut as well, and where one really stands."""
    tokenizer, native = open_hf_tokenizer(byte_level_file, "default"), Native.from_file(str(byte_level_file))
    text = "<a> < b <| " * 400 + "<|im_end|>" + "<" * 50 + "<|im_end|> end"
    assert tokenizer.cuts
    assert tokenizer.encode(text) == native.encode(text).ids


def test_the_cache_is_bounded_by_bytes() -> None:
    """The least recently used segment goes first; one that is too large isn't kept."""
    cache = SegmentCache(limit=4000)
    for name in ("a", "b", "c", "d"):
        cache.put(name, [1] * 20)
    assert cache.get("a")
    cache.put("e", [1] * 20)
    assert cache.get("b") is None
    assert cache.get("a")
    assert cache.bytes <= 4000
    cache.put("f", [1] * 100)
    assert cache.get("f") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": {"type": "BPE"}}', b"\xff\xfe"])
def test_broken_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """Whatever is wrong with a tokenizer file is one sentence with its path."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"tokenizer\.json"):
        open_hf_tokenizer(path)
