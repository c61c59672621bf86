"""Text between a prompt and a `suffix`, for models that were trained to write it: their own tokens say what is what.

Such models have three tokens of their own, known by their text. A prompt is written prefix first, as all of them read
it: PREFIX, the prompt, SUFFIX, what follows, MIDDLE. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynamo.llm.tokenizer.tokenizer import Tokenizer
from dynamo.runtime.errors import InvalidArgument

MARKERS: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)
"""Of Qwen and CodeGemma, StarCoder, Granite, DeepSeek and Code Llama."""


def infilled(tokenizer: Tokenizer, model: str, prefix: Sequence[int], suffix: Sequence[int]) -> list[int]:
    """Return the prompt that has a model write what stands between; `InvalidArgument` for one that can't."""
    for texts in MARKERS:
        begins, follows, middle = map(tokenizer.token_id, texts)
        if begins is None or follows is None or middle is None:
            continue
        lead = tokenizer.encode("", True)
        at = len(lead) if list(prefix[: len(lead)]) == lead else 0
        return [*prefix[:at], begins, *prefix[at:], follows, *suffix, middle]
    raise InvalidArgument(f"suffix: the model '{model}' has no tokens for text between a prompt and a suffix")
