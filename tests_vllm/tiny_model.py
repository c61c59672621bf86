"""A model that vLLM loads in seconds: Qwen3's architecture with random weights, and a real tokenizer.

Everything is drawn from a fixed seed, so that two runs have the same answers. Sums are in float32, so that an answer
doesn't depend on what was computed beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CONTEXT: Final = 1024
VOCABULARY: Final = 1600
WIDTH: Final = 128
LAYERS: Final = 2
HEADS, KV_HEADS, HEAD_WIDTH = 4, 2, 32
INNER: Final = 128
TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EOS: Final = "<|im_end|>"
SPECIAL: Final = ["<|endoftext|>", "<|im_start|>", EOS]


def write(folder: Path) -> Path:
    """Write the model's folder; it is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    eos = write_tokenizer(folder, TEMPLATE).token_to_id(EOS)
    assert eos is not None
    _json(folder / "config.json", _config(eos))
    _json(folder / "generation_config.json", {"eos_token_id": [eos], "temperature": 0.5, "do_sample": True})
    save_file(_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_tokenizer(folder: Path, template: str, special: Sequence[str] = (), **more: Any) -> Tokenizer:
    """Write a tokenizer with `special` tokens of a model's own, and what else its configuration has; it is returned."""
    tokenizer = _tokenizer(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    _json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": SPECIAL[0],
        "model_max_length": CONTEXT, "chat_template": template, **more,
    })  # fmt: skip
    return tokenizer


def _json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))


def _tokenizer(special: Sequence[str]) -> Tokenizer:
    """Byte-level BPE, trained on the text of the licence."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[*SPECIAL, *special], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    text = Path(__file__).parent.parent / "LICENSE"
    tokenizer.train_from_iterator(text.read_text().splitlines(), trainer)
    return tokenizer


def _config(eos: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "float32", "vocab_size": VOCABULARY,
        "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_WIDTH,
        "max_position_embeddings": CONTEXT, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "tie_word_embeddings": False, "attention_bias": False, "eos_token_id": eos, "use_cache": True,
    }  # fmt: skip


def _weights() -> dict[str, Any]:
    random = np.random.default_rng(7)

    def drawn(*shape: int, scale: float = 0.3) -> Any:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    found = {
        "model.embed_tokens.weight": drawn(VOCABULARY, WIDTH, scale=1.0),
        "model.norm.weight": np.ones(WIDTH, np.float32),
        "lm_head.weight": drawn(VOCABULARY, WIDTH),
    }
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        found |= {
            f"{layer}.input_layernorm.weight": np.ones(WIDTH, np.float32),
            f"{layer}.post_attention_layernorm.weight": np.ones(WIDTH, np.float32),
            f"{layer}.self_attn.q_norm.weight": np.ones(HEAD_WIDTH, np.float32),
            f"{layer}.self_attn.k_norm.weight": np.ones(HEAD_WIDTH, np.float32),
            f"{layer}.self_attn.q_proj.weight": drawn(HEADS * HEAD_WIDTH, WIDTH),
            f"{layer}.self_attn.k_proj.weight": drawn(KV_HEADS * HEAD_WIDTH, WIDTH),
            f"{layer}.self_attn.v_proj.weight": drawn(KV_HEADS * HEAD_WIDTH, WIDTH),
            f"{layer}.self_attn.o_proj.weight": drawn(WIDTH, HEADS * HEAD_WIDTH),
            f"{layer}.mlp.gate_proj.weight": drawn(INNER, WIDTH),
            f"{layer}.mlp.up_proj.weight": drawn(INNER, WIDTH),
            f"{layer}.mlp.down_proj.weight": drawn(WIDTH, INNER),
        }
    return found
