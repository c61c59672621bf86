"""Format and size of an image by its first bytes, for PNG, JPEG, WebP and GIF. Pure; nothing is decompressed.

Bytes come from anybody: each step goes forward, and there are at most `_STEPS` of them.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from dynamo.llm.protocols import ImageFormat

_STEPS: Final = 1024
"""Segments or blocks that are looked at before an image's size."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG's markers of frames, which say the size."""
_ALONE: Final = frozenset((0x01, *range(0xD0, 0xD8)))
"""JPEG's markers without a length."""
_START, _SCAN, _END = 0xD8, 0xDA, 0xD9
_EXTENSION, _FRAME = 0x21, 0x2C


class ImageHeader(NamedTuple):
    """What an image's beginning says."""

    format: ImageFormat
    width: int
    height: int


class UnreadableImage(ValueError):  # noqa: N818 - what it is, not that it is one
    """Error: it is no image that is taken, or a broken one."""


def read_header(data: bytes) -> ImageHeader:
    """Return an image's format and size; `UnreadableImage` says what is wrong with it."""
    try:
        header = _read(data)
    except (struct.error, IndexError):
        raise UnreadableImage("it ends within its header") from None
    if header.width < 1 or header.height < 1:
        raise UnreadableImage(f"its header says {header.width} x {header.height} pixels")
    return header


def _read(data: bytes) -> ImageHeader:
    if data.startswith(_PNG):
        return _png(data)
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _gif(data)
    raise UnreadableImage("it is no PNG, JPEG, WebP or GIF")


def _png(data: bytes) -> ImageHeader:
    if data[8:16] != b"\0\0\0\rIHDR":
        raise UnreadableImage("a PNG begins with IHDR")
    return ImageHeader("png", *struct.unpack_from(">II", data, 16))


def _jpeg(data: bytes) -> ImageHeader:
    """Look at all segments until the scan: an image with two sizes is none."""
    at, header = 2, None
    for _ in range(_STEPS):
        if data[at] != 0xFF:
            raise UnreadableImage("a JPEG segment has no marker")
        marker = data[at + 1]
        at += 1
        if marker == 0xFF:  # fill
            continue
        at += 1
        if marker in _ALONE:
            continue
        if marker in (_SCAN, _END, _START):
            break
        (length,) = struct.unpack_from(">H", data, at)
        if length < 2:
            raise UnreadableImage("a JPEG segment has no length")
        if marker in _SIZES:
            if header is not None:
                raise UnreadableImage("a JPEG has one size")
            height, width = struct.unpack_from(">HH", data, at + 3)
            header = ImageHeader("jpeg", width, height)
        at += length
    if header is None:
        raise UnreadableImage("a JPEG says no size before its scan")
    return header


def _webp(data: bytes) -> ImageHeader:
    kind = data[12:16]
    if kind == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            raise UnreadableImage("a WebP's frame has no start code")
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageHeader("webp", width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        if data[20] != 0x2F:
            raise UnreadableImage("a WebP's frame has no signature")
        (bits,) = struct.unpack_from("<I", data, 21)
        return ImageHeader("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8X" and len(data) >= 30:
        return ImageHeader("webp", int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1)
    raise UnreadableImage("a WebP has no frame")


def _gif(data: bytes) -> ImageHeader:
    """Return the size of the screen and of the first frame, whichever is larger: decoders take either."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    extension = False
    for _ in range(_STEPS):
        sign = data[at]
        if extension:
            extension = sign != 0
            at += 1 + sign
        elif sign == _EXTENSION:
            extension, at = True, at + 2
        elif sign == _FRAME:
            left, top, across, down = struct.unpack_from("<HHHH", data, at + 1)
            return ImageHeader("gif", max(width, left + across), max(height, top + down))
        else:
            break
    raise UnreadableImage("a GIF has no frame")
