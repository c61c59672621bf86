"""What llama.cpp's server core is asked and what its chunks say. Pure; `engine.py` is the shell.

Both are JSON: the core takes and gives bytes, of which only what is wanted is read. Its last chunk repeats the prompt
and all settings, which as Python's objects would cost more than the rest of a short request.

A chunk names the token that completed its text: in its "verbose" part, which costs nothing, or beside its log
probabilities, where those are wanted (for them llama.cpp sorts the vocabulary once per token). Tokens that ended in
the middle of a character were held back by llama.cpp and are never named: they are rebuilt from the bytes that they
must have been (exact for byte-fallback tokens, which are the ones that do so).

What constrains an answer is told as Lark behind a first line that says so (`llguidance`). llama.cpp drops a Lark
grammar, and so a JSON schema, that it can't compile, and answers without it: an answer that doesn't keep to its schema
is worse than none. So each is compiled before, by the same library, elsewhere (`constraints/pool.py`). What comes
without having been there is compiled here: engines may be used without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from dynamo.engine_catalog import EngineName
from dynamo.llm.protocols import (
    CACHED_TOKENS,
    EOS,
    LENGTH,
    LOG_PROBS,
    TOP_LOGPROBS,
    PreprocessedRequest,
)
from dynamo.runtime.errors import DynamoException, EngineError, InvalidArgument
from dynamo.worker.engines.constraints.checks import COMPILED, bounded, lark_of, try_out
from dynamo.worker.engines.support.request_checks import UNKNOWN_LOGPROB, logit_bias
from dynamo.worker.engines.support.sampling import sampling_of

_ALWAYS: Final = {"stream": True, "cache_prompt": True}
_LONG: Final = {"return_progress": True}
_SHORT: Final = {"timings_per_token": True}
"""Both name the prompt tokens that came from the cache. Progress comes between the steps of a long prompt, where a
cancel can be told; for a short one its chunks would hold up the first token."""
_NAMED: Final = {"verbose": True, "return_tokens": True}
_REASONS: Final = {"stop": EOS, "length": LENGTH}


class CompletionPhase(NamedTuple):
    """One call of the server core."""

    max_tokens: int
    ignore_eos: bool
    last: bool = True
    """Whether its EOS is the answer's."""


def wishes(request: PreprocessedRequest) -> dict[str, Any]:
    """Return what all calls of a request have in common; `InvalidArgument` for what can't be asked."""
    logprobs = request.output_options.logprobs
    body = sampling_of(EngineName.LLAMACPP, request.sampling_options)
    if bias := logit_bias(request):
        body["logit_bias"] = [[token, value] for token, value in bias.items()]
    return _ALWAYS | body | (_NAMED if logprobs is None else {"logprobs": max(1, logprobs)})


def completion(
    wishes: dict[str, Any], tokens: Sequence[int], phase: CompletionPhase, step: int, grammar: str | None = None
) -> bytes:
    """Return the body of one call to a core that computes `step` tokens of a prompt at once."""
    body = {
        **wishes, **(_SHORT if len(tokens) <= step else _LONG),
        "prompt": tokens, "n_predict": phase.max_tokens, "ignore_eos": phase.ignore_eos,
    }  # fmt: skip
    if grammar is not None:
        body["grammar"] = grammar
    return msgspec.json.encode(body)


class Fault(msgspec.Struct):
    """An error, as llama.cpp tells it."""

    message: str = "it does not say what went wrong"
    code: int | None = None

    def exception(self) -> DynamoException:
        """Return the error: a 400 is the caller's mistake, anything else the engine's."""
        return InvalidArgument(self.message) if self.code == 400 else EngineError(f"llama.cpp: {self.message}")


class _Likely(msgspec.Struct, gc=False):
    id: int
    logprob: float


class _Named(msgspec.Struct):
    id: int
    logprob: float
    bytes: list[int]
    top_logprobs: list[_Likely] = []


class _Logprobs(msgspec.Struct):
    content: list[_Named] = []


class _Choice(msgspec.Struct):
    text: str
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Verbose(msgspec.Struct):
    tokens: list[int]


class _Progress(msgspec.Struct, gc=False):
    cache: int


class _Timings(msgspec.Struct, gc=False):
    cache_n: int = 0


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details = msgspec.field(default_factory=_Details)


class Chunk(msgspec.Struct):
    """Chunk of a stream; one with an `error` has no choices."""

    choices: list[_Choice] = []
    verbose: _Verbose | None = msgspec.field(name="__verbose", default=None)
    prompt_progress: _Progress | None = None
    timings: _Timings | None = None
    usage: _Usage | None = None
    error: Fault | None = None


