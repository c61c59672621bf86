"""What llama.cpp's server core is asked and what its chunks say. Pure; `llamacpp.py` is the shell.

A chunk names the token that completed its text: in its "verbose" part, which costs nothing, or beside its log
probabilities, where those are wanted (for them llama.cpp sorts the vocabulary once per token). Tokens that ended in
the middle of a character were held back by llama.cpp and are never named: they are rebuilt from the bytes that they
must have been (exact for byte-fallback tokens, which are the ones that do so).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from dynamo.llm.protocols import (
    CACHED_TOKENS,
    EOS,
    LENGTH,
    LOG_PROBS,
    TOP_LOGPROBS,
    PreprocessedRequest,
)
from dynamo.runtime.errors import DynamoException, EngineError, InvalidArgument
from dynamo.worker.engines.conditions import UNKNOWN_LOGPROB, logit_bias

_SAMPLING: Final = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
}  # fmt: skip
_NAMED: Final = {"verbose": True, "return_tokens": True}
_REASONS: Final = {"stop": EOS, "length": LENGTH}


class Phase(NamedTuple):
    """One call of the server core."""

    max_tokens: int
    ignore_eos: bool
    last: bool = True
    """Whether its EOS is the answer's."""


def completion(
    request: PreprocessedRequest, token_ids: Sequence[int], phase: Phase, grammar: str | None = None
) -> dict[str, Any]:
    """The body of one call."""
    logprobs = request.output_options.logprobs
    body = {
        "prompt": list(token_ids), "n_predict": phase.max_tokens, "ignore_eos": phase.ignore_eos,
        "stream": True, "cache_prompt": True, "return_progress": True,
    }  # fmt: skip
    body |= _NAMED if logprobs is None else {"logprobs": max(1, logprobs)}
    if grammar is not None:
        body["grammar"] = grammar
    return body | _sampling(request)


def _sampling(request: PreprocessedRequest) -> dict[str, Any]:
    given = {theirs: getattr(request.sampling_options, ours) for ours, theirs in _SAMPLING.items()}
    body = {name: value for name, value in given.items() if value is not None}
    if bias := logit_bias(request):
        body["logit_bias"] = [[token, value] for token, value in bias.items()]
    return body


def error_of(chunk: Mapping[str, Any]) -> DynamoException | None:
    """The error that a chunk carries."""
    error = chunk.get("error")
    if error is None:
        return None
    message = str(error.get("message", error))
    return InvalidArgument(message) if error.get("code") == 400 else EngineError(f"llama.cpp: {message}")


class TokenBytes(Protocol):
    """What is asked of a vocabulary."""

    def token_bytes(self, token_id: int, /) -> bytes: ...

    def byte_id(self, byte: int, /) -> int: ...


class Piece(NamedTuple):
    """The tokens of one chunk, and the end where it is the last."""

    ids: list[int]
    extras: dict[str, Any] | None
    finish: str | None


class ChunkReader:
    """Reads the chunks of one request into pieces."""

    def __init__(self, vocabulary: TokenBytes, logprobs: int | None) -> None:
        self._vocabulary, self._logprobs = vocabulary, logprobs
        self._cached: int | None = None
        self._told = False

    def read(self, chunk: Mapping[str, Any], most: int | None = None) -> Piece:
        """Return what `chunk` adds, of its tokens `most` at most.

        `KeyError`, `IndexError` or `TypeError`: it has another shape.
        """
        choice = chunk["choices"][0]
        finish = choice.get("finish_reason")
        extras: dict[str, Any] = {}
        if self._logprobs is None:
            ids = self._tokens(choice, chunk)[:most]
        else:
            ids = self._likely(choice, self._logprobs, extras, most)
        cached = self._cached_tokens(chunk)
        if cached is not None and not self._told and (ids or finish):
            self._told = True
            extras[CACHED_TOKENS] = cached
        return Piece(ids, extras or None, None if finish is None else _REASONS.get(finish, LENGTH))

    def _tokens(self, choice: Mapping[str, Any], chunk: Mapping[str, Any]) -> list[int]:
        if "prompt_progress" in chunk:  # names a token, and there is none yet
            return []
        named = chunk["__verbose"]["tokens"]
        return [*self._held_back(named[0], choice["text"].encode()), *named] if named else named

    def _likely(self, choice: Mapping[str, Any], best: int, extras: dict[str, Any], most: int | None) -> list[int]:
        """Likewise, and what is known of how likely they were, into `extras`."""
        ids: list[int] = []
        probs: list[float] = []
        tops: list[list[list[float]]] = []
        for entry in (choice.get("logprobs") or {}).get("content", []):
            held = self._held_back(entry["id"], bytes(entry["bytes"]))
            ids += [*held, entry["id"]]
            probs += [*[UNKNOWN_LOGPROB] * len(held), entry["logprob"]]
            tops += [*[[] for _ in held], [[top["id"], top["logprob"]] for top in entry.get("top_logprobs", ())][:best]]
        ids = ids[:most]
        if ids:
            extras.update({LOG_PROBS: probs[: len(ids)], TOP_LOGPROBS: tops[: len(ids)]})
        return ids

    def _cached_tokens(self, chunk: Mapping[str, Any]) -> int | None:
        """Prompt tokens from the cache: the first report counts, since a second phase finds the first one's answer."""
        if self._cached is None:
            if progress := chunk.get("prompt_progress"):
                self._cached = progress["cache"]
            elif usage := chunk.get("usage"):
                self._cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return self._cached

    def _held_back(self, token: int, text: bytes) -> list[int]:
        """Ids of the tokens whose bytes the text of a chunk has besides its own token's."""
        if text.isascii():
            return []
        own = self._vocabulary.token_bytes(token)
        before = text[: len(text) - len(own)] if own and text.endswith(own) else b""
        return [self._vocabulary.byte_id(byte) for byte in before]
