"""OpenAI requests: reading and checking them, with errors that name the field.

Called once per request by `routes/generate.py`. The body, a plain dict (`body.py`),
which the preprocessor gets, is checked against a struct (`request_structs.py`), which says types and bounds
once; what a type can't say is in the `_check_…` functions. Unknown fields are reported
to the caller, who logs or refuses them. `/openapi.json` is made of the same structs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from dynamo.frontend.errors import MAX_MESSAGE, UNKNOWN_PARAMETER, ApiError, bad_request, shown
from dynamo.frontend.openai.body import NOTHING, SMALL, shape_of
from dynamo.frontend.openai.constraints import check_guided, check_tool_choice, packed
from dynamo.frontend.openai.nvext import Nvext
from dynamo.frontend.openai.request_structs import (
    LARGEST_BIAS,
    LONGEST_METADATA,
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    Message,
    Role,
    Sampling,
)
from dynamo.frontend.openai.tools import TOOL_WORDS, take_tools
from dynamo.llm.processing.embeddings import Input, read_inputs
from dynamo.llm.processing.image_prompts import KINDS as IMAGE_KINDS
from dynamo.llm.processing.preprocess import MOST_BYTES
from dynamo.llm.processing.request_options import IN_NVEXT
from dynamo.llm.protocols import ImageInput
from dynamo.runtime.errors import InvalidArgument

MAX_PROMPTS: Final = 2048
DEFAULT_COMPLETION_TOKENS: Final = 16
MAX_IN_ARGUMENTS: Final = {"containers": 32_768, "strings": 65_536, "values": 262_144}
"""Of all calls in a chat: Python's parser takes some times as long as the one for bodies."""
MAX_NAMED: Final = 20
"""Unknown fields that a message names."""
_NAME_SHOWN: Final = 60
_THOUGHTS: Final = ("thinking", "redacted_thinking", "reasoning")
"""Parts in which clients send back what an assistant thought."""


_EXPECTED = re.compile(r"^(?P<what>.*?)(?: - at (?:`key`[^`]*)?`(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")
ROLES: Final = get_args(Role)
_NVEXT_KNOWN: Final = frozenset(Nvext.__struct_fields__) - {"max_thinking_tokens"}


def read_chat(body: dict[str, Any]) -> ChatRequest:
    """Return a chat request whose every known field is right."""
    if not TOOL_WORDS.isdisjoint(body):
        take_tools(body)
    _hoist(body, ChatRequest)
    request: ChatRequest = convert(body, ChatRequest)
    _check_sampling(request)
    check_guided(body)
    _check_chat(request)
    return request


def read_completion(body: dict[str, Any]) -> CompletionRequest:
    """Return a completion request whose every known field is right."""
    _hoist(body, CompletionRequest)
    request: CompletionRequest = convert(body, CompletionRequest)
    _check_sampling(request)
    check_guided(body)
    if request.max_tokens == 0 and request.stream:
        raise bad_request("max_tokens: 0 is for answers that aren't streamed.", "max_tokens", "unsupported_value")
    wanted = len(prompts(request.prompt)) * per_prompt(request)
    if wanted > MAX_PROMPTS:
        raise bad_request(f"n: at most {MAX_PROMPTS} answers per request, got {wanted}.", "n")
    return request


def read_embeddings(body: dict[str, Any]) -> tuple[EmbeddingsRequest, list[Input]]:
    """Return a request for vectors whose every known field is right, and its inputs one by one."""
    request: EmbeddingsRequest = convert(body, EmbeddingsRequest)
    try:
        return request, read_inputs(request.input)
    except InvalidArgument as error:
        raise bad_request(f"{error.message}.", "input") from None


def convert(body: dict[str, Any], kind: type[Any]) -> Any:
    """Return `body` as a struct, or a 400 that names the field."""
    take_whole_prompt(body)
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        if take_whole(body, str(error)):
            return convert(body, kind)
        raise _invalid(str(error), body, kind) from None


_REFUSED: Final = re.compile(r"Expected `[^`]*\bint\b[^`]*`, got `float` - at `\$\.(\w+)")
_MOST: Final = 100_000
"""Values of one field that are looked at."""
_LARGEST: Final = 2.0**53
"""Beyond it a float doesn't say which number is meant."""


