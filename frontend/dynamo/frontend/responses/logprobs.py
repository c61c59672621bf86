"""Log probabilities in OpenAI's two forms, from what engines send; only for answers that want them. Pure.

Engines send ids and numbers; the texts are made here. A token that is not whole
characters on its own shows a replacement character in `token` and its bytes in `bytes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo.llm.protocols import LOG_PROBS, PROMPT_LOGPROBS, PROMPT_TOP_LOGPROBS, TOP_LOGPROBS
from dynamo.llm.tokenizer.tokenizer import Tokenizer
from dynamo.runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from dynamo.frontend.generation.choice import Choice
    from dynamo.frontend.responses.response import ResponseOptions

Entry = tuple[int, float, list[list[Any]], int]
"""Token id, log probability, alternatives `[id, logprob]`, and where its text starts."""


def entries(ids: list[int], extras: dict[str, Any] | None, offsets: list[int]) -> list[Entry]:
    """Return what the engine says of `ids`; `InvalidArgument` where it says nothing."""
    chosen = (extras or {}).get(LOG_PROBS)
    if chosen is None or len(chosen) < len(ids):
        raise InvalidArgument("logprobs: the engine of this model gives no log probabilities; ask without them.")
    tops = (extras or {}).get(TOP_LOGPROBS) or [[] for _ in ids]
    return [(token, float(lp), top, at) for token, lp, top, at in zip(ids, chosen, tops, offsets, strict=False)]


def chat_logprobs(tokenizer: Tokenizer, rows: list[Entry], top: int, *, as_ids: bool = False) -> dict[str, Any]:
    """Return `choices[].logprobs` of a chat answer; `as_ids`: tokens are named by their ids."""
    content = []
    for token, logprob, others, _ in rows:
        alternatives = [_one(tokenizer, int(other), float(lp), as_ids) for other, lp in others[:top]]
        content.append({**_one(tokenizer, token, logprob, as_ids), "top_logprobs": alternatives})
    return {"content": content, "refusal": None}


def _one(tokenizer: Tokenizer, token: int, logprob: float, as_ids: bool) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    name = _by_id(tokenizer, token) if as_ids else raw.decode("utf-8", "replace")
    return {"token": name, "logprob": logprob, "bytes": list(raw)}


def _by_id(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's name in vLLM's form, whatever its text is."""
    return f"token_id:{token}"


def completion_logprobs(
    tokenizer: Tokenizer,
    rows: list[tuple[int, float | None, list[list[Any]], int]],
    top: int,
    *,
    as_ids: bool = False,
) -> dict[str, Any]:
    """Return `choices[].logprobs` of a completion answer; an echoed prompt's first token has none."""
    name = _by_id if as_ids else _text
    texts = [name(tokenizer, token) for token, _, _, _ in rows]
    tops = []
    for (_, logprob, others, _), text in zip(rows, texts, strict=True):
        named = {name(tokenizer, int(other)): float(lp) for other, lp in others[:top]}
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


class Logprobs:
    """Makes the `logprobs` objects of one answer."""

    def __init__(self, options: ResponseOptions) -> None:
        self._options = options

    def of(
        self, choice: Choice, ids: list[int], offsets: list[int], extras: dict[str, Any] | None, first: bool
    ) -> list[Any]:
        """Return what the engine says of these tokens, an echoed prompt's first."""
        index = choice.index
        rows: list[Any] = self._echoed(index, extras) if first else []
        shift = len(self._options.echo[index]) if self._options.echo else 0
        rows += entries(ids, extras, [at + shift for at in offsets]) if ids else []
        return rows

    def render(self, rows: list[Any]) -> dict[str, Any] | None:
        """Return the `logprobs` of an answer or of a chunk; None for an engine that takes text."""
        options = self._options
        if options.tokenizer is None or options.logprobs is None:
            return None
        make = chat_logprobs if options.chat else completion_logprobs
        return make(options.tokenizer, rows, options.logprobs, as_ids=options.named_by_ids)

    def _echoed(self, index: int, extras: dict[str, Any] | None) -> list[Any]:
        options = self._options
        if not options.echo or options.tokenizer is None:
            return []
        ids, logprobs = options.prompt_ids[index], (extras or {}).get(PROMPT_LOGPROBS)
        if logprobs is None:
            raise InvalidArgument(
                "echo: the engine of this model gives no log probabilities of the prompt; ask without."
            )
        tops = (extras or {}).get(PROMPT_TOP_LOGPROBS) or [None] * len(ids)
        rows: list[Any] = []
        at = 0
        for token, logprob, top in zip(ids, logprobs, tops, strict=False):
            rows.append((token, logprob, top or [], at))
            at += len(options.tokenizer.token_bytes(token).decode("utf-8", "replace"))
        return rows
