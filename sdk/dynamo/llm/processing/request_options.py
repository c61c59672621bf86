"""OpenAI body fields to the options of a `PreprocessedRequest`: pure table work, no tokens.

Types and ranges were checked by the frontend's request structs; what is read here is what
engines understand: OpenAI's fields, vLLM's extras at top level, Dynamo's in `nvext`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from dynamo.llm.protocols import SAMPLING_FIELDS, OutputOptions, SamplingOptions, StopConditions
from dynamo.runtime.errors import InvalidArgument

COMPLETION_MAX_TOKENS: Final = 16
"""OpenAI's default for completions; a chat answer may fill the context."""

MOST_STOPS: Final = 64
"""More than OpenAI's 4, since vLLM, from which clients come, has no bound; `stop_strings.py` has what as many cost."""
LONGEST_STOP: Final = 256
"""Characters; of so many text may be held back."""

_SEED: Final = "seed"
_SAMPLING: Final = frozenset({*SAMPLING_FIELDS, "logit_bias", "best_of"} - {_SEED})
_GUIDED: Final = frozenset(
    f"guided_{name}"
    for name in ("json", "regex", "choice", "grammar", "backend", "whitespace_pattern", "structural_tag")
)
_SHAPING: Final = _GUIDED | {"response_format", "nvext"}
"""Whatever `guided_decoding` reads."""
IN_NVEXT: Final = frozenset({
    *_SAMPLING, *_GUIDED, "stop_token_ids", "ignore_eos", "min_tokens", "cache_salt",
    "include_stop_str_in_output", "chat_template_kwargs", "chat_template_args",
})  # fmt: skip
"""What `field` is asked for, here and in `preprocess.py`: whoever checks a request looks at both places."""


def nvext_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return Dynamo's extension object, empty where there is none."""
    nvext = body.get("nvext")
    return nvext if nvext is not None and isinstance(nvext, Mapping) else {}


def field(body: Mapping[str, Any], name: str) -> Any:
    """Read a field at top level or in `nvext`; null counts as absent."""
    value = body.get(name)
    if value is not None or "nvext" not in body:
        return value
    return nvext_of(body).get(name)


def reader(body: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return what reads one field after the other as `field` does."""
    return partial(field, body) if "nvext" in body else body.get


def given(body: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Read those of the named fields that a body has, as `field` does: most bodies have few of many."""
    if "nvext" in body:
        return {name: value for name in names if (value := field(body, name)) is not None}
    return {name: value for name in names.intersection(body) if (value := body[name]) is not None}


def choices(body: Mapping[str, Any]) -> int:
    """Count the answers per prompt."""
    return int(body.get("n") or 1)


def stop_conditions(body: Mapping[str, Any], max_tokens: int | None) -> StopConditions:
    """Read what ends a text; `max_tokens` was clipped to the context already."""
    read = reader(body)
    min_tokens = read("min_tokens")
    if min_tokens and max_tokens is not None and min_tokens > max_tokens:
        raise InvalidArgument(f"min_tokens ({min_tokens}) is larger than the {max_tokens} tokens that may be made")
    return StopConditions(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=stop_strings(body.get("stop")),
        stop_token_ids=list(read("stop_token_ids") or ()),
        ignore_eos=bool(read("ignore_eos")),
    )


def stop_strings(stop: Any) -> list[str]:
    """Read one or several stop strings; bounded, since each token of the answer is compared with all of them."""
    if stop is None:
        return []
    stops = [stop] if isinstance(stop, str) else list(stop)
    if len(stops) > MOST_STOPS:
        raise InvalidArgument(f"stop has {len(stops)} strings: at most {MOST_STOPS} are taken")
    if any(len(text) > LONGEST_STOP for text in stops):
        raise InvalidArgument(f"a stop string has {max(map(len, stops))} characters: at most {LONGEST_STOP} are taken")
    return stops


def sampling_options(body: Mapping[str, Any], choice: int) -> SamplingOptions:
    """Read how tokens are chosen; choice i is seeded with `seed + i`, or all would be alike."""
    values = given(body, _SAMPLING)
    seed = body.get(_SEED)
    if nvext_of(body).get("greed_sampling"):
        values["temperature"] = 0.0
    if "logit_bias" in values:
        values["logit_bias"] = {str(token): float(bias) for token, bias in values["logit_bias"].items()}
    return SamplingOptions(
        seed=None if seed is None else int(seed) + choice,
        guided_decoding=guided_decoding(body),
        include_stop_str_in_output=bool(field(body, "include_stop_str_in_output")),
        **values,
    )


def guided_decoding(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read `guided_*`, `response_format` and nvext's `guided_*` as one object."""
    if _SHAPING.isdisjoint(body):
        return None
    guided = {name.removeprefix("guided_"): value for name, value in given(body, _GUIDED).items()}
    shape = body.get("response_format")
    if shape is not None and not guided and isinstance(shape, Mapping):
        schema = shape.get("json_schema")
        if shape.get("type") == "json_object":
            guided["json"] = {"type": "object"}
        elif shape.get("type") == "json_schema" and isinstance(schema, Mapping):
            guided["json"] = schema.get("schema", {})
    return guided or None


def output_options(body: Mapping[str, Any], chat: bool) -> OutputOptions:
    """Read what else is wanted; `logprobs` is the number of alternatives, 0 for the chosen token only."""
    wanted = body.get("logprobs")
    if chat:
        logprobs = int(body.get("top_logprobs") or 0) if wanted else None
    else:
        logprobs = None if wanted is None or wanted is False else int(wanted)
    prompt_logprobs = body.get("prompt_logprobs")
    if prompt_logprobs is None and not chat and body.get("echo"):
        prompt_logprobs = logprobs
    skip = body.get("skip_special_tokens")
    return OutputOptions(
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=True if skip is None else bool(skip),
    )


def wanted_tokens(body: Mapping[str, Any], chat: bool) -> int | None:
    """Count the tokens that were asked for, at most."""
    wanted = body.get("max_completion_tokens")
    if wanted is None:
        wanted = body.get("max_tokens")
    if wanted is None:
        return None if chat else COMPLETION_MAX_TOKENS
    return int(wanted)
