"""Compressed bodies of requests: gzip, within the bound of any body; what is compressed otherwise is refused.

A few bytes may stand for gigabytes, so what they become is bounded before it is made, and made piece by piece: none
takes the event loop longer than a millisecond.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Final

from dynamo.frontend.errors import ApiError, bad_request, cut, too_large

PIECE: Final = 128 << 10
"""Bytes that are made at once: some hundred microseconds."""
_GZIP: Final = (b"gzip", b"x-gzip")
_AS_IT_IS: Final = (b"", b"identity")
_WINDOW: Final = 16 + zlib.MAX_WBITS
_MEMBERS: Final = 64
"""Of one body; each begins anew."""
_SHOWN: Final = 100


def is_encoded(encoding: bytes) -> bool:
    """Tell whether a body of this `Content-Encoding` has to be decoded; raises 415 where it can't be."""
    name = encoding.strip().lower()
    if name in _AS_IT_IS:
        return False
    if name in _GZIP:
        return True
    text = (
        f"Content-Encoding {cut(name.decode('latin-1'), _SHOWN)!r} is not supported; send gzip, or the body as it is."
    )
    raise ApiError(415, text, code="unsupported_content_encoding", headers=[("accept-encoding", "gzip")])


async def decoded(raw: bytes, limit: int) -> bytes:
    """Return what a gzip body stands for; raises 413 as soon as that is more than `limit`, 400 where it is none."""
    whole = bytearray()
    for _ in range(_MEMBERS):
        raw = await _member(raw, whole, limit)
        if not raw:
            return bytes(whole)
    raise _unreadable("it has too many parts")


async def _member(raw: bytes, whole: bytearray, limit: int) -> bytes:
    """Decode one part; returns what follows it."""
    decoder = zlib.decompressobj(_WINDOW)
    rest = raw
    while not decoder.eof:
        try:
            made = decoder.decompress(rest, min(PIECE, limit + 1 - len(whole)))
        except zlib.error:
            raise _unreadable("it is damaged, or something else") from None
        whole += made
        if len(whole) > limit:
            raise too_large(limit)
        rest = decoder.unconsumed_tail
        if not made and not rest and not decoder.eof:
            raise _unreadable("it ends too early")
        if rest:
            await asyncio.sleep(0)
    return decoder.unused_data


def _unreadable(why: str) -> ApiError:
    return bad_request(f"The request body can't be read as gzip: {why}.", code="invalid_encoding")
