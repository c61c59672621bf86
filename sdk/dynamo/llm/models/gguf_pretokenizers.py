"""How byte-level models cut text into words, by the name that a GGUF file gives it.

GGUF names the splitting (`tokenizer.ggml.pre`) instead of holding it; the expressions are
those that the models' own tokenizer files hold. A name that isn't here is refused: a
near miss would give a model tokens that it was never trained on.
"""

from __future__ import annotations

import difflib
from typing import Any, Final

from dynamo.runtime.errors import InvalidArgument

_TAIL: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL_SLASH: Final = _TAIL.replace(r"[\r\n]*", r"[\r\n/]*", 1)
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
QWEN2: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_CASED: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_TEKKEN: Final = _CASED % ("", "") + r"|\p{N}" + _TAIL_SLASH
_GPT4O: Final = _CASED % (_CONTRACTIONS + "?", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _TAIL_SLASH
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI: Final = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
) + _TAIL
_DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""One after the other, each within what the one before left."""
_QWEN35: Final = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_GPT2: Final = "gpt2"
_DIGITS: Final = "digits"
NAMES: Final[dict[str, str | tuple[str, ...]]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "jina-es", "jina-de", "mpt", "olmo", "gigachat"), _GPT2),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2", "dbrx", "smaug-bpe"), LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), QWEN2),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    **dict.fromkeys(("glm4", "chatglm-bpe"), LLAMA3),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    "kimi-k2": KIMI,
    "qwen35": _QWEN35,
}
_NFC: Final = ("qwen2", "deepseek-r1-qwen", "qwen35")
"""These models' own files compose characters first; llama.cpp leaves that out."""


def pre_tokenizer(name: str | None) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return `(normalizer, pre_tokenizer)` in the form of a `tokenizer.json`."""
    kind = NAMES.get(name or "")
    if kind is None:
        raise InvalidArgument(_unknown(name))
    normalizer = {"type": "NFC"} if name in _NFC else None
    if kind == _GPT2:
        return normalizer, _bytes(use_regex=True)
    if kind == _DIGITS:
        return normalizer, _sequence({"type": "Digits", "individual_digits": True}, _bytes(use_regex=True))
    return normalizer, _sequence(
        *(
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in ((kind,) if isinstance(kind, str) else kind)
        ),
        _bytes(use_regex=False),
    )


def _bytes(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _unknown(name: str | None) -> str:
    what = "does not name its pre-tokenizer (tokenizer.ggml.pre)"
    if name:
        name = name[:100]
        close = difflib.get_close_matches(name, NAMES, n=1)
        what = f"names the pre-tokenizer {name!r}, which is not known here" + (
            f" (the nearest known one is {close[0]!r})" if close else ""
        )
    return f"the GGUF file {what}: use the model's folder with a tokenizer.json instead"
