"""Target `bodies`: every field of every request struct, by introspection, with hostile sizes and depths up to 4 MB."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

import msgspec
from msgspec import inspect
from tests.fuzz.firing import Shot, post
from tests.fuzz.site import GEMMA, MODEL, TOOLS, VECTORS
from tests.fuzz.targets import hostile

from dynamo.frontend.openapi import description as openapi
from dynamo.frontend.openapi.messages import DESCRIBED as MESSAGES
from dynamo.frontend.openapi.responses import DESCRIBED as RESPONSES
from dynamo.frontend.routes.busy_threshold import BusyThresholdRequest

NAME: Final = "bodies"
MODELS: Final = (MODEL, GEMMA, TOOLS, VECTORS)
MILLISECONDS: Final = 5_000
"""The time limit that most requests name: a model would answer until its context is full."""
OF_VECTORS: Final = ("/v1/embeddings", "/v1/rerank", "/v1/score")
NOBODY: Final = "nobody"
"""A model that isn't served."""
_HOLE: Final = "@@hole-{}@@"
_FITTING: Final[dict[str, Any]] = {
    "messages": [{"role": "user", "content": "Say something."}], "prompt": "Say something.", "max_tokens": 8,
    "input": "some text", "tokens": [65, 66, 67], "stream": True, "n": 1, "stop": ["\n\n"], "user": "u", "seed": 1,
    "role": "user", "content": "text", "model": MODEL, "encoding_format": "float", "best_of": 1, "tool_choice": "auto",
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}], "top_k": 5,
    "response_format": {"type": "json_object"}, "modalities": ["text"], "metadata": {"a": "b"},
    "documents": [{"title": "t", "text": "d"}], "logit_bias": {"65": 1.0}, "stop_token_ids": [5],
    "guided_json": {"type": "object"}, "guided_regex": "[a-z]+", "guided_choice": ["a", "b"],
    "guided_grammar": 'root ::= "a"', "nvext": {}, "stream_options": {"include_usage": True},
    "session_id": "s", "action": "open", "functions": None, "suffix": None, "prompt_logprobs": None,
    "chat_template_kwargs": {"enable_thinking": False}, "chat_template_args": {}, "function_call": None,
    "max_output_tokens": 8, "instructions": "Be brief.", "system": "Be brief.", "store": True, "truncation": "auto",
    "items": [{"type": "message", "role": "user", "content": "text"}],
    "query": "text", "text_1": "text", "text_2": ["text"],
    "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}, "thinking": {"type": "enabled"},
}  # fmt: skip
_ALONE: Final = (("guided_json", "guided_regex", "guided_choice", "guided_grammar"),)
"""Of these a request may have one."""
REQUIRED: Final = {"/v1/chat/completions": ("model", "messages"), "/v1/completions": ("model", "prompt"),
                   "/v1/embeddings": ("model", "input"), "/tokenize": ("model", "prompt"),
                   "/detokenize": ("model", "tokens"), "/busy_threshold": ("model",),
                   "/v1/responses": ("model", "input"), "/v1/responses/input_tokens": ("model", "input"),
                   "/v1/messages": ("model", "messages", "max_tokens"),
                   "/v1/messages/count_tokens": ("model", "messages"),
                   "/v1/conversations": (), "/v1/conversations/{conversation_id}": ("metadata",),
                   "/v1/conversations/{conversation_id}/items": ("items",),
                   "/v1/rerank": ("model", "query", "documents"),
                   "/v1/score": ("model", "text_1", "text_2")}  # fmt: skip


def kinds() -> dict[str, type[msgspec.Struct]]:
    """The struct that checks what each route is sent."""
    described = {**openapi._BODIES, **RESPONSES.bodies, **MESSAGES.bodies}
    fields: dict[str, Any] = {path: kind for path, (kind, _, _) in described.items()}
    return fields | {"/busy_threshold": BusyThresholdRequest}


def places(kind: type[msgspec.Struct]) -> list[tuple[str, ...]]:
    """Every field of a request, and of the structs in it, by its path."""
    return [*_places(kind, ())]


