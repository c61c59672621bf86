"""The two libraries that turn text into ids, and the texts that they must agree on.

`fastokens` is a hundred times faster than `tokenizers` and optional: it is used for a model where it is installed,
loads that model's file, and gives the same ids for all of `probe_texts`. Loading takes seconds, so `auto` does it once
there is much to encode.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm.tokenizer.byte_level import utf8
from dynamo.llm.tokenizer.panics import as_refusals, describe
from dynamo.llm.tokenizer.segment_cache import Layout
from dynamo.runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Native

Encode = Callable[[list[str]], list[list[int]]]
"""Texts to ids, without what is put before and after a text."""

_FAILED: Final = "the model's tokenizer failed on the text"
_PROBES: Final = (
    "", " ", "Hello, world!", "  two  spaces\n\n\tand a tab \r\n", "it's we'll I'D 12345 3.14 1,000,000",
    "naïve café 你好，世界 こんにちは 한국어 עברית العربية हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u00a0\u200b\ufeff ﬁ Ⅳ",
    "def f(x):\n    return {'a': [1, 2], \"b\": x**2}  # ok\n" * 3, "a" * 300, "https://example.org/?q=a%20b&c=d#e",
    "<|im_start|>user\nHi<|im_end|>\n", "NUL\0 and \x07 control", "Ünïcödé_snake_case CamelCase XMLHttpRequest",
)  # fmt: skip


def load_fast(path: Path) -> Any:
    """Load fastokens' tokenizer; takes seconds, in which it holds no GIL. A sentence where that can't be."""
    try:
        from fastokens import Tokenizer as FastTokenizer
    except ImportError:
        return "it is not installed (pip install fastokens)"
    try:
        with as_refusals("it gave up"):
            return FastTokenizer.from_file(str(path))
    except Exception as error:  # it raises many types for what it does not support
        return f"it does not take this model's tokenizer ({describe(error)})"


def fast_encoder(loaded: Any, native: Native, probes: list[str]) -> Encode:
    """Return fastokens' encoder; `InvalidArgument` where it isn't there, or not equal to `native` on the probes."""
    reason = loaded if isinstance(loaded, str) else ""
    if not reason:
        encode = _fast(loaded)
        reason = _difference(encode, native, probes)
        if not reason:
            return encode
    raise InvalidArgument(f"fastokens can't be used: {reason}; --tokenizer auto does without")


def _difference(encode: Encode, native: Native, probes: list[str]) -> str:
    """Return how fastokens differs from the model's own tokenizer; empty where it does not."""
    try:
        ids = encode(probes)
    except InvalidArgument as refusal:  # of a byte that its vocabulary lacks, say: the other library leaves it out
        return f"it gave up on a text ({refusal.message})"
    same = ids == encode_batch(native, probes, add_special=False)
    return "" if same else "it gives other ids than this model's own tokenizer"


def _fast(tokenizer: Any) -> Encode:
    encode_one = tokenizer.encode

    def encode(texts: list[str]) -> list[list[int]]:
        try:
            with as_refusals(_FAILED):
                return [encode_one(text).ids for text in texts]
        except InvalidArgument:
            raise
        except Exception as error:
            raise _refused(texts, error) from error

    return encode


def _refused(texts: list[str], error: Exception) -> InvalidArgument:
    """Return the refusal of texts that a library raised an error for: it has many types of them."""
    for text in texts:
        utf8(text)
    return InvalidArgument(f"{_FAILED}: {describe(error)}")


def encode_batch(native: Native, texts: list[str], *, add_special: bool) -> list[list[int]]:
    """Encode without the GIL; text that has no UTF-8 form is refused in a sentence."""
    try:
        with as_refusals(_FAILED):
            return [encoding.ids for encoding in native.encode_batch_fast(texts, add_special_tokens=add_special)]
    except InvalidArgument:
        raise
    except Exception as error:
        raise _refused(texts, error) from error


def probe_texts(layout: Layout) -> list[str]:
    """Return texts that differ where tokenizers do, with this tokenizer's own tokens between words and spaces."""
    probes = list(_PROBES)
    for number, token in enumerate(layout.added_tokens[:16] + layout.added_tokens[-16:]):
        before, after = _PROBES[number % len(_PROBES)], _PROBES[(number + 5) % len(_PROBES)]
        probes += [f"{before}{token.content}{after}", f"a {token.content} b{token.content}\n{token.content}{before}"]
    return probes
