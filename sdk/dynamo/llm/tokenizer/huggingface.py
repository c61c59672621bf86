"""Any model's `tokenizer.json`: Hugging Face's `tokenizers`, or `fastokens` for encoding where it is proven equal.

Encoding goes through the segment cache. What is long goes to a thread through
`encode_batch_fast`, which releases the GIL (`encode` doesn't), so that streams go on meanwhile.

Where both libraries may be used, fastokens is loaded beside the other one when that has encoded `FAST_FROM` characters:
short questions never need it, and a model that joins is there in half the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from dynamo.llm.tokenizer.checks import MOST_BYTES, check_keys
from dynamo.llm.tokenizer.encoders import Encode, encode_batch, fast_encoder, load_fast, probe_texts
from dynamo.llm.tokenizer.panics import as_refusals, describe, is_panic
from dynamo.llm.tokenizer.segment_cache import Cutter, Layout, Part, SegmentCache, cutter_for, whole
from dynamo.llm.tokenizer.token_table import PieceTable, build_table
from dynamo.llm.tokenizer.tokenizer import Mode, TextStream
from dynamo.llm.tokenizer.word_cache import word_encoder
from dynamo.runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Native
    from tokenizers.decoders import DecodeStream

Cut = Callable[[str], list[Part]]

INLINE_CHARACTERS: Final = 4096
"""About 2 ms of work for `tokenizers`; longer texts go to a thread."""
INLINE_FAST: Final = 65_536
"""The same for fastokens."""
FAST_FROM: Final = 16_384
"""Some 10 ms of work for `tokenizers`."""
INLINE_CUT: Final = 1 << 20
"""Even looking for special tokens in a longer text takes milliseconds."""
_LONG: Final = 1024
"""Ids that are not copied where that can be spared."""
MOST_WAITING: Final = 64
"""Tokens without a whole character among them; a character has four bytes at most."""


class HfTokenizer:
    """The `Tokenizer` port over a tokenizer file."""

    def __init__(
        self, native: Native, layout: Layout, tokens: list[str | None], fast: Encode | None = None,
        load_fast: Callable[[], Encode] | None = None,
    ) -> None:  # fmt: skip
        """Encode by `fast`, or by `load_fast`'s once there is much to encode; None: by `native` as long as it lives.

        `load_fast` takes seconds; it raises `InvalidArgument` where that library can't be used.
        """
        self._native = native
        self._encode_all: Encode = self._encode_native
        self._inline = INLINE_CHARACTERS
        self.uses_fastokens = False
        self._load_fast: Callable[[], Encode] | None = None
        self._loading = threading.Lock()
        self._encoded = 0
        """Characters, until fastokens is loaded."""
        self._table: PieceTable | None = build_table(native, layout, tokens)
        self.vocab_size = len(tokens)
        self.longest_token = max((len(token) for token in tokens if token), default=1)
        self.cache = SegmentCache()
        if fast is not None:
            self._use_fast(fast)
        self._affixes: tuple[list[int], list[int]] | None = affixes(native)
        self._cut: Cut = cutter_for(layout) or whole
        self._settle_for_what_is_exact(layout)
        if fast is None:
            self._use_words(layout)
            self._load_fast = load_fast

    @property
    def uses_table(self) -> bool:
        """Tell whether ids turn into text by table."""
        return self._table is not None

    @property
    def cuts(self) -> bool:
        """Tell whether prompts are cut at special tokens."""
        return self._cut is not whole

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        if add_special and self._affixes is None:
            return encode_batch(self._native, [text], add_special=True)[0]
        parts = self._cut(text)
        if unknown := self.cache.fill(parts):
            self._learn(parts, unknown)
        return self._join(parts, add_special)

    async def encode_async(self, text: str, add_special: bool = True) -> list[int]:
        if len(text) > INLINE_CUT or (add_special and self._affixes is None):
            return await asyncio.to_thread(self.encode, text, add_special)
        parts = self._cut(text)
        if unknown := self.cache.fill(parts):
            if sum(len(parts[place]) for place in unknown) <= self._inline:
                self._learn(parts, unknown)
            else:
                await asyncio.to_thread(self._learn, parts, unknown)
        return self._join(parts, add_special)

    def count(self, text: str) -> int:
        return sum(map(len, self._encode([text])))

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        known = [token_id for token_id in ids if 0 <= token_id < self.vocab_size]
        with as_refusals("the model's tokenizer failed on the tokens"):
            return self._native.decode(known, skip_special_tokens=skip_special)

    def text_stream(self, prompt_ids: Sequence[int] = (), skip_special: bool = True) -> TextStream:
        if self._table is not None:
            return self._table.stream(prompt_ids, skip_special)
        return NativeStream(self._native, prompt_ids, skip_special)

    def token_bytes(self, token_id: int) -> bytes:
        if self._table is not None:
            return self._table.token_bytes(token_id)
        return self.decode([token_id], skip_special=False).encode()

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self.token_bytes, ids)) if self._table is None else self._table.bytes_of(ids)

    def token_id(self, content: str) -> int | None:
        return self._native.token_to_id(content)

    def _learn(self, parts: list[Part], unknown: list[int]) -> None:
        """Encode the segments at these places, each once, and put their ids there."""
        if len(unknown) == 1:
            segment = str(parts[unknown[0]])
            ids = parts[unknown[0]] = self._encode([segment])[0]
            self.cache.put(segment, ids)
            return
        segments = list(dict.fromkeys(str(parts[place]) for place in unknown))
        learned = dict(zip(segments, self._encode(segments), strict=True))
        for segment, ids in learned.items():
            self.cache.put(segment, ids)
        for place in unknown:
            parts[place] = learned[str(parts[place])]

    def _join(self, parts: list[Part], add_special: bool) -> list[int]:
        """Return all ids in a row; `parts` has no text any more."""
        prefix, suffix = self._affixes if add_special and self._affixes else ((), ())
        longest = max(parts, key=len, default=())
        if isinstance(longest, list) and len(longest) > _LONG and parts.count(longest) == 1:
            # What comes before a long text goes in front of it: copying the long one would cost ten times that.
            place = parts.index(longest)
            longest[:0] = [*prefix, *chain.from_iterable(parts[:place])]
            longest += chain(chain.from_iterable(parts[place + 1 :]), suffix)
            return longest
        return [*prefix, *chain.from_iterable(parts), *suffix]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if self._load_fast is not None:
            self._encoded += sum(map(len, texts))  # what another thread adds meanwhile may be lost: then it comes later
            if self._encoded >= FAST_FROM:
                self._begin_loading()
        return self._encode_all(texts)

    def _begin_loading(self) -> None:
        """Load fastokens in a thread, once."""
        with self._loading:
            load, self._load_fast = self._load_fast, None
        if load is not None:
            threading.Thread(target=self._replace_encoder, args=(load,), name="fastokens").start()

    def _replace_encoder(self, load: Callable[[], Encode]) -> None:
        with contextlib.suppress(InvalidArgument):
            self._use_fast(load())

    def _use_fast(self, encode: Encode) -> None:
        """Encode by it from now on; ids that are known stay."""
        self._encode_all, self._inline = encode, INLINE_FAST
        self.cache.hesitate_from = INLINE_CHARACTERS
        self.uses_fastokens = True

    def _encode_native(self, texts: list[str]) -> list[list[int]]:
        return encode_batch(self._native, texts, add_special=False)

    def _settle_for_what_is_exact(self, layout: Layout) -> None:
        """Give up cutting, then affixes, where the probes show that they change the ids."""
        probes = probe_texts(layout)
        expected = encode_batch(self._native, probes, add_special=True)
        if self._probe(probes) != expected:
            self._cut = whole
        self.cache = SegmentCache()
        if self._probe(probes) != expected:
            self._affixes = None
        self.cache = SegmentCache(hesitate_from=INLINE_CHARACTERS if self.uses_fastokens else None)

    def _probe(self, probes: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in probes]

    def _use_words(self, layout: Layout) -> None:
        """Encode short texts word by word where that gives the same ids."""
        cut = self._cut.tokens if isinstance(self._cut, Cutter) else ()
        self._encode_all = word_encoder(layout, self._encode_native, cut, probe_texts(layout)) or self._encode_native


class NativeStream:
    """Detokenises with the library's own `DecodeStream`, for decoders that no table describes."""

    __slots__ = ("_native", "_skip", "_stream", "_waiting")

    def __init__(self, native: Native, prompt_ids: Sequence[int], skip_special: bool) -> None:
        self._native = native
        self._skip = skip_special
        self._waiting: list[int] = []
        """Tokens that were no whole character yet: the library looks at all of them again with each new one."""
        self._stream = self._start(list(prompt_ids[-8:]))

    def step(self, token_id: int) -> str:
        if token_id < 0:
            return ""
        try:
            text = self._stream.step(self._native, token_id) or ""
        except BaseException as error:  # an invalid sequence changes earlier text: the base class, or a panic
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            self._stream, self._waiting = self._start([]), []
            with as_refusals("the model's tokenizer failed on a token"):
                return self._stream.step(self._native, token_id) or ""
        if text:
            self._waiting.clear()
            return text
        self._waiting.append(token_id)
        return self._given_up() if len(self._waiting) >= MOST_WAITING else ""

    def _given_up(self) -> str:
        """Return what the tokens stand for that made no character for so long."""
        ids, self._waiting = self._waiting, []
        self._stream = self._start([])
        with as_refusals("the model's tokenizer failed on a token"):
            return self._native.decode(ids, skip_special_tokens=self._skip)

    def _start(self, ids: list[int]) -> DecodeStream:
        from tokenizers.decoders import DecodeStream

        return DecodeStream(ids=ids, skip_special_tokens=self._skip)


