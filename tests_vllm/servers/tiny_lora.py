"""An adapter (LoRA) of the tiny model, as PEFT writes them: random numbers from a fixed seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file
from tests_vllm.tiny_model import HEAD_WIDTH, HEADS, LAYERS, WIDTH

RANK: Final = 8
QUERY: Final = HEADS * HEAD_WIDTH


def write_adapter(folder: Path) -> Path:
    """Write an adapter of the query and output projections; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", "bias": "none",
        "r": RANK, "lora_alpha": 2 * RANK, "lora_dropout": 0.0, "target_modules": ["q_proj", "o_proj"],
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    random = np.random.default_rng(11)
    weights: dict[str, Any] = {}
    for layer in range(LAYERS):
        for part, before, after in (("q_proj", WIDTH, QUERY), ("o_proj", QUERY, WIDTH)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            weights[f"{name}.lora_A.weight"] = random.standard_normal((RANK, before)).astype(np.float32)
            weights[f"{name}.lora_B.weight"] = random.standard_normal((after, RANK)).astype(np.float32)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder
