"""A model as it lies on a disk, described by its card."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dynamo.llm.model_card import ModelCard


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine."""

    card: ModelCard
    files: dict[str, Path] = field(default_factory=dict)
    """By digest: what the worker serves to frontends."""
    path: Path | None = None
    """What the engine loads: the folder or the GGUF file."""
