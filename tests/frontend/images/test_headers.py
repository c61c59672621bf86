"""Sizes by the first bytes of images, also of those that are made to deceive."""

from __future__ import annotations

import random
import time

import pytest
from tests.frontend.images.samples import gif, jpeg, png, png_header, webp

from dynamo.frontend.images.headers import UnreadableImage, read_header


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (png(8, 9), ("png", 8, 9)),
        (png_header(1 << 20, 7), ("png", 1 << 20, 7)),
        (jpeg(20, 10), ("jpeg", 20, 10)),
        (gif(6, 5), ("gif", 6, 5)),
        (gif(6, 5, frame=(60, 4)), ("gif", 60, 5)),
        (webp(b"VP8X", 30, 40), ("webp", 30, 40)),
        (webp(b"VP8L", 16384, 1), ("webp", 16384, 1)),
        (webp(b"VP8 ", 31, 41), ("webp", 31, 41)),
    ],
)
def test_each_format(data: bytes, said: tuple[str, int, int]) -> None:
    """Format and size are those that were written; a GIF's frame may be larger than its screen."""
    assert read_header(data) == said


@pytest.mark.parametrize(
    "data",
    [
        b"", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"BM" + bytes(60), b"II*\0" + bytes(60), b"%PDF-1.4",
        png_header(0, 5), jpeg(0, 5), jpeg(5, 5, sizes=2), jpeg()[:40], gif()[:15], webp(b"ALPH"),
        b"\x89PNG\r\n\x1a\n\0\0\0\x04CgBI" + bytes(20), b"\xff\xd8\xff\xe0\x00\x01" + bytes(60),
        b"\xff\xd8\xff" + b"\xff" * 100_000, b"GIF89a\1\0\1\0\0\0\0\x3b",
    ],
)  # fmt: skip
def test_what_is_none(data: bytes) -> None:
    """Other formats, none, halves, and images without a size or with two, are refused in words."""
    with pytest.raises(UnreadableImage):
        read_header(data)


def test_any_bytes_end_soon() -> None:
    """Noise behind each format's first bytes never raises anything else, and megabytes of it take no time."""
    chance = random.Random(7)
    starts = [png()[:12], b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBPVP8X", gif()[:13]]
    for number in range(2000):
        noise = starts[number % 4] + chance.randbytes(chance.randrange(64))
        try:
            header = read_header(noise)
        except UnreadableImage:
            continue
        assert header.width > 0
        assert header.height > 0
    began = time.perf_counter()
    for data in (b"\xff\xd8" + b"\xff\xe1\x00\x02" * 1_000_000, gif()[:19] + b"\x21\xfe" + b"\x01x" * 1_000_000):
        with pytest.raises(UnreadableImage):
            read_header(data)
    assert time.perf_counter() - began < 0.5