_CHUNK: Final = msgspec.json.Decoder(Chunk)


def read_chunk(data: bytes) -> Chunk:
    """Read one chunk.

    `EngineError` where it has another shape: then this isn't the llama.cpp that this was written for.
    """
    try:
        chunk = _CHUNK.decode(data)
    except msgspec.MsgspecError as error:
        raise EngineError(f"llama.cpp sent what could not be read ({error}): {data[:200]!r}") from error
    if chunk.error is not None:
        raise chunk.error.exception()
    if not chunk.choices:
        raise EngineError(f"llama.cpp sent no choices: {data[:200]!r}")
    return chunk


class TokenBytes(Protocol):
    """Vocabulary, as far as it is asked here."""

    def token_bytes(self, token_id: int, /) -> bytes: ...

    def byte_id(self, byte: int, /) -> int: ...


class ChunkTokens(NamedTuple):
    """The tokens of one chunk, and the end where it is the last."""

    ids: list[int]
    extras: dict[str, Any] | None
    finish: str | None


class ChunkReader:
    """Reads the chunks of one request into pieces."""

    def __init__(self, vocabulary: TokenBytes, logprobs: int | None, cached: int | None = None) -> None:
        """Begin; `cached`: prompt tokens from the cache, where llama.cpp will tell of what was just computed."""
        self._vocabulary, self._logprobs = vocabulary, logprobs
        self._cached = cached
        self._told = False

    def read(self, chunk: Chunk, most: int | None = None) -> ChunkTokens:
        """Return what `chunk` adds, of its tokens `most` at most."""
        choice = chunk.choices[0]
        finish = choice.finish_reason
        extras: dict[str, Any] = {}
        if self._logprobs is None:
            ids = self._tokens(choice, chunk)[:most]
        else:
            ids = self._likely(choice, self._logprobs, extras, most)
        cached = self._cached_tokens(chunk)
        if cached is not None and not self._told and (ids or finish):
            self._told = True
            extras[CACHED_TOKENS] = cached
        return ChunkTokens(ids, extras or None, None if finish is None else _REASONS.get(finish, LENGTH))

    def _tokens(self, choice: _Choice, chunk: Chunk) -> list[int]:
        if chunk.prompt_progress is not None:  # names a token, and there is none yet
            return []
        if chunk.verbose is None:
            raise EngineError("llama.cpp doesn't name its tokens")
        named = chunk.verbose.tokens
        return [*self._held_back(named[0], choice.text.encode()), *named] if named else named

    def _likely(self, choice: _Choice, best: int, extras: dict[str, Any], most: int | None) -> list[int]:
        """Return the tokens likewise, and put what is known of how likely they were into `extras`."""
        ids: list[int] = []
        probs: list[float] = []
        tops: list[list[list[float]]] = []
        for entry in choice.logprobs.content if choice.logprobs is not None else ():
            held = self._held_back(entry.id, bytes(entry.bytes))
            ids += [*held, entry.id]
            probs += [*[UNKNOWN_LOGPROB] * len(held), entry.logprob]
            tops += [*[[] for _ in held], [[top.id, top.logprob] for top in entry.top_logprobs][:best]]
        ids = ids[:most]
        if ids:
            extras.update({LOG_PROBS: probs[: len(ids)], TOP_LOGPROBS: tops[: len(ids)]})
        return ids

    def _cached_tokens(self, chunk: Chunk) -> int | None:
        """Return prompt tokens from the cache.

        The first report counts, since a second phase finds the first one's answer.
        """
        if self._cached is None:
            if chunk.prompt_progress is not None:
                self._cached = chunk.prompt_progress.cache
            elif chunk.timings is not None:
                self._cached = chunk.timings.cache_n
            elif chunk.usage is not None:
                self._cached = chunk.usage.prompt_tokens_details.cached_tokens
        return self._cached

    def _held_back(self, token: int, text: bytes) -> list[int]:
        """Return ids of the tokens whose bytes the text of a chunk has besides its own token's."""
        if text.isascii():
            return []
        own = self._vocabulary.token_bytes(token)
        before = text[: len(text) - len(own)] if own and text.endswith(own) else b""
        return [self._vocabulary.byte_id(byte) for byte in before]


def grammar_of(wanted: dict[str, Any] | None) -> str | None:
    """Return the grammar to ask for; `InvalidArgument` says what is wrong with what was wanted.

    May take milliseconds.
    """
    if not wanted:
        return None
    if isinstance(compiled := wanted.get(COMPILED), str):
        return compiled
    grammar = lark_of(wanted)
    try_out(bounded(wanted), grammar)
    return grammar
