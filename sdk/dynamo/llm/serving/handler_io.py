"""What a user's `generate` is given and yields: plain dicts of NVIDIA Dynamo's two forms.

Its requests have every one of NVIDIA Dynamo's names; what it yields becomes deltas, or a `Mistake` that says what is
meant. Pure, called once per piece; for programs that register a model, and for the worker's Python files."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from dynamo.llm.protocols import (
    CACHED_TOKENS,
    CANCELLED,
    COMPLETION_TOKENS,
    DISAGGREGATED_PARAMS,
    EOS,
    LENGTH,
    LOG_PROBS,
    PROMPT_LOGPROBS,
    PROMPT_TOKENS,
    STOP,
    STOP_REASON,
    TOP_LOGPROBS,
    PreprocessedRequest,
    TextRequest,
)  # fmt: skip
from dynamo.runtime.errors import EngineError

CHUNK: Final = '{"choices": [{"index": 0, "delta": {"content": "text"}, "finish_reason": None}]}'
OUTPUT: Final = '{"token_ids": [1, 2], "finish_reason": None}'
VECTORS: Final = '{"embeddings": [[0.1, 0.2], [0.3, 0.4]], "prompt_tokens": 5}'
FINISHES: Final = {
    "stop": STOP, "eos": EOS, "length": LENGTH, "cancelled": CANCELLED, "abort": CANCELLED,
    "content_filter": STOP, "tool_calls": STOP, "function_call": STOP,
}  # fmt: skip
_CARRIED: Final = ("content", "role")


class Mistake(ValueError):  # noqa: N818 - it is what the user made
    """Something in the user's code is not as it must be; the message says what to write instead."""


def kind_of(value: object) -> str:
    """Return what somebody has given, in words: `a list`, `an int`, `None`."""
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[:1] in "aeiou" else f"a {name}"


class Piece(NamedTuple):
    """One delta before it is sent."""

    produced: Any
    """Text or token ids."""
    finish: str | None
    extras: dict[str, Any] | None


def read_chunk(item: Any) -> Piece:
    """Read an OpenAI chunk, of chat or of completions, or bare text. `EngineError` where it is an error event."""
    if type(item) is str:
        return Piece(item, None, None)
    if not isinstance(item, dict):
        raise Mistake(f"yields {kind_of(item)} where a dict is meant: a text engine yields {CHUNK}")
    if "error" in item:
        raise _told(item["error"])
    choices = item.get("choices")
    extras = _usage(item.get("usage"))
    if not isinstance(choices, list) or (not choices and extras is None):
        raise _no_chunk(item, "'choices', a list")
    if not choices:
        return Piece("", None, extras)
    text, finish, reason = _choice(choices)
    if reason is not None:
        extras = {**(extras or {}), STOP_REASON: reason}
    return Piece(text, finish, extras)


def check_vectors(item: Any) -> None:
    """Raise `Mistake` for what is no answer with vectors: OpenAI's, NVIDIA Dynamo's, or `[index, bytes]`.

    The numbers themselves are read where they are used. `EngineError` where it is an error event.
    """
    if isinstance(item, list) and [type(part) for part in item] == [int, bytes]:
        return
    if not isinstance(item, dict):
        raise Mistake(f"yields {kind_of(item)} where vectors are meant: yield {VECTORS}")
    if "error" in item:
        raise _told(item["error"])
    if not isinstance(item.get("embeddings", item.get("data")), list):
        raise Mistake(f"yields a dict with {_keys(item)} where vectors are meant: yield {VECTORS}")


def _choice(choices: list[Any]) -> tuple[str, str | None, Any]:
    if len(choices) > 1:
        raise Mistake(f"a chunk with {len(choices)} choices: each call of generate is for one choice, so yield one")
    choice = choices[0]
    if not isinstance(choice, dict):
        raise Mistake(f"the choice is {kind_of(choice)}, not a dict: a text engine yields {CHUNK}")
    if choice.get("index"):
        raise Mistake(f"choice index {choice['index']!r}: each call of generate is for one choice, whose index is 0")
    if "message" in choice:
        raise Mistake("a whole answer ('message') where a piece of it is expected: put the text into 'delta'")
    return _text(choice), _finish(choice.get("finish_reason")), choice.get("stop_reason")


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    if delta is None:
        text = choice.get("text")
        if text is None and choice.get("finish_reason") is None:
            raise _no_chunk(choice, "'delta' (or 'text') in its choice")
    elif not isinstance(delta, dict):
        raise Mistake(f'"delta" is {kind_of(delta)}, not {{"content": "text"}}')
    else:
        text = delta.get("content")
        for name, value in delta.items():
            if value and name not in _CARRIED:
                raise Mistake(f"a delta with {name!r}, which this version does not pass on: it carries 'content' only")
    if text is not None and not isinstance(text, str):
        raise Mistake(f"the content is {kind_of(text)}, not text")
    return text or ""


def _no_chunk(item: dict[str, Any], missing: str) -> Mistake:
    return Mistake(f"yields a dict with {_keys(item)}, which lacks {missing}: a text engine yields {CHUNK}")


def _keys(item: dict[str, Any]) -> str:
    return ", ".join(map(repr, item)) or "nothing"