def take_whole(body: dict[str, Any], refused: str) -> bool:
    """Make integers of the whole floats in the field that msgspec has `refused` for one; False: there were none."""
    match = _REFUSED.match(refused)
    return match is not None and match[1] in body and _take(body, match[1])


def take_whole_prompt(body: dict[str, Any]) -> None:
    """Take the same for token ids of a prompt, whose type msgspec doesn't know."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not {float, list}.isdisjoint(map(type, prompt)):
        _take(body, "prompt")


def _take(parent: Any, key: Any) -> bool:
    """Walk a field with a stack of its own, however deep it is."""
    changed, seen = False, 0
    places = [(parent, key)]
    while places:
        holder, at = places.pop()
        value = holder[at]
        if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST:
            holder[at], changed = int(value), True
        elif isinstance(value, list | dict):
            seen += len(value)
            if seen > _MOST:
                return changed
            places += [(value, index) for index in (value if isinstance(value, dict) else range(len(value)))]
    return changed


def _invalid(text: str, body: Mapping[str, Any], kind: type[Any]) -> ApiError:
    if len(text) > MAX_MESSAGE:  # it repeats a client's value; what is wrong, and where, is said around it
        text = f"{text[: MAX_MESSAGE // 2]}…{text[-MAX_MESSAGE // 4 :]}"
    match = _EXPECTED.match(text)
    what, path = (match["what"], match["path"] or "") if match else (text, "")
    path = _wrong_key(path.removeprefix("$").removeprefix("."), body)
    if missing := _MISSING.search(what):
        param = f"{path}.{missing[1]}".lstrip(".")
        hint = "" if path else _misspelt(missing[1], body, kind)
        return bad_request(f"{param}: this field is required.{hint}", param, "missing_required_parameter")
    what = what.replace("`", "").replace(" | null", "").replace("object", "an object")
    what = what.replace("Expected array of length >= 1", "may not be empty")
    if path.endswith(".role"):
        what = f"{what}; expected one of {', '.join(ROLES)}"
    wrong_type = ", got " in what
    return bad_request(f"{path or 'body'}: {what[:1].lower()}{what[1:]}.", path or None,
                       "invalid_type" if wrong_type else "invalid_value")  # fmt: skip


def _wrong_key(path: str, body: Mapping[str, Any]) -> str:
    """Return the path with the key of the first wrong value of an object, of which msgspec only says that there is one.

    It looks at keys and values in their order, so that all keys up to that value are right, and short.
    """
    name, _, rest = path.partition("[")
    values, right = body.get(name), _RIGHT.get(name)
    if rest != "...]" or right is None or not isinstance(values, Mapping):
        return path
    return f"{name}.{next((key for key, value in values.items() if not right(value)), '')}"


_RIGHT: Final[Mapping[str, Callable[[Any], bool]]] = {
    "metadata": lambda value: isinstance(value, str) and len(value) <= LONGEST_METADATA,
    "logit_bias": lambda value: type(value) in (int, float) and abs(value) <= LARGEST_BIAS,
}
"""Values that a field's keys may have."""


def _misspelt(missing: str, body: Mapping[str, Any], kind: type[Struct]) -> str:
    """Return the question whether a field that nobody knows was meant to be the one that is missing."""
    near = get_close_matches(
        missing, [name[:_NAME_SHOWN] for name in list(body)[:MAX_NAMED] if name not in _known(kind)], n=1
    )
    return f" Did you mean it by {shown(near[0])}?" if near else ""


def _hoist(body: dict[str, Any], kind: type[Struct]) -> None:
    """Move what `nvext` says of sampling to the top level, where it is checked."""
    nvext = body.get("nvext")
    if isinstance(nvext, dict):
        for name in IN_NVEXT & nvext.keys() & _known(kind):
            if body.get(name) is None:
                body[name] = nvext[name]


