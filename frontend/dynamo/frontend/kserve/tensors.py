"""Input tensors of one element as Python values. Pure; `request.py` calls it.

A client writes elements into the tensor's `contents`, or packs those of all inputs into `raw_input_contents`, as
Triton's client does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from dynamo.frontend.errors import MAX_SHOWN, ApiError, bad_request, cut

Value = bool | int | float | str
_SHAPES: Final = ([1], [1, 1])
_LENGTH: Final = struct.Struct("<I")


class _Kind(NamedTuple):
    """Kind of a datatype: how it is written."""

    contents: str
    """The field of `InferTensorContents`; empty: it has none."""
    raw: str
    """Of `struct`, for packed elements; empty: bytes after their length."""
    kind: type


_KINDS: Final = {
    "BOOL": _Kind("bool_contents", "<?", bool),
    "BYTES": _Kind("bytes_contents", "", str),
    "INT8": _Kind("int_contents", "<b", int), "INT16": _Kind("int_contents", "<h", int),
    "INT32": _Kind("int_contents", "<i", int), "INT64": _Kind("int64_contents", "<q", int),
    "UINT8": _Kind("uint_contents", "<B", int), "UINT16": _Kind("uint_contents", "<H", int),
    "UINT32": _Kind("uint_contents", "<I", int), "UINT64": _Kind("uint64_contents", "<Q", int),
    "FP16": _Kind("", "<e", float), "FP32": _Kind("fp32_contents", "<f", float),
    "FP64": _Kind("fp64_contents", "<d", float),
}  # fmt: skip


def inputs(request: Any) -> Iterator[tuple[Any, bytes | None]]:
    """Yield the input tensors of a `ModelInferRequest`, each with its packed elements (None.

    They stand in the tensor).
    """
    packed = request.raw_input_contents
    if packed and len(packed) != len(request.inputs):
        raise bad_request(
            f"raw_input_contents: {len(packed)} for {len(request.inputs)} inputs; it is used for all of them, or for "
            "none.", "raw_input_contents",
        )  # fmt: skip
    for index, tensor in enumerate(request.inputs):
        yield tensor, packed[index] if packed else None


def value(tensor: Any, packed: bytes | None, datatypes: tuple[str, ...] = ()) -> Value:
    """Return the tensor's only element.

    `ApiError` where it is of none of `datatypes` (any), has another shape or is broken.
    """
    name, kind = tensor.name, _KINDS.get(tensor.datatype)
    if kind is None or (datatypes and tensor.datatype not in datatypes):
        wanted = " or ".join(datatypes or _KINDS)
        raise _wrong(name, f"expected datatype {wanted}, got {cut(tensor.datatype, MAX_SHOWN) or 'none'}")
    if list(tensor.shape[:3]) not in _SHAPES:
        raise _wrong(name, f"expected shape [1], got {list(tensor.shape[:8])}")
    element = _in_contents(tensor, kind) if packed is None else _packed(name, kind, packed)
    return _text(name, element) if isinstance(element, bytes) else element


def _in_contents(tensor: Any, kind: _Kind) -> Any:
    elements: Sequence[Any] = getattr(tensor.contents, kind.contents) if kind.contents else ()
    if len(elements) != 1:
        where = f"contents.{kind.contents}" if kind.contents else "raw_input_contents"
        raise _wrong(tensor.name, f"expected one element in {where}, got {len(elements)}")
    return elements[0]


def _packed(name: str, kind: _Kind, packed: bytes) -> Any:
    if kind.raw:
        if len(packed) != struct.calcsize(kind.raw):
            raise _wrong(name, f"expected {struct.calcsize(kind.raw)} raw bytes, got {len(packed)}")
        return struct.unpack(kind.raw, packed)[0]
    length = _LENGTH.unpack_from(packed)[0] if len(packed) >= _LENGTH.size else -1
    if length != len(packed) - _LENGTH.size:
        raise _wrong(name, "expected one raw element: its length in 4 bytes, low byte first, then its bytes")
    return packed[_LENGTH.size :]


def _text(name: str, element: bytes) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise _wrong(name, "the text is not valid UTF-8") from None


def _wrong(name: str, what: str) -> ApiError:
    return bad_request(f"{name}: {what}.", name)
