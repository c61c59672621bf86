"""What the tokens of a GGUF file are as bytes: all that the llama.cpp engine needs of a tokenizer.

Frontends encode and decode; building a whole tokenizer here as well would cost seconds of
the start and 200 MB for a large vocabulary.
"""

from __future__ import annotations

import re
from typing import Final

from dynamo.llm.models.gguf_header import Header
from dynamo.llm.models.gguf_tokenizer import token_list
from dynamo.llm.tokenizer.token_table import byte_characters
from dynamo.runtime.errors import EngineError

_SPACE: Final = "\u2581"
_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")


class Vocabulary:
    """The tokens of one model, of the `llama` kind (byte fallback) or `gpt2` (an alphabet of bytes)."""

    def __init__(self, header: Header) -> None:
        self._tokens = token_list(header)
        self._alphabet = byte_alphabet() if header.text("tokenizer.ggml.model") == "gpt2" else None
        self._found: dict[int, int] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token stands for; nothing where there is no such token."""
        text = self._tokens[token_id] if 0 <= token_id < len(self._tokens) else ""
        if self._alphabet is not None:
            alphabet = self._alphabet
            known = all(character in alphabet for character in text)
            return bytes(alphabet[character] for character in text) if known else text.encode()
        match = _BYTE.fullmatch(text)
        return bytes([int(match.group(1), 16)]) if match else text.replace(_SPACE, " ").encode()

    def byte_id(self, byte: int) -> int:
        """Return the token that stands for one byte alone."""
        if byte not in self._found:
            self._found[byte] = self._look_for(byte)
        return self._found[byte]

    def _look_for(self, byte: int) -> int:
        if self._alphabet is None:
            text = f"<0x{byte:02X}>"
        else:
            text = next(character for character, value in self._alphabet.items() if value == byte)
        try:
            return self._tokens.index(text)
        except ValueError as error:
            raise EngineError(f"the model has no token for the byte 0x{byte:02X}") from error


def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's characters for bytes."""
    return {character: byte for byte, character in byte_characters().items()}