def _usage(usage: Any) -> dict[str, Any] | None:
    if usage is None:
        return None
    if not isinstance(usage, dict):
        raise Mistake(f"'usage' is {kind_of(usage)}, not a dict of counts")
    details = usage.get("prompt_tokens_details")
    named = {
        PROMPT_TOKENS: usage.get("prompt_tokens"),
        COMPLETION_TOKENS: usage.get("completion_tokens"),
        CACHED_TOKENS: details.get("cached_tokens") if isinstance(details, dict) else None,
    }
    counts = {name: value for name, value in named.items() if value is not None}
    for name, value in counts.items():
        if type(value) is not int or value < 0:
            raise Mistake(f"usage: {name} is {value!r}, not a whole number")
    return counts or None


def read_output(item: Any) -> Piece:
    """Read NVIDIA Dynamo's engine output. `EngineError` where its finish reason is an error."""
    if not isinstance(item, dict):
        raise _no_output(item)
    ids, finish = item.get("token_ids"), item.get("finish_reason")
    if ids is None and (finish is None or item.get("text")):
        raise _no_output(item)
    ids = [] if ids is None else ids if type(ids) is list else list(ids) if isinstance(ids, tuple) else ids
    if type(ids) is not list:
        raise Mistake(f"'token_ids' is {kind_of(ids)}, not a list of ids: {OUTPUT}")
    for token in ids:
        if type(token) is not int or token < 0:
            raise Mistake(f"'token_ids' holds {token!r}, which is no token id (a whole number)")
    if item.get("index"):
        raise Mistake(f"index {item['index']!r}: each call of generate is for one choice, whose index is 0")
    if finish is None and len(item) == 1 + ("finish_reason" in item):  # nothing else, as it mostly is
        return Piece(ids, None, None)
    return Piece(ids, _finish(finish), _extras(item, len(ids)))


def _extras(item: dict[str, Any], count: int) -> dict[str, Any] | None:
    extras = dict(_usage(item.get("completion_usage")) or {})
    for name in (STOP_REASON, DISAGGREGATED_PARAMS, PROMPT_LOGPROBS, CACHED_TOKENS):
        if item.get(name) is not None:
            extras[name] = item[name]
    if (chosen := item.get(LOG_PROBS)) is not None:
        if not isinstance(chosen, (list, tuple)) or len(chosen) != count:
            raise Mistake(f"'log_probs' must be a list with one number per token, and there are {count} token(s)")
        extras[LOG_PROBS] = [float(value) for value in chosen]
    if (tops := item.get(TOP_LOGPROBS)) is not None:
        if not isinstance(tops, (list, tuple)) or len(tops) != count:
            raise Mistake(f"'top_logprobs' must be a list with one list per token, and there are {count} token(s)")
        extras[TOP_LOGPROBS] = [[_alternative(alternative) for alternative in alternatives] for alternatives in tops]
    return extras or None


def _alternative(alternative: Any) -> list[Any]:
    """Read `[token_id, logprob]`, of that or of NVIDIA Dynamo's dict."""
    try:
        token, logprob = (
            (alternative["token_id"], alternative["logprob"]) if isinstance(alternative, dict) else alternative
        )
        return [int(token), float(logprob)]
    except (KeyError, TypeError, ValueError):
        raise Mistake(
            f"'top_logprobs' holds {alternative!r} where {{'token_id': id, 'logprob': number}} is meant"
        ) from None


def _no_output(item: Any) -> Mistake:
    text = isinstance(item, str) or (isinstance(item, dict) and ("choices" in item or item.get("text")))
    hint = "; for text, register ModelInput.Text, or run the file as out=pystr: (mode: text)" if text else ""
    if not isinstance(item, dict):
        return Mistake(f"yields {kind_of(item)} where a dict is meant: a tokens engine yields {OUTPUT}{hint}")
    return Mistake(f"yields a dict with {_keys(item)}, which lacks 'token_ids': a tokens engine yields {OUTPUT}{hint}")


def _finish(reason: Any) -> str | None:
    if reason is None:
        return None
    if isinstance(reason, dict) and "error" in reason:
        raise _told(reason["error"])
    if isinstance(reason, str):
        if reason in FINISHES:
            return FINISHES[reason]
        if reason.startswith("error"):
            raise _told(reason.partition(":")[2].strip() or "the engine failed")
    raise Mistake(f"finish_reason {reason!r} is none of {', '.join(FINISHES)}")


def _told(error: Any) -> EngineError:
    """Return an error that the file says in its output."""
    message = error.get("message") if isinstance(error, dict) else error
    return EngineError(str(message or "the engine failed"))


def tokens_request(request: PreprocessedRequest) -> dict[str, Any]:
    """Return a request as a tokens engine in Python gets it.

    Beside our own names those of NVIDIA Dynamo that are made from them: `stop_token_ids_hidden` holds every id that
    ends the answer, the model's own unless they are ignored.
    """
    plain = _plain(request)
    stops: dict[str, Any] = plain["stop_conditions"]
    own = () if request.stop_conditions.ignore_eos else request.eos_token_ids
    stops["stop_token_ids_hidden"] = list(dict.fromkeys([*stops["stop_token_ids"], *own]))
    plain["sampling_options"] |= {"use_beam_search": None, "length_penalty": None}
    return plain


def text_request(request: TextRequest) -> dict[str, Any]:
    """Return a request as a text engine in Python gets it: the client's body, with a copy's freedom to change it."""
    return dict(request.body)


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    """Return it with the fields that are at their defaults, which `to_builtins` leaves out."""
    return {name: _deep(getattr(value, name)) for name in value.__struct_fields__}


def _deep(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return _plain(value)
    return msgspec.to_builtins(value)