def _check_sampling(request: Sampling) -> None:
    if request.best_of is not None or request.prompt_logprobs is not None:
        _check_scored(request)
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options: only allowed when stream is true.", "stream_options")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if "" in stops:
        raise bad_request("stop: a stop string may not be empty.", "stop")
    limit = request.max_completion_tokens or request.max_tokens
    if request.min_tokens is not None and limit is not None and request.min_tokens > limit:
        raise bad_request(f"min_tokens: {request.min_tokens} is more than max_tokens ({limit}).", "min_tokens")
    for key in request.logit_bias or ():
        if not (key.isascii() and key.isdecimal()):
            raise bad_request(f"logit_bias: {key!r} is not a token id.", "logit_bias")


def _check_scored(request: Sampling) -> None:
    """Raise for what is only known at an answer's end, where it is streamed."""
    wanted, made = request.n or 1, request.best_of
    if made is not None and made < wanted:
        raise bad_request(f"best_of: {made} is less than n ({wanted}).", "best_of")
    if request.stream and made is not None and made > wanted:
        text = "best_of: the best answers are known at the end, so that they aren't streamed; leave out stream."
        raise bad_request(text, "best_of", "unsupported_value")
    if request.stream and request.prompt_logprobs is not None:
        text = "prompt_logprobs: only answers that aren't streamed have them; leave out stream."
        raise bad_request(text, "prompt_logprobs", "unsupported_value")


def _check_chat(request: ChatRequest) -> None:
    if any(map(_calls_of, request.messages)):
        _check_arguments(request.messages)
    if request.top_logprobs and not request.logprobs:
        raise bad_request("top_logprobs: needs logprobs to be true.", "top_logprobs")
    for index, message in enumerate(request.messages):
        if isinstance(message.content, list):
            _check_parts(message.content, f"messages[{index}].content", of_assistant=message.role == "assistant")
    if request.continue_final_message and request.add_generation_prompt:
        text = "continue_final_message: not together with add_generation_prompt; the last message is continued."
        raise bad_request(text, "continue_final_message")
    check_tool_choice(request.tool_choice)
    if request.modalities and request.modalities != ["text"]:
        raise bad_request("modalities: only text is supported.", "modalities", "unsupported_value")


_calls_of = attrgetter("tool_calls")


def _check_arguments(messages: list[Message]) -> None:
    """Bound what the arguments of calls are made of, all together: templates read them as JSON."""
    texts = [text for message in messages for call in message.tool_calls or () if (text := _arguments(call))]
    if sum(map(len, texts)) <= SMALL:
        return
    shape = NOTHING
    for text in texts:
        shape += shape_of(text.encode(errors="replace"))
    if shape.long_number or any(getattr(shape, name) > most for name, most in MAX_IN_ARGUMENTS.items()):
        text = "messages: the arguments of the tool calls are made of more parts, or longer numbers, than are taken."
        raise bad_request(text, "messages", "too_many_values")


def _arguments(call: dict[str, Any]) -> str:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return arguments if isinstance(arguments, str) else ""


def _check_parts(parts: list[dict[str, Any]], path: str, *, of_assistant: bool) -> None:
    for index, part in enumerate(parts):
        where, kind = f"{path}[{index}]", part.get("type")
        if kind in IMAGE_KINDS:
            continue  # read once the model is known
        if of_assistant and kind in _THOUGHTS:
            continue
        if kind not in ("text", "input_text", "refusal"):
            text = f"{where}: content of type {shown(kind)} is not supported; use text or image_url."
            raise bad_request(text, where, "unsupported_value")
        if not isinstance(part.get("refusal" if kind == "refusal" else "text"), str):
            raise bad_request(f"{where}: a text part needs a text.", where, "invalid_type")


def check_forwarded(body: dict[str, Any], prompts: int, answers: int, images: Sequence[ImageInput] = ()) -> None:
    """Raise where a body can't travel to an engine that takes text, or would so often that it is too much."""
    whole = len(packed("body", body)) + sum(len(image.data) for image in images)
    rest = len(msgspec.msgpack.encode({**body, "prompt": None})) if prompts > 1 else 0
    size = answers * (whole + rest * (prompts - 1))
    if size > MOST_BYTES:
        text = f"n: {answers} answer(s) to {prompts} prompt(s) send {size} bytes to workers: at most {MOST_BYTES}."
        raise bad_request(text, "n")


