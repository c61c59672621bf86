"""The header of a GGUF file: its key/value section and tensor list, read directly.

The arrays of a large vocabulary (262,144 strings) take a tenth of a second here; the format's
own Python package needs 18 s. The file is mapped, never read whole. Layout:
magic, version, tensor count, pair count, pairs, tensor infos, padding, tensor data.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dynamo.runtime.errors import InvalidArgument

_MAGIC: Final = b"GGUF"
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LIMIT: Final = 1 << 24
"""More pairs, tensors or dimensions than this are a broken file."""
_DEEPEST: Final = 4
"""Arrays within arrays; no known file has any."""
_LONGEST_NAME: Final = 65_535
"""Bytes of a key or a tensor's name; the format's own bound."""

# Tensor types by number: values per block, bytes per block.
_BLOCKS: Final = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """Header: what a GGUF file says of itself."""

    fields: dict[str, Any]
    digest: str
    """Of the header and the file's size: names the model without reading its weights."""

    def text(self, key: str) -> str | None:
        """Return a string field."""
        value = self.fields.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> int | None:
        """Return an integer field."""
        value = self.fields.get(key)
        return value if type(value) is int else None

    def flag(self, key: str) -> bool | None:
        """Return a boolean field."""
        value = self.fields.get(key)
        return value if isinstance(value, bool) else None


def read_header(path: Path) -> Header:
    """Read and check the header; `InvalidArgument` where it is no GGUF file or is cut off."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if file.read(4) != _MAGIC:
                raise InvalidArgument(f"{str(path)!r} is no GGUF file: it does not begin with the letters GGUF")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(path, data, size)
    except OSError as error:
        raise InvalidArgument(f"{str(path)!r} can't be read: {error.strerror}") from error


def _read(path: Path, data: mmap.mmap, size: int) -> Header:
    cursor = _Cursor(data, 4)
    try:
        version, tensors, pairs = cursor.take("I"), cursor.take("Q"), cursor.take("Q")
        if version not in (2, 3):
            raise InvalidArgument(f"{str(path)!r} has GGUF version {version}: only versions 2 and 3 are read")
        if max(tensors, pairs) > _LIMIT:
            raise ValueError("impossible counts")
        fields = {}
        for _ in range(pairs):
            key = cursor.string(_LONGEST_NAME)
            fields[key] = cursor.value(cursor.take("I"))
        alignment = fields.get("general.alignment", 32)
        end = _data_end(cursor, tensors, alignment if type(alignment) is int and alignment > 0 else 32)
    except (struct.error, IndexError, ValueError, OverflowError, MemoryError) as error:
        raise InvalidArgument(f"{str(path)!r} ends within its header: the file is cut off or damaged") from error
    if size < end:
        raise InvalidArgument(
            f"{str(path)!r} is cut off: it has {size} of the {end} bytes that its header announces; get it again"
        )
    digest = hashlib.blake2b(data[: cursor.at], digest_size=32)
    digest.update(struct.pack("<Q", size))
    return Header(fields, digest.hexdigest())


def _data_end(cursor: _Cursor, tensors: int, alignment: int) -> int:
    last = 0
    for _ in range(tensors):
        cursor.string(_LONGEST_NAME)
        dimensions = cursor.take("I")
        if dimensions > 8:
            raise ValueError("impossible tensor")
        count = 1
        for _ in range(dimensions):
            count *= cursor.take("Q")
        kind, offset = cursor.take("I"), cursor.take("Q")
        values, width = _BLOCKS.get(kind, (1, 0))
        last = max(last, offset + count // values * width)
    begin = -(-cursor.at // alignment) * alignment
    return begin + last if tensors else 0


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data = data
        self.at = at

    def take(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f"<{kind}", self._data, self.at)
        self.at += struct.calcsize(f"<{kind}")
        return value

    def string(self, longest: int | None = None) -> str:
        length = self.take("Q")
        if longest is not None and length > longest:
            raise ValueError("impossible name")
        return self._bytes(length).decode(errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.take("I"), self.take("Q"))
        return self.take(self._format(kind))

    def _array(self, kind: int, count: int, depth: int = 1) -> list[Any]:
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            if count > _LIMIT or depth >= _DEEPEST:
                raise ValueError("impossible array")
            return [self._array(self.take("I"), self.take("Q"), depth + 1) for _ in range(count)]
        layout = struct.Struct(f"<{count}{self._format(kind)}" if count <= len(self._data) else "<x")
        values = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        if len(values) != count:
            raise ValueError("impossible array")
        return list(values)

    def _strings(self, count: int) -> list[str]:
        data, at, length_at = self._data, self.at, struct.Struct("<Q").unpack_from
        end = len(data)
        texts = []
        for _ in range(count):
            (length,) = length_at(data, at)
            at += 8 + length
            if at > end:
                raise ValueError("string beyond the end")
            texts.append(data[at - length : at].decode(errors="replace"))
        self.at = at
        return texts

    def _bytes(self, length: int) -> bytes:
        if self.at + length > len(self._data):
            raise ValueError("string beyond the end")
        self.at += length
        return self._data[self.at - length : self.at]

    @staticmethod
    def _format(kind: int) -> str:
        if kind not in _SCALARS:
            raise ValueError("unknown value type")
        return _SCALARS[kind]
