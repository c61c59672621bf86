"""Tokenizers: their port, the two adapters, and what makes them fast. `load_tokenizer` opens a card's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dynamo.llm.model_card import TOKENIZER, ModelCard
from dynamo.llm.tokenizer.tokenizer import Mode, Tokenizer
from dynamo.runtime.errors import InvalidArgument


def load_tokenizer(card: ModelCard, files: Mapping[str, Path], mode: Mode = "auto") -> Tokenizer:
    """Open the tokenizer that `card` names; `files` maps roles (or digests) to paths. Slow: call it in a thread."""
    if card.tokenizer == "bytes":
        from dynamo.llm.tokenizer.byte_level import ByteTokenizer

        return ByteTokenizer()
    if card.tokenizer == "none":
        raise InvalidArgument(f"model {card.name!r} takes text: it has no tokenizer here")
    path = card_file(card, files, TOKENIZER)
    if path is None:
        raise InvalidArgument(f"the card of model {card.name!r} names no tokenizer file")
    from dynamo.llm.tokenizer.huggingface import open_hf_tokenizer

    return open_hf_tokenizer(path, mode)


def card_file(card: ModelCard, files: Mapping[str, Path], role: str) -> Path | None:
    """Find the file of a role, in a map by role or by digest; None where the card has none."""
    ref = card.files.get(role)
    if ref is None:
        return None
    path = files.get(role) or files.get(ref.digest)
    if path is None:
        raise InvalidArgument(f"file {ref.name!r} ({role}) of model {card.name!r} is missing here")
    return path
