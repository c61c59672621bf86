"""Tokens through an interface of texts: what mistral.rs is asked, and which tokens its chunks are of. Pure.

mistral.rs takes a prompt as text and makes text. With log probabilities on, each chunk
is one token and names its bytes, and the best candidates by their ids: so ids are known,
and `engine.py` is a tokens engine. Two tokens of the same bytes can't be told apart
where neither is among the candidates; then the text is right and the id may be the other's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dynamo.engine_catalog import EngineName
from dynamo.llm.protocols import LOG_PROBS, TOP_LOGPROBS, PreprocessedRequest
from dynamo.llm.tokenizer.tokenizer import Tokenizer
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.worker.engine import GUIDED
from dynamo.worker.engines.constraints.checks import tight
from dynamo.worker.engines.support.request_checks import UNKNOWN_LOGPROB, logit_bias, refuse_prompt_scores
from dynamo.worker.engines.support.sampling import sampling_of

_CANDIDATES: Final = 4
"""Alternatives asked for where tokens are drawn: the drawn one is mostly among them."""
_BANNED: Final = -1000.0
"""A logit bias that no token survives."""


def plain_tokenizer(file: bytes) -> bytes:
    """Make a `tokenizer.json` that turns texts into just their tokens and back: nothing put before, nothing taken away.

    A prompt's ids come with their BOS, and with the space that some models put before a text: neither may come
    twice. The vocabulary stays unread: a large one takes seconds.
    """
    parts = msgspec.json.decode(file, type=dict[str, msgspec.Raw])
    normalizer, pre_tokenizer, decoder = (
        msgspec.json.decode(parts.get(name, b"null")) for name in ("normalizer", "pre_tokenizer", "decoder")
    )
    normalizer = _without(normalizer, "normalizers", "Prepend")
    decoder = _without(decoder, "decoders", "Strip")
    for part in (pre_tokenizer, decoder):
        for step in _steps(part):
            if step.get("type") == "Metaspace":
                step["prepend_scheme"] = "never"
                step.pop("add_prefix_space", None)
            elif step.get("type") == "ByteLevel":
                step["add_prefix_space"] = False
    plain = {"post_processor": None, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder}
    return msgspec.json.encode({**parts, **plain})


def _without(part: Any, list_name: str, kind: str) -> Any:
    if not isinstance(part, dict):
        return part
    if part.get("type") == kind:
        return None
    if isinstance(part.get(list_name), list):
        part[list_name] = [step for step in part[list_name] if step.get("type") != kind]
    return part


def _steps(part: Any) -> list[dict[str, Any]]:
    if not isinstance(part, dict):
        return []
    return [part, *part.get("pretokenizers", ()), *part.get("decoders", ())]


def prompt_text(tokenizer: Tokenizer, ids: Sequence[int], answered: int) -> str:
    """Return the text of which the engine's tokenizer makes these ids again; `InvalidArgument` where there is none.

    Of an answer that goes on (its last `answered` ids), the text counts: an engine may have cut it into other
    tokens than a tokenizer would.
    """
    try:
        text = tokenizer.bytes_of(ids).decode()
    except UnicodeDecodeError:
        text = None
    if text is None or (tokenizer.encode(text, add_special=False) != list(ids) and not answered):
        raise InvalidArgument(
            "engine mistralrs takes text, and these token ids are not those that the model's tokenizer makes of their"
            " text; send the text, or use another engine"
        )
    return text


def wishes(request: PreprocessedRequest) -> dict[str, Any]:
    """Return what all calls of a request have in common, as arguments of mistral.rs' request, but for prompt and model.

    `InvalidArgument` for what can't be asked.
    """
    refuse_prompt_scores(request, EngineName.MISTRALRS)
    sampling = request.sampling_options
    greedy = not sampling.temperature or sampling.top_k == 1
    if sampling.seed is not None and not greedy:
        raise InvalidArgument("seed: mistral.rs has one for all requests (engine argument seed), none per request")
    arguments = sampling_of(EngineName.MISTRALRS, sampling)
    if sampling.top_k is not None and sampling.top_k > 0:
        arguments["top_k"] = sampling.top_k
    return arguments | guided(sampling.guided_decoding) | {
        "logit_bias": logit_bias(request) or None,
        "logprobs": True,
        "top_logprobs": max(request.output_options.logprobs or 1, 1 if greedy else _CANDIDATES),
        "stream": True,
    }  # fmt: skip


def options(wishes: dict[str, Any], max_tokens: int, banned: Sequence[int] = ()) -> dict[str, Any]:
    """Return the arguments of one call; `banned` tokens are never made."""
    if not banned:
        return {**wishes, "max_tokens": max_tokens}
    bias = {**(wishes["logit_bias"] or {}), **dict.fromkeys(banned, _BANNED)}
    return {**wishes, "max_tokens": max_tokens, "logit_bias": bias}


def guided(wanted: dict[str, Any] | None) -> dict[str, Any]:
    """Return what constrains the output, in mistral.rs' words; its grammars are Lark's."""
    if not wanted:
        return {}
    if "json" in wanted:
        schema = wanted["json"]
        read = json.loads(schema) if isinstance(schema, str) else schema  # it was read when it was compiled
        return {"grammar": json.dumps(tight(read)), "grammar_type": "json_schema"}
    if "regex" in wanted:
        return {"grammar": wanted["regex"], "grammar_type": "regex"}
    if "choice" in wanted:
        return {"grammar": "|".join(map(re.escape, wanted["choice"])), "grammar_type": "regex"}
    if "grammar" in wanted:
        return {"grammar": wanted["grammar"], "grammar_type": "lark"}
    raise InvalidArgument(f"guided decoding by {', '.join(sorted(wanted))}: mistralrs takes {', '.join(GUIDED)}")


class TokenReader:
    """Finds the tokens of one model in chunks. For the threads of an engine: its index is made once, whoever does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._index: dict[bytes, int] | None = None

    def token(self, logprob: Any) -> int:
        """Return the id that a chunk's `logprobs` are of; `EngineError` where the model has no such token."""
        text = bytes(logprob.bytes or logprob.token.encode())
        for candidate in logprob.top_logprobs:
            if self._tokenizer.token_bytes(candidate.token) == text:
                return int(candidate.token)
        token_id = self._by_bytes().get(text)
        if token_id is None:
            raise EngineError(f"mistral.rs made {logprob.token!r}, which is no token of the model's tokenizer")
        return token_id

    def _by_bytes(self) -> dict[bytes, int]:
        if self._index is None:
            size, of = self._tokenizer.vocab_size, self._tokenizer.token_bytes
            self._index = {of(token): token for token in reversed(range(size))}
        return self._index


def extras_of(logprob: Any, wanted: int | None) -> dict[str, Any] | None:
    """Return what else is told of one token; None for a token without a `logprob` stands for "not known"."""
    if wanted is None:
        return None
    if logprob is None:
        return {LOG_PROBS: [UNKNOWN_LOGPROB], TOP_LOGPROBS: [[]]}
    best = [[top.token, top.logprob] for top in logprob.top_logprobs]
    return {LOG_PROBS: [logprob.logprob], TOP_LOGPROBS: [best[:wanted]]}
