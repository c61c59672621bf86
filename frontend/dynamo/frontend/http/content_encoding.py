"""Compressed bodies of requests: gzip and zstd, within the bound of any body; other encodings are refused by name.

A few bytes may stand for gigabytes, so what they become is bounded before it is made, and made piece by piece: none
takes the event loop longer than a millisecond. zstd is Python's own since 3.14, and a package before.
"""

from __future__ import annotations

import asyncio
import importlib
import zlib
from functools import cache
from typing import Any, Final

from dynamo.frontend.errors import ApiError, bad_request, cut, too_large

PIECE: Final = 128 << 10
"""Bytes that are made at once: some hundred microseconds."""
_GZIP: Final = ("gzip", "x-gzip")
_AS_IT_IS: Final = ("", "identity")
_ZSTD: Final = "zstd"
_WINDOW: Final = 16 + zlib.MAX_WBITS
_ZSTD_WINDOW: Final = 23
"""Of zstd's window, as a power of two: the 8 MB that every decoder should have, and none needs more."""
_MEMBERS: Final = 64
"""Of one body; each begins anew."""
_SHOWN: Final = 100


@cache
def _zstd() -> Any:
    """Return the module that reads zstd; None where there is none."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


@cache
def taken() -> str:
    """Return the encodings that are read here, as `Accept-Encoding` names them."""
    return "gzip" if _zstd() is None else "gzip, zstd"


def encoding_of(given: bytes) -> str:
    """Return what a body of this `Content-Encoding` has to be decoded by, "" for nothing; raises the 415."""
    text = given.decode("latin-1").strip().lower()
    names = [name for part in text.split(",") if (name := part.strip()) not in _AS_IT_IS]
    if not names:
        return ""
    if len(names) == 1 and names[0] in _GZIP:
        return "gzip"
    if names == [_ZSTD] and _zstd() is not None:
        return _ZSTD
    said = f"Content-Encoding {cut(text, _SHOWN)!r} is not supported"
    if len(names) > 1:
        said = f"{said}: a body may be compressed once only"
    send = taken().replace(", ", " or ")
    headers = [("accept-encoding", taken())]
    raise ApiError(
        415, f"{said}; send {send}, or the body as it is.", code="unsupported_content_encoding", headers=headers
    )


async def decoded(raw: bytes, encoding: str, limit: int) -> bytes:
    """Return what a compressed body stands for; raises 413 as soon as it is more than `limit`, 400 where it is none."""
    whole, at = bytearray(), 0
    part = _zstd_part if encoding == _ZSTD else _gzip_part
    for _ in range(_MEMBERS):
        at = await part(raw, at, whole, limit)
        if at == len(raw):
            return bytes(whole)
    raise _unreadable(encoding, "it has too many parts")


async def _gzip_part(raw: bytes, at: int, whole: bytearray, limit: int) -> int:
    """Decode the part that begins at `at`; returns where it ends."""
    decoder = zlib.decompressobj(_WINDOW)
    rest = b""
    while not decoder.eof:
        if not rest:
            rest = raw[at : at + PIECE]
            at += len(rest)
        try:
            made = decoder.decompress(rest, min(PIECE, limit + 1 - len(whole)))
        except zlib.error:
            raise _unreadable("gzip", "it is damaged, or something else") from None
        _take(made, whole, limit)
        ends = not made and not rest
        rest = decoder.unconsumed_tail
        if ends and not decoder.eof:
            raise _unreadable("gzip", "it ends too early")
        await asyncio.sleep(0)
    return at - len(decoder.unused_data)


async def _zstd_part(raw: bytes, at: int, whole: bytearray, limit: int) -> int:
    """Decode the frame that begins at `at`; returns where it ends."""
    zstd = _zstd()
    decoder = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW})
    while not decoder.eof:
        rest = raw[at : at + PIECE] if decoder.needs_input else b""
        if decoder.needs_input and not rest:
            raise _unreadable(_ZSTD, "it ends too early")
        at += len(rest)
        try:
            made = decoder.decompress(rest, min(PIECE, limit + 1 - len(whole)))
        except zstd.ZstdError:
            why = f"it is damaged, something else, or needs a window of more than {1 << _ZSTD_WINDOW - 20} MB"
            raise _unreadable(_ZSTD, why) from None
        _take(made, whole, limit)
        await asyncio.sleep(0)
    return at - len(decoder.unused_data)


def _take(made: bytes, whole: bytearray, limit: int) -> None:
    whole += made
    if len(whole) > limit:
        raise too_large(limit)


def _unreadable(encoding: str, why: str) -> ApiError:
    return bad_request(f"The request body can't be read as {encoding}: {why}.", code="invalid_encoding")