def open_hf_tokenizer(path: Path, mode: Mode = "auto") -> HfTokenizer:
    """Load a `tokenizer.json`; `InvalidArgument` where it is none. Slow: call it in a thread."""
    with as_refusals(f"the tokenizer file {str(path)!r} is broken"):
        data, layout = _read(path)
        probes = probe_texts(layout)
        with ThreadPoolExecutor(1, "fastokens") as pool:
            fast = pool.submit(load_fast, path) if mode == "fastokens" else None
            native, tokens = _load_native(path, data, layout)
            del data
            encoder = fast_encoder(fast.result(), native, probes) if fast else None
        later = partial(_load_fast_encoder, path, native, probes) if mode == "auto" else None
        tokenizer = HfTokenizer(native, layout, tokens, encoder, later)
    del tokens
    _return_memory()
    return tokenizer


def _load_fast_encoder(path: Path, native: Native, probes: list[str]) -> Encode:
    """Load fastokens' encoder; `InvalidArgument` where it can't be used."""
    return fast_encoder(load_fast(path), native, probes)


def _read(path: Path) -> tuple[bytes, Layout]:
    """Read a file and look into it, before a library does that may end the process over it."""
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise InvalidArgument(f"the tokenizer file {str(path)!r} has {size} bytes: at most {MOST_BYTES} are read")
        data = path.read_bytes()
        layout = msgspec.json.decode(data, type=Layout)
        layout.check()
        check_keys(data)
    except InvalidArgument:
        raise
    except OSError as error:
        raise InvalidArgument(f"the tokenizer file {str(path)!r} can't be read: {error.strerror}") from error
    except ValueError as error:  # msgspec's errors are such
        raise InvalidArgument(f"the tokenizer file {str(path)!r} is broken: {describe(error)}") from error
    return data, layout


def _load_native(path: Path, data: bytes, layout: Layout) -> tuple[Native, list[str | None]]:
    from tokenizers import Tokenizer as NativeTokenizer

    try:
        tokens = layout.take_tokens()
        native = NativeTokenizer.from_buffer(data)
    except Exception as error:  # the library has no exception type of its own
        raise InvalidArgument(f"the tokenizer file {str(path)!r} is broken: {describe(error)}") from error
    native.no_truncation()
    native.no_padding()
    return native, tokens


def _return_memory() -> None:
    """Give what parsing needed back to the system: 200 MB for a large vocabulary, which glibc would keep."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def affixes(native: Native) -> tuple[list[int], list[int]] | None:
    """Return what is put before and after every text, None where that can't be told."""
    full, plain = (encode_batch(native, ["a"], add_special=special)[0] for special in (True, False))
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start], full[start + len(plain) :]
    return None
