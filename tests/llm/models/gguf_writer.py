"""Writes small GGUF files for tests."""

from __future__ import annotations

import math
import struct
from typing import Any

_KINDS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, list):
        if isinstance(value[0], str):
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
        kind, code = (5, "i") if type(value[0]) is int else _KINDS[type(value[0])]  # llama.cpp takes signed lists only
        return struct.pack("<IIQ", 9, kind, len(value)) + struct.pack(f"<{len(value)}{code}", *value)
    kind, code = _KINDS[type(value)]
    return struct.pack(f"<I{code}", kind, value)


def gguf_bytes(fields: dict[str, Any], tensor_values: int = 64, version: int = 3) -> bytes:
    """Return a file with `fields` and one float tensor."""
    data = b"GGUF" + struct.pack("<IQQ", version, 1, len(fields))
    for key, value in fields.items():
        data += _string(key) + _value(value)
    data += _string("weight") + struct.pack("<IQIQ", 1, tensor_values, 0, 0)
    data += b"\0" * (-len(data) % 32)
    return data + b"\0" * (4 * tensor_values)


def model_bytes(fields: dict[str, Any], tensors: dict[str, tuple[list[int], bytes]]) -> bytes:
    """Return a file with `fields` and float32 tensors: by name their shape, outermost first, and their data."""
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    for key, value in fields.items():
        data += _string(key) + _value(value)
    at = 0
    for name, (shape, content) in tensors.items():
        data += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        data += struct.pack("<IQ", 0, at)
        at += len(content)
    return data + bytes(-len(data) % 32) + b"".join(content for _, content in tensors.values())


def sentencepiece_fields(**more: Any) -> dict[str, Any]:
    """Return a model whose vocabulary is made for `the cat▁` and friends."""
    normal = ["▁", "t", "h", "e", "c", "a", "th", "▁the", "▁c", "at", "▁cat", "the", "he", "▁t"]
    tokens = ["<unk>", "<s>", "</s>", *normal, *(f"<0x{value:02X}>" for value in range(256)), "<|end|>", "\n"]
    return {
        "general.architecture": "tiny",
        "tiny.context_length": 128,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 3 + [-float(n) for n in range(len(normal))] + [0.0] * 258,
        "tokenizer.ggml.token_type": [2, 3, 3] + [1] * len(normal) + [6] * 256 + [3, 4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


def byte_level_fields(data: dict[str, Any], pre: str, **more: Any) -> dict[str, Any]:
    """Return the fields of a byte-level model from its `tokenizer.json`."""
    special = {token["id"] for token in data["added_tokens"]}
    vocab = data["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    return {
        "general.architecture": "tiny",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if number in special else 1 for number in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in data["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": 2,
        **more,
    }


def word_piece_fields(pieces: list[str], **more: Any) -> dict[str, Any]:
    """Return the fields of a model with BERT's vocabulary, from its `vocab.txt`, as llama.cpp's converter writes them:
    pieces that begin a word get a mark, those that go on lose theirs."""
    special = [piece.startswith("[") and piece.endswith("]") for piece in pieces]
    tokens = [
        piece if control else piece[2:] if piece.startswith("##") else "\u2581" + piece
        for piece, control in zip(pieces, special, strict=True)
    ]
    named = {"cls": "[CLS]", "seperator": "[SEP]", "unknown": "[UNK]", "padding": "[PAD]", "mask": "[MASK]"}
    return {
        "general.architecture": "bert",
        "bert.context_length": 512,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if control else 1 for control in special],
        **{f"tokenizer.ggml.{name}_token_id": pieces.index(piece) for name, piece in named.items() if piece in pieces},
        **more,
    }


def runnable_bytes(fields: dict[str, Any]) -> bytes:
    """Return a file that llama.cpp loads: the fields of a tokenizer, and one layer with zeros for weights."""
    width, inner, vocabulary = 32, 32, len(fields["tokenizer.ggml.tokens"])
    about = {
        "general.architecture": "llama", "llama.context_length": 512, "llama.embedding_length": width,
        "llama.block_count": 1, "llama.feed_forward_length": inner, "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": vocabulary,
    }  # fmt: skip
    shapes = {"token_embd.weight": (width, vocabulary), "output_norm.weight": (width,)}
    block = {"attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width), "attn_k": (width, width),
             "attn_v": (width, width), "attn_output": (width, width), "ffn_gate": (width, inner),
             "ffn_up": (width, inner), "ffn_down": (inner, width)}  # fmt: skip
    shapes |= {f"blk.0.{name}.weight": shape for name, shape in block.items()}
    return _with_tensors({**fields, **about}, shapes)


def _with_tensors(fields: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> bytes:
    data = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(fields))
    for key, value in fields.items():
        data += _string(key) + _value(value)
    offset = 0
    for name, shape in shapes.items():
        data += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
        size = 4 * math.prod(shape)
        offset += size + -size % 32
    return data + b"\0" * (-len(data) % 32) + b"\0" * offset