def answers(request: ChatRequest | CompletionRequest) -> int:
    """Return how many answers a checked request asks for."""
    prompt = "" if isinstance(request, ChatRequest) else request.prompt
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return per_prompt(request) * (len(prompt) if several else 1)


def per_prompt(request: Sampling) -> int:
    """Return how many answers to a prompt are made: all of which the best `n` are told."""
    return request.best_of or request.n or 1


def prompts(prompt: Any) -> list[str | list[int]]:
    """Return the prompts of a completion request: a string, strings, token ids, or lists of them."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        kind = "an empty list" if prompt == [] else type(prompt).__name__
        raise bad_request(f"prompt: expected a string, token ids or a list of them, got {kind}.", "prompt")
    if len(prompt) > MAX_PROMPTS and not isinstance(prompt[0], int):
        raise bad_request(f"prompt: at most {MAX_PROMPTS} prompts, got {len(prompt)}.", "prompt")
    if _are_ids(prompt):
        return [prompt]
    for index, item in enumerate(prompt):
        if not isinstance(item, str) and not (isinstance(item, list) and item and _are_ids(item)):
            text = f"prompt: expected strings or lists of token ids, but item {index} is neither."
            raise bad_request(text, "prompt", "invalid_type")
    return prompt


def _are_ids(items: list[Any]) -> bool:
    # Whole passes in C: there may be a million.
    return set(map(type, items)) == {int} and min(items) >= 0 and max(items) < 2**31


def name_field(error: ApiError, chat: bool, constraint: str = "") -> ApiError:
    """Name the field that a lower layer refused: the one that its sentence starts with, else the prompt.

    `constraint` is the one that constrains the answer: workers speak of guided decoding, whatever it was.
    """
    if constraint and error.param is None and error.message.startswith("guided"):
        error.param = constraint
    return named(error, ChatRequest, "messages") if chat else named(error, CompletionRequest, "prompt")


def named(error: ApiError, kind: type[Struct], default: str) -> ApiError:
    """Name the field as `name_field` does, for any kind of request."""
    if error.status == 400 and error.param is None and error.code in ("invalid_value", "context_length_exceeded"):
        word = error.message.partition(" ")[0].rstrip(":")
        error.param = word if word.partition(".")[0] in kind.__struct_fields__ else default
    return error


def unknown_fields(body: dict[str, Any], kind: type[Struct]) -> list[str]:
    """Return the fields of `body`, and of objects in it, that nothing here knows; their names are cut."""
    known, members = _known(kind), members_of(kind)
    if known.issuperset(body) and members.keys().isdisjoint(body):
        return []
    unknown = sorted(body.keys() - known)
    for field in members:
        if isinstance(given := body.get(field), dict) and not members[field].issuperset(given):
            unknown += [f"{field}.{name}" for name in sorted(given.keys() - members[field])[:MAX_NAMED]]
    return [name[:_NAME_SHOWN] for name in unknown[:MAX_NAMED]]


def refuse_unknown(unknown: Iterable[str], kind: type[Struct]) -> ApiError:
    """Return the 400 of strict mode."""
    names = list(unknown)
    hints = [f"{name} (did you mean {near}?)" if (near := nearest(name, kind)) else name for name in names]
    return bad_request(f"Unknown field(s): {', '.join(hints)}.", names[0], UNKNOWN_PARAMETER)


def nearest(name: str, kind: type[Struct]) -> str:
    """Return the known field whose name is like this unknown one; empty where none is."""
    field, dot, _ = name.partition(".")
    within = members_of(kind).get(field) if dot else None
    near = get_close_matches(name, _known(kind) if within is None else [f"{field}.{member}" for member in within], n=1)
    return near[0] if near else ""


@cache
def members_of(kind: type[Struct]) -> dict[str, frozenset[str]]:
    """Return what each object among the fields of a request may have."""
    members = {}
    for field, hint in get_type_hints(kind).items():
        for part in get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,):
            if isinstance(part, type) and issubclass(part, Struct):
                members[field] = _NVEXT_KNOWN if part is Nvext else _known(part)
    return members


@cache
def _known(kind: type[Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)
