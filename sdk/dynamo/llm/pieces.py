"""Token ids to text by table: the fast path of detokenising, one list index per token.

A piece is `str` where the token alone is whole characters, `bytes` where it needs its
neighbours. Two families of decoders are that simple; `hf.py` checks at load that a
tokenizer's table agrees with its decoder, else `DecodeStream` is used.

- UTF-8 (`Utf8Stream`): all bytes are joined and decoded, an invalid sequence becomes one U+FFFD
  (ByteLevel decoders, and the built-in tokenizer);
- byte fallback (`FallbackStream`): only `<0xNN>` tokens are bytes, an invalid byte becomes one U+FFFD.

What is still incomplete at the end of a stream is dropped: half a character is no text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final

Piece = str | bytes
REPLACEMENT: Final = "\ufffd"
_new_decoder: Final = codecs.getincrementaldecoder("utf-8")


def as_piece(data: bytes) -> Piece:
    """Return whole characters as text, anything else as it is."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def seed(prompt_ids: Sequence[int], pieces: list[Piece]) -> Sequence[int]:
    """Return the end of the prompt that may hold the first bytes of a character."""
    tail = prompt_ids[-4:]
    return tail if any(isinstance(pieces[i], bytes) for i in tail if 0 <= i < len(pieces)) else ()


class Utf8Stream:
    """Joins the bytes of all pieces."""

    __slots__ = ("_decoder", "_open", "_pieces")

    def __init__(self, pieces: list[Piece], prompt_ids: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._open = False
        self._decoder: codecs.IncrementalDecoder | None = None
        for token_id in seed(prompt_ids, pieces):
            self.step(token_id)

    def step(self, token_id: int) -> str:
        try:
            piece = self._pieces[token_id] if token_id >= 0 else ""
        except IndexError:
            return ""
        if piece.__class__ is str and not self._open:
            return piece
        return self._join(piece)

    def _join(self, piece: Piece) -> str:
        decoder = self._decoder
        if decoder is None:
            decoder = self._decoder = _new_decoder(errors="replace")
        if not piece:
            return ""
        text = decoder.decode(piece.encode() if isinstance(piece, str) else piece)
        self._open = bool(decoder.getstate()[0])
        return text


class FallbackStream:
    """Text pieces pass; runs of single bytes are put together."""

    __slots__ = ("_open", "_pieces")

    def __init__(self, pieces: list[Piece], prompt_ids: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._open = b""
        for token_id in seed(prompt_ids, pieces):
            self.step(token_id)

    def step(self, token_id: int) -> str:
        try:
            piece = self._pieces[token_id] if token_id >= 0 else ""
        except IndexError:
            return ""
        if piece.__class__ is str and not self._open:
            return piece
        return self._join(piece)

    def _join(self, piece: Piece) -> str:
        if not piece:
            return ""
        if isinstance(piece, str):
            text, self._open = REPLACEMENT * len(self._open) + piece, b""
            return text
        text, self._open = take_characters(self._open + piece)
        return text


def take_characters(data: bytes) -> tuple[str, bytes]:
    """Split `data` into its whole characters (one U+FFFD per invalid byte) and the incomplete rest."""
    text = ""
    while data:
        try:
            return text + data.decode(), b""
        except UnicodeDecodeError as error:
            text += data[: error.start].decode()
            data = data[error.start :]
            if error.reason == "unexpected end of data":
                return text, data
            text += REPLACEMENT
            data = data[1:]
    return text, data


class StrippedStream:
    """Drops one leading space of the whole text, for decoders that do so where there is no prompt."""

    __slots__ = ("_begun", "_inner")

    def __init__(self, inner: FallbackStream) -> None:
        self._inner = inner
        self._begun = False

    def step(self, token_id: int) -> str:
        text = self._inner.step(token_id)
        if self._begun or not text:
            return text
        self._begun = True
        return text.removeprefix(" ")
