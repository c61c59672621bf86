"""That kernel, in torch: everything else in `make test-sglang` is SGLang's own."""

from __future__ import annotations

from typing import Any

import torch


def rotary_embedding(positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool) -> None:
    """Turn queries and keys in place; `cos_sin_cache` has a row per position, half of it cosines, half sines."""
    cos, sin = (part.unsqueeze(1).to(query.dtype) for part in cos_sin_cache[positions].chunk(2, dim=-1))
    for turned in (query, key):
        heads = turned.view(turned.shape[0], -1, head_size)
        first, second = heads.chunk(2, dim=-1) if is_neox else (heads[..., ::2], heads[..., 1::2])
        both = (first * cos - second * sin, second * cos + first * sin)
        heads.copy_(torch.cat(both, dim=-1) if is_neox else torch.stack(both, dim=-1).flatten(-2))
