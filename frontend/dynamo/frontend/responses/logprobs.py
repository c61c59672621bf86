"""Log probabilities in OpenAI's two forms, from what engines send. Pure.

Engines send ids and numbers; the texts are made here. A token that is not whole
characters on its own shows a replacement character in `token` and its bytes in `bytes`.
"""

from __future__ import annotations

from typing import Any

from dynamo.llm.protocols import LOG_PROBS, TOP_LOGPROBS
from dynamo.llm.tokenizer.tokenizer import Tokenizer
from dynamo.runtime.errors import InvalidArgument

Entry = tuple[int, float, list[list[Any]], int]
"""Token id, log probability, alternatives `[id, logprob]`, and where its text starts."""


def entries(ids: list[int], extras: dict[str, Any] | None, offsets: list[int]) -> list[Entry]:
    """Return what the engine says of `ids`; `InvalidArgument` where it says nothing."""
    chosen = (extras or {}).get(LOG_PROBS)
    if chosen is None or len(chosen) < len(ids):
        raise InvalidArgument("logprobs: the engine of this model gives no log probabilities; ask without them.")
    tops = (extras or {}).get(TOP_LOGPROBS) or [[] for _ in ids]
    return [(token, float(lp), top, at) for token, lp, top, at in zip(ids, chosen, tops, offsets, strict=False)]


def chat_logprobs(tokenizer: Tokenizer, rows: list[Entry], top: int) -> dict[str, Any]:
    """Return `choices[].logprobs` of a chat answer."""
    content = []
    for token, logprob, others, _ in rows:
        alternatives = [_one(tokenizer, int(other), float(lp)) for other, lp in others[:top]]
        content.append({**_one(tokenizer, token, logprob), "top_logprobs": alternatives})
    return {"content": content, "refusal": None}


def _one(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


def completion_logprobs(
    tokenizer: Tokenizer, rows: list[tuple[int, float | None, list[list[Any]], int]], top: int
) -> dict[str, Any]:
    """Return `choices[].logprobs` of a completion answer; an echoed prompt's first token has none."""
    texts = [_text(tokenizer, token) for token, _, _, _ in rows]
    tops = []
    for (_, logprob, others, _), text in zip(rows, texts, strict=True):
        named = {_text(tokenizer, int(other)): float(lp) for other, lp in others[:top]}
        tops.append(None if logprob is None else {**named, text: logprob} if top else None)
    return {
        "tokens": texts,
        "token_logprobs": [logprob for _, logprob, _, _ in rows],
        "top_logprobs": tops if top else None,
        "text_offset": [at for _, _, _, at in rows],
    }


def _text(tokenizer: Tokenizer, token: int) -> str:
    raw = tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)  # as OpenAI's legacy API writes them
