"""Small images of each format, and headers that say what a test wants."""

from __future__ import annotations

import base64
import struct
import zlib


def png(width: int = 8, height: int = 8, shade: int = 0) -> bytes:
    """A whole grey image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes([shade]) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def png_header(width: int, height: int) -> bytes:
    """The beginning of an image of any size."""
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)


def jpeg(width: int = 20, height: int = 10, sizes: int = 1) -> bytes:
    """Segments as cameras write them, until the scan."""
    app = b"\xff\xe1" + struct.pack(">H", 2 + 5000) + b"\xff\xc0" * 2500
    table = b"\xff\xdb" + struct.pack(">H", 67) + bytes(65)
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"
    return b"\xff\xd8" + app + table + frame * sizes + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + b"\xff\xd9"


def gif(width: int = 6, height: int = 5, frame: tuple[int, int] = (6, 5)) -> bytes:
    """A colour table, a comment, and one frame."""
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    comment = b"\x21\xfe\x05hello\x00"
    return screen + comment + b"\x2c" + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x4c\x01\x00\x3b"


def webp(kind: bytes = b"VP8X", width: int = 30, height: int = 40) -> bytes:
    """One chunk of each kind that says a size."""
    if kind == b"VP8X":
        body = bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif kind == b"VP8L":
        body = b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + bytes(5)
    else:
        body = b"\x30\x01\x00\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBP" + kind + struct.pack("<I", len(body)) + body


def data_url(data: bytes, kind: str = "image/png") -> str:
    """The image as clients send it."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def part(data: bytes) -> dict[str, object]:
    """A chat's content part."""
    return {"type": "image_url", "image_url": {"url": data_url(data)}}