def _places(kind: type[msgspec.Struct], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for field in msgspec.structs.fields(kind):
        here = (*above, field.encode_name)
        yield here
        for inner in _structs(inspect.type_info(field.type)):
            if len(here) < 4:
                yield from _places(inner, here)


def _structs(info: inspect.Type) -> Iterator[type[msgspec.Struct]]:
    if isinstance(info, inspect.StructType):
        yield info.cls
    elif isinstance(info, inspect.UnionType):
        for entry in info.types:
            yield from _structs(entry)
    elif isinstance(info, inspect.Metadata):
        yield from _structs(info.type)
    elif isinstance(info, inspect.ListType):
        yield from _structs(info.item_type)


def filled(path: str, places_: Mapping[tuple[str, ...], bytes], base: Mapping[str, Any]) -> bytes:
    """A body of a route with these values, as text, at these places; the rest is as in `base`."""
    body: dict[str, Any] = {name: _FITTING[name] for name in REQUIRED[path]} | dict(base)
    body = json.loads(json.dumps(body))
    holes = {}
    for number, (place, value) in enumerate(places_.items()):
        holes[f'"{_HOLE.format(number)}"'.encode()] = value
        _put(body, place, _HOLE.format(number))
    text = json.dumps(body).encode()
    for hole, value in holes.items():
        text = text.replace(hole, value)
    return text


def _put(into: Any, place: tuple[str, ...], value: str) -> None:
    """Set a field however deep; of a list, in its first item."""
    while isinstance(into, list):
        if not into or not isinstance(into[0], (dict, list)):
            into[:] = [{}]
        into = into[0]
    if not isinstance(into, dict):
        return
    name, *rest = place
    if not rest:
        into[name] = value
        return
    if not isinstance(into.get(name), (dict, list)):
        into[name] = [{"role": "user", "content": "a"}] if name == "messages" else {}
    _put(into[name], tuple(rest), value)


def case(random: Random) -> tuple[str, list[Shot]]:
    """One hostile request."""
    path, kind = random.choice([*kinds().items()])
    all_places = places(kind)
    hit = random.sample(all_places, min(len(all_places), random.choice((1, 1, 1, 1, 2, 3))))
    share = hostile.LARGEST // len(hit)
    values = {place: hostile.value(random, share) for place in hit}
    text = filled(path, values, _around(random, path, kind))
    if random.random() < 0.1:
        text = _elsewhere(random, text)
    name = f"{path} {', '.join('.'.join(place) for place in hit)}, {len(text)} bytes"
    headers = {} if random.random() < 0.1 else {"x-request-timeout-ms": str(MILLISECONDS)}
    if random.random() < 0.1:
        headers["x-request-id"] = "r" * random.choice((1, 100, 4000))
    path = path.replace("{conversation_id}", "conv_none")
    return name, [post(path, text[: hostile.LARGEST + 50_000], name, **headers)]


def _around(random: Random, path: str, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Some fitting fields beside the hostile one."""
    names = {field.encode_name for field in msgspec.structs.fields(kind)}
    here: dict[str, Any] = {name: 8 for name in ("max_tokens", "max_output_tokens") if name in names}
    here["model"] = VECTORS if path in OF_VECTORS else random.choice((MODEL, MODEL, GEMMA, TOOLS))
    if path == "/busy_threshold":  # from this machine it may be changed, and a low one refuses all others
        here["model"] = NOBODY
    if "stream" in names:
        here["stream"] = random.random() < 0.5
    known = sorted(names & _FITTING.keys() - here.keys() - {"stream_options"})
    for name in random.sample(known, min(len(known), random.choice((0, 0, 2, 5)))):
        if not any(name in alone and here.keys() & set(alone) for alone in _ALONE):
            here[name] = _FITTING[name]
    return here


def _elsewhere(random: Random, text: bytes) -> bytes:
    """Beside all fields: unknown ones, what comes twice, what isn't an object, what stops in the middle."""
    more = hostile.value(random, hostile.LARGEST - min(len(text), hostile.LARGEST - 10))
    return random.choice((
        text[:-1] + b',"unknown":' + more + b"}", text[:-1] + b',"model":' + more + b"}", more, b"[" + text + b"]",
        text[: random.randrange(1, len(text))], text + text, b"\xef\xbb\xbf" + text, b" " * 100_000 + text,
        text[:-1] + b"," + more[1:-1] + b"}", text.replace(b'"', b"'"), b"",
    ))  # fmt: skip
