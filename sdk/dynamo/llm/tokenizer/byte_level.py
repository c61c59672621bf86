"""The built-in tokenizer: one token per UTF-8 byte, so that a first try downloads nothing.

Ids 0..255 are the bytes, `EOS_ID` ends a text, `BOS_ID` may begin one. Used where a model
has no files: echo, mocker and python engines without `model.source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynamo.llm.tokenizer.token_table import Piece, Utf8Stream, as_piece
from dynamo.llm.tokenizer.tokenizer import TextStream
from dynamo.runtime.errors import InvalidArgument

EOS_ID: Final = 256
BOS_ID: Final = 257
VOCAB_SIZE: Final = 258
SPECIAL: Final = {"eos_token": "<|end|>", "bos_token": "<|begin|>"}
_NAMES: Final = {EOS_ID: SPECIAL["eos_token"], BOS_ID: SPECIAL["bos_token"]}


def utf8(text: str) -> bytes:
    """Encode, or refuse in a sentence what JSON allows and UTF-8 doesn't."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}: "
            "it is no valid Unicode text and can't be tokenised"
        ) from error


class ByteTokenizer:
    """Bytes as tokens. Special tokens exist as ids only: no text turns into them."""

    vocab_size = VOCAB_SIZE
    longest_token = 1

    def __init__(self) -> None:
        data: list[Piece] = [as_piece(bytes([value])) for value in range(256)]
        self._hidden: list[Piece] = [*data, "", ""]
        self._shown: list[Piece] = [*data, _NAMES[EOS_ID], _NAMES[BOS_ID]]

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return list(utf8(text))

    async def encode_async(self, text: str, add_special: bool = True) -> list[int]:
        return self.encode(text, add_special)

    def count(self, text: str) -> int:
        return len(utf8(text))

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        parts = []
        for token_id in ids:
            if 0 <= token_id < VOCAB_SIZE:
                piece = self._hidden[token_id] if skip_special else self._shown[token_id]
                parts.append(piece.encode() if isinstance(piece, str) else piece)
        return b"".join(parts).decode(errors="replace")

    def text_stream(self, prompt_ids: Sequence[int] = (), skip_special: bool = True) -> TextStream:
        return Utf8Stream(self._hidden if skip_special else self._shown, prompt_ids)

    def token_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < 256:
            return bytes([token_id])
        return _NAMES.get(token_id, "").encode()

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self.token_bytes, ids))

    def token_id(self, content: str) -> int | None:
        for token_id, name in _NAMES.items():
            if name == content:
                return token_id
        data = content.encode(errors="replace")
        return data[0] if len(data) == 1 else None
