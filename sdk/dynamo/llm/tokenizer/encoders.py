"""The two libraries that turn text into ids, and the texts that they must agree on.

`fastokens` is a hundred times faster than `tokenizers` and optional: it is used for a model
where it is installed, loads that model's file, and gives the same ids for all of `probe_texts`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm.bytelevel import utf8
from dynamo.llm.segments import Layout
from dynamo.llm.tokenizer import Mode
from dynamo.runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Native

Encode = Callable[[list[str]], list[list[int]]]
"""Texts to ids, without what is put before and after a text."""

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
        return FastTokenizer.from_file(str(path))
    except Exception as error:  # it raises many types for what it does not support
        return f"it does not take this model's tokenizer ({error})"


def fast_encoder(loaded: Any, native: Native, layout: Layout, mode: Mode) -> Encode | None:
    """Return fastokens' encoder where it is equal to `native`; `InvalidArgument` where it was insisted on."""
    reason = loaded if isinstance(loaded, str) else ""
    if not reason:
        encode, probes = _fast(loaded), probe_texts(layout)
        if encode(probes) == encode_batch(native, probes, add_special=False):
            return encode
        reason = "it gives other ids than this model's own tokenizer"
    if mode == "fastokens":
        raise InvalidArgument(f"fastokens can't be used: {reason}; --tokenizer auto does without")
    return None


def _fast(tokenizer: Any) -> Encode:
    encode_one = tokenizer.encode

    def encode(texts: list[str]) -> list[list[int]]:
        try:
            return [encode_one(text).ids for text in texts]
        except UnicodeEncodeError:
            for text in texts:
                utf8(text)
            raise

    return encode


def encode_batch(native: Native, texts: list[str], *, add_special: bool) -> list[list[int]]:
    """Encode without the GIL; text that has no UTF-8 form is refused in a sentence."""
    try:
        return [found.ids for found in native.encode_batch_fast(texts, add_special_tokens=add_special)]
    except TypeError:
        for text in texts:
            utf8(text)
        raise


def probe_texts(layout: Layout) -> list[str]:
    """Return texts that differ where tokenizers do, with this tokenizer's own tokens between words and spaces."""
    probes = list(_PROBES)
    for number, token in enumerate(layout.added_tokens[:16] + layout.added_tokens[-16:]):
        before, after = _PROBES[number % len(_PROBES)], _PROBES[(number + 5) % len(_PROBES)]
        probes += [f"{before}{token.content}{after}", f"a {token.content} b{token.content}\n{token.content}{before}"]
    return probes
