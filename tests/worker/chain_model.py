"""A model whose text is known beforehand, as a GGUF file and as a folder of safetensors.

Its weights are written by hand: a token's embedding is a line of its own, attention and
feed-forward add nothing, and the output matrix turns each token into its successor. So a
real engine does all of its work on it, in milliseconds, and the greedy answer to any
prompt is `continuation`, whatever the order in which an engine adds numbers up.
"""

from __future__ import annotations

import itertools
import json
import struct
from array import array
from pathlib import Path
from typing import Any, Final

from tests.llm.models.gguf_writer import model_bytes

from dynamo.llm.models.gguf_header import Header
from dynamo.llm.models.gguf_tokenizer import build_tokenizer

WIDTH: Final = 384
"""Of a hidden state, and of the vocabulary: one line per token."""
HEADS: Final = 6
HIDDEN: Final = 64
CONTEXT: Final = 512
UNK, BOS, EOS, END_OF_TURN = 0, 1, 2, 3
SPACE: Final = "\u2581"
_ASCII: Final = [chr(code) for code in range(0x21, 0x7F)]
NAMED: Final = ["<unk>", "<s>", "</s>", "<|end|>", SPACE, *_ASCII, "好", SPACE + "好"]
_UNUSED: Final = WIDTH - len(NAMED) - 256
TOKENS: Final = [
    *NAMED, *(f"<0x{value:02X}>" for value in range(256)), *(f"<unused{number}>" for number in range(_UNUSED))
]  # fmt: skip
_BYTE: Final = len(NAMED)
LOOP: Final = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLM"
"""After a letter comes the next one, round and round."""
RARE: Final = "0é🦜好1 好2"
"""After `0` come characters of two and four tokens, and one of one; then `2` leads to `a`."""
ENDING: Final = "345"
"""After `5` the text ends; were it to go on, with `x`. What is in none of these goes on with `a`."""
TEMPLATE: Final = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


def ids(text: str) -> list[int]:
    """The tokens of a text, as the engines and our tokenizer see it (without BOS)."""
    numbers: list[int] = []
    for character in text.replace(" ", SPACE):
        if character == "好" and numbers[-1:] == [TOKENS.index(SPACE)]:
            numbers[-1] = TOKENS.index(SPACE + character)
        elif character in TOKENS:
            numbers.append(TOKENS.index(character))
        else:
            numbers += [_BYTE + value for value in character.encode()]
    return numbers


def _successors() -> dict[int, int]:
    after = dict.fromkeys(range(WIDTH), ids("a")[0])
    for text in (LOOP + "a", RARE + "a", ENDING):
        chain = ids(text)
        after.update(itertools.pairwise(chain))
    return {**after, ids("5")[0]: EOS, EOS: ids("x")[0]}


SUCCESSORS: Final = _successors()


def continuation(text: str, count: int) -> list[int]:
    """The first `count` tokens of the greedy answer to a prompt that ends in `text`; EOS is one like any other."""
    results = [ids(text)[-1]]
    for _ in range(count):
        results.append(SUCCESSORS[results[-1]])
    return results[1:]


def _floats(values: dict[int, float], count: int) -> bytes:
    made = array("f", bytes(4 * count))
    for at, value in values.items():
        made[at] = value
    return made.tobytes()


def _tensors(embedding: str, output: str, norms: list[str], square: list[str], up: list[str], down: str) -> dict[
    str, tuple[list[int], bytes]
]:  # fmt: skip
    """By name: rows, columns, little-endian float32, row by row."""
    full = WIDTH * WIDTH
    lines = _floats({row * WIDTH + row: 1.0 for row in range(WIDTH)}, full)
    # Two logits a token: its successor's, and a lesser one for where that is banned.
    follow = {(after * WIDTH + token): 1.0 for token, after in SUCCESSORS.items()}
    follow[ids("x")[0] * WIDTH + ids("5")[0]] = 0.5
    table = {embedding: ([WIDTH, WIDTH], lines), output: ([WIDTH, WIDTH], _floats(follow, full))}
    table |= {name: ([WIDTH], array("f", [1.0] * WIDTH).tobytes()) for name in norms}
    table |= {name: ([WIDTH, WIDTH], bytes(4 * full)) for name in square}
    table |= {name: ([HIDDEN, WIDTH], bytes(4 * HIDDEN * WIDTH)) for name in up}
    return table | {down: ([WIDTH, HIDDEN], bytes(4 * HIDDEN * WIDTH))}


def _fields() -> dict[str, Any]:
    specials = 4
    normal = len(NAMED) - specials
    types = [2, 3, 3, 3] + [1] * normal + [6] * 256 + [5] * _UNUSED
    return {
        "general.architecture": "llama",
        "general.name": "chain",
        "general.alignment": 32,
        "general.file_type": 0,
        "llama.block_count": 1,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": WIDTH,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [-float(number) for number in range(WIDTH)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.unknown_token_id": UNK,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def write_gguf(folder: Path, context: int = CONTEXT) -> Path:
    """The model as `chain.gguf` in `folder`."""
    block = "blk.0."
    tensors = _tensors(
        "token_embd.weight", "output.weight",
        ["output_norm.weight", f"{block}attn_norm.weight", f"{block}ffn_norm.weight"],
        [f"{block}attn_{name}.weight" for name in ("q", "k", "v", "output")],
        [f"{block}ffn_gate.weight", f"{block}ffn_up.weight"], f"{block}ffn_down.weight",
    )  # fmt: skip
    path = folder / "chain.gguf"
    path.write_bytes(model_bytes({**_fields(), "llama.context_length": context}, tensors))
    return path


def write_checkout(folder: Path) -> Path:
    """The same model as a folder in Hugging Face's layout."""
    folder.mkdir(exist_ok=True)
    layer = "model.layers.0."
    tensors = _tensors(
        "model.embed_tokens.weight", "lm_head.weight",
        ["model.norm.weight", f"{layer}input_layernorm.weight", f"{layer}post_attention_layernorm.weight"],
        [f"{layer}self_attn.{name}_proj.weight" for name in "qkvo"],
        [f"{layer}mlp.gate_proj.weight", f"{layer}mlp.up_proj.weight"], f"{layer}mlp.down_proj.weight",
    )  # fmt: skip
    head, at = {}, 0
    for name, (shape, data) in tensors.items():
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    raw = json.dumps(head).encode()
    raw += b" " * (-len(raw) % 8)
    body = b"".join(data for _, data in tensors.values())
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + body)
    files: dict[str, Any] = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "torch_dtype": "float32", "hidden_size": WIDTH, "intermediate_size": HIDDEN, "vocab_size": WIDTH,
            "num_hidden_layers": 1,
            "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "max_position_embeddings": CONTEXT, "tie_word_embeddings": False,
            "bos_token_id": BOS, "eos_token_id": EOS,
        },
        "generation_config.json": {"bos_token_id": BOS, "eos_token_id": EOS},
        "tokenizer.json": build_tokenizer(Header(_fields(), "")),
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE},
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def write_adapter(folder: Path, character: str, after: str) -> Path:
    """A LoRA adapter for the GGUF file: with it, `character` is followed by `after`."""
    fields = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": 1.0,
    }
    tensors = {
        "output.weight.lora_a": ([1, WIDTH], _floats({ids(character)[0]: 1.0}, WIDTH)),
        "output.weight.lora_b": ([WIDTH, 1], _floats({ids(after)[0]: 2.0}, WIDTH)),
    }
    path = folder / "adapter.gguf"
    path.write_bytes(model_bytes(fields, tensors))
    return path
