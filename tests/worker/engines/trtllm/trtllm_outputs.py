"""What TensorRT-LLM's engine gives out, as its package spells it: that can't be imported without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Logprob:
    """Of one token."""

    logprob: float


@dataclass
class Completion:
    """The fields of its `CompletionOutput` that are read, of one step."""

    token_ids_diff: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs_diff: list[Any] = field(default_factory=list)
