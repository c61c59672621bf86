"""A GGUF file as a model: header to card, with the converted tokenizer kept in the cache.

Converting a large vocabulary takes a second or two, so it is done once per file: a small
record, named by the header's digest, points to the tokenizer in the file cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from dynamo.llm.model_card import CHAT_TEMPLATE, TOKENIZER, FileRef, ModelCard
from dynamo.llm.models.file_cache import FileCache
from dynamo.llm.models.gguf_header import Header, read_header
from dynamo.llm.models.gguf_tokenizer import (
    CONVERSION,
    adds_bos,
    begin_and_end,
    build_tokenizer,
    token_list,
    token_types,
)
from dynamo.llm.models.local_model import LocalModel

_TEMPLATE: Final = "tokenizer.chat_template"
_END_OF_TURN: Final = frozenset(
    (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "<|END_OF_TURN_TOKEN|>",
    )
)
"""Control tokens that end a turn whatever else the file says (llama.cpp knows them by name too)."""
_CONTROL: Final = 3


def open_gguf(path: Path, cache: FileCache) -> LocalModel:
    """Describe the model in a `.gguf` file."""
    header = read_header(path)
    tokens = token_list(header)
    files = {TOKENIZER: _tokenizer(header, cache)}
    for role, source in _templates(header).items():
        files[role] = cache.keep(source.encode(), f"{role}.jinja")
    bos, eos = begin_and_end(header)
    architecture = header.text("general.architecture") or ""
    card = ModelCard(
        name=path.stem,
        tokenizer="hf",
        context_length=header.number(f"{architecture}.context_length"),
        vocab_size=len(tokens),
        eos_token_ids=end_ids(header),
        bos_token_id=bos,
        add_bos=adds_bos(header),
        special_tokens={
            name: tokens[number] for name, number in (("bos_token", bos), ("eos_token", eos)) if number is not None
        },
        files=files,
    )
    paths = {ref.digest: kept for ref in files.values() if (kept := cache.find(ref)) is not None}
    return LocalModel(card, paths, path)


def end_ids(header: Header) -> list[int]:
    """Return the ids that end a text or a turn."""
    tokens, types = token_list(header), token_types(header)
    stated = (header.number(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    stops = dict.fromkeys(number for number in stated if number is not None and 0 <= number < len(tokens))
    for number, token in enumerate(tokens):
        if types[number] == _CONTROL and token in _END_OF_TURN:
            stops[number] = None
    return list(stops)


def _templates(header: Header) -> dict[str, str]:
    templates = {}
    for key, value in header.fields.items():
        if isinstance(value, str) and (key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")):
            templates[CHAT_TEMPLATE + key.removeprefix(_TEMPLATE)] = value
    return templates


def _tokenizer(header: Header, cache: FileCache) -> FileRef:
    """Return the converted tokenizer, made now where the cache has none for this header."""

    def make() -> bytes:
        return msgspec.json.encode(build_tokenizer(header))

    return cache.made(f"gguf-{header.digest[:32]}-{CONVERSION}", "tokenizer.json", make)
