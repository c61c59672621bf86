"""A model as it lies on a disk, described by its card."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dynamo.llm.model_card import ModelCard
from dynamo.llm.tokenizer import load_tokenizer
from dynamo.llm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine."""

    card: ModelCard
    files: dict[str, Path] = field(default_factory=dict)
    """By digest: what the worker serves to frontends."""
    path: Path | None = None
    """What the engine loads: the folder or the GGUF file."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Return its tokenizer, opened once for all engines of a process. Slow the first time: ask in a thread."""
        return load_tokenizer(self.card, self.files)
