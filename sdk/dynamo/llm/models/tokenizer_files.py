"""The tokenizer of a checkout as a `tokenizer.json`, whatever form it has there: HF's own, tiktoken, SentencePiece.

One form keeps the hot path one. A conversion takes seconds, so it is made once for what it is made of and kept in
the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from dynamo.llm.model_card import FileRef
from dynamo.llm.models import sentencepiece, tiktoken
from dynamo.llm.models.file_cache import FileCache, digest_of, file_ref
from dynamo.runtime.errors import InvalidArgument

CONVERSION: Final = 1
"""Goes up when the same files give another tokenizer: the cache is keyed by it."""
OWN: Final = "tokenizer.json"
_TIKTOKEN: Final = ("*.tiktoken", "tiktoken.model")
_SENTENCEPIECE: Final = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "*.spm")
_LFS: Final = b"version https://git-lfs"
_POINTER: Final = 1024
"""Bytes that a pointer of git-lfs has at most."""
_MOST_CODE_FILES: Final = 32
_LARGEST: Final = 1 << 28


def find_tokenizer(folder: Path, settings: Mapping[str, Any], cache: FileCache) -> tuple[FileRef, Path] | None:
    """Return the folder's tokenizer, None where it has none; `settings` is its tokenizer's configuration."""
    own = folder / OWN
    if own.is_file() and not is_pointer(own):
        return file_ref(own), own
    source = _first(folder, (*_TIKTOKEN, *_SENTENCEPIECE))
    if source is None or is_pointer(source):
        return None
    data = _read(source)
    code = [_read(path).decode("utf-8", "replace") for path in sorted(folder.glob("*.py"))[:_MOST_CODE_FILES]]
    make = _converter(data, settings, code)
    key = digest_of([data, msgspec.json.encode(dict(settings), order="sorted"), *(text.encode() for text in code)])
    ref = cache.made(f"tokenizer-{key[:32]}-{CONVERSION}", OWN, lambda: msgspec.json.encode(make()))
    kept = cache.find(ref)
    if kept is None:
        raise InvalidArgument(f"the cache folder {str(cache.root)!r} lost a file just now: try again")
    return ref, kept


def is_pointer(path: Path) -> bool:
    """Tell whether git-lfs has yet to put a file where its pointer lies."""
    try:
        return path.stat().st_size < _POINTER and path.read_bytes().startswith(_LFS)
    except OSError:
        return False


def _converter(data: bytes, settings: Mapping[str, Any], code: list[str]) -> Callable[[], dict[str, Any]]:
    if tiktoken.is_tiktoken(data):
        return lambda: tiktoken.build(data, settings, code)
    return lambda: sentencepiece.build(data, settings)


def _first(folder: Path, patterns: tuple[str, ...]) -> Path | None:
    return next((path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()), None)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST:
            raise InvalidArgument(f"{str(path)!r} is too large for a tokenizer")
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{str(path)!r} can't be read: {error.strerror}") from error
