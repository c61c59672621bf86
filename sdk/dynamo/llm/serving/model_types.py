"""What a registered model is: its OpenAI surfaces, what its program takes, its part of the work. Names of all versions.

`ModelType` is of flags: 0.3's programs say `Backend`, `Chat` or `Completion` and mean by it what they take, too; since
0.4 that is `ModelInput`'s to say, and since 1.0 `WorkerType` says the part of the work.
"""

from __future__ import annotations

import enum
from typing import Final


class ModelType(enum.Flag):
    """The OpenAI routes that a model answers; `|` joins them.

    `Backend` and `Completion` are of 0.3; `Prefill` is of 0.8, where it said what `WorkerType.Prefill` says.
    """

    Empty = 0
    Chat = 1
    Completions = 2
    Completion = 2
    Embedding = 4
    TensorBased = 8
    Prefill = 16
    Images = 32
    Audios = 64
    Videos = 128
    Realtime = 256
    Classify = 512
    Pooling = 1024
    Rerank = 2048
    Backend = 4096

    def supports_chat(self) -> bool:
        """Tell whether `/v1/chat/completions` is among them."""
        return bool(self & (ModelType.Chat | ModelType.Backend))

    def supports_embedding(self) -> bool:
        """Tell whether `/v1/embeddings` is among them."""
        return ModelType.Embedding in self

    def supports_classify(self) -> bool:
        """Tell whether `/v1/classify` is among them."""
        return ModelType.Classify in self

    def supports_pooling(self) -> bool:
        """Tell whether `/v1/pooling` is among them."""
        return ModelType.Pooling in self

    def supports_rerank(self) -> bool:
        """Tell whether `/v1/rerank` is among them."""
        return ModelType.Rerank in self

    def __str__(self) -> str:
        """Write it as NVIDIA Dynamo does: `chat,completions`."""
        return ",".join(_WORDS.get(kind, (kind.name or "").lower()) for kind in self)


_WORDS: Final = {ModelType.TensorBased: "tensor"}


class ModelInput(enum.Enum):
    """Form of what a model's `generate` takes."""

    Text = "text"
    """The OpenAI body, as the client sent it; it yields OpenAI chunks."""
    Tokens = "tokens"
    """A dict with `token_ids`; it yields dicts with `token_ids`."""
    Tensor = "tensor"
    """Not served here."""


class WorkerType(enum.Enum):
    """The part of the work that a worker does."""

    Prefill = "prefill"
    Decode = "decode"
    Encode = "encode"
    """Not served here."""
    Aggregated = "aggregated"
