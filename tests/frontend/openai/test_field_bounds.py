"""Every field of every request, found by introspection, is sent far too large in each form that JSON has.

What is taken all the same stands in `TAKEN`: whoever adds a field without a bound has to write it there, or bound it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final, get_args, get_type_hints

import msgspec
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from dynamo.frontend.anthropic.request_structs import CountTokensRequest, MessagesRequest
from dynamo.frontend.anthropic.requests import read_messages, read_prompt
from dynamo.frontend.errors import ApiError
from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.body import MAX_DEPTH, MAX_FIELDS, UNKNOWN, decode, sizes_of
from dynamo.frontend.openai.request_structs import (
    WHOLE_BODY,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingsRequest,
    Tier,
    TokenizeRequest,
)
from dynamo.frontend.openai.responses_requests import read_responses
from dynamo.frontend.openai.responses_structs import ResponsesRequest

BIG: Final = 2_600_000
"""Characters: more than any field may have, and no more, since each that has no bound is read in each form."""
GOOD: Final[dict[str, Any]] = {
    "model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi", "tokens": [1],
}  # fmt: skip


def reader(kind: type[msgspec.Struct]) -> Callable[[bytes], Any]:
    """What the route of a body does with it before it knows the model."""
    own: dict[Any, Callable[[dict[str, Any]], Any]] = {
        ChatRequest: openai.read_chat,
        CompletionRequest: openai.read_completion,
        EmbeddingsRequest: openai.read_embeddings,
        ResponsesRequest: read_responses,
        MessagesRequest: read_messages,
        CountTokensRequest: partial(read_prompt, kind=CountTokensRequest),
    }
    read = own.get(kind) or partial(_converted, kind)
    return lambda raw: read(decode(raw, kind))


def _converted(kind: type[msgspec.Struct], body: dict[str, Any]) -> Any:
    return openai.convert(body, kind)


KINDS: Final = (
    ChatRequest, CompletionRequest, EmbeddingsRequest, TokenizeRequest, DetokenizeRequest, ResponsesRequest,
    MessagesRequest, CountTokensRequest,
)  # fmt: skip


@cache
def forms(size: int) -> dict[str, bytes]:
    """Values that are as large as that, one of each form."""
    return {
        "a string": b'"' + b"x" * size + b'"',
        "an escaped string": b'"' + b"\\u00e9" * (size // 6) + b'"',
        "numbers": b"[" + b"1," * (size // 2) + b"1]",
        "long numbers": b"[" + b"123456," * (size // 7) + b"1]",
        "strings": b"[" + b'"abcdefgh",' * (size // 11) + b'"a"]',
        "short strings in lists": b"[" + b'["a"],' * (size // 6) + b'["a"]]',
        "lists": b"[" + b"[]," * (size // 3) + b"[]]",
        "objects": b"[" + b'{"a":1},' * (size // 8) + b"{}]",
        "long strings": b'["' + b"x" * (size // 26) + b'","' + b"x" * (size - size // 13) + b'"]',
        "keys": b"{" + b",".join(b'"%d":1' % number for number in range(10**6, 10**6 + size // 12)) + b"}",
        "few long values": b"{" + b",".join(b'"%d":"%s"' % (n, b"x" * (size // 20)) for n in range(19)) + b"}",
        "one huge number": b"9" * size,
        "nesting": b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        "deep nesting": b'{"a":' * 900 + b'"' + b"x" * (size - 6000) + b'"' + b"}" * 900,
    }


def too_large(kind: type[msgspec.Struct], path: str, number: int) -> Iterator[tuple[str, bytes]]:
    """What is sent in a field: each form, an eighth larger than the field may be; by turns, one form of `BIG`.

    A field whose bound is the body's gets all forms in that size.
    """
    field = path.split(".")[1].removesuffix("[]")
    most = sizes_of(kind).get(field, UNKNOWN)
    size = min(most + most // 8, BIG) if most != WHOLE_BODY else BIG
    yield from forms(size).items()
    yield [*forms(BIG).items()][number % len(forms(BIG))]


TAKEN: Final = {
    ("ChatRequest.messages[].content", "a string"),
    ("ChatRequest.messages[].content", "an escaped string"),
    ("CompletionRequest.prompt", "a string"),
    ("CompletionRequest.prompt", "an escaped string"),
    ("CompletionRequest.prompt", "long numbers"),
    ("CompletionRequest.prompt", "long strings"),
    ("EmbeddingsRequest.input", "a string"),
    ("EmbeddingsRequest.input", "an escaped string"),
    ("EmbeddingsRequest.input", "long numbers"),
    ("EmbeddingsRequest.input", "long strings"),
    ("TokenizeRequest.prompt", "a string"),
    ("TokenizeRequest.prompt", "an escaped string"),
    ("DetokenizeRequest.tokens", "long numbers"),
    ("MessagesRequest.system", "a string"),
    ("MessagesRequest.system", "an escaped string"),
    ("CountTokensRequest.system", "a string"),
    ("CountTokensRequest.system", "an escaped string"),
    ("ResponsesRequest.input", "a string"),
    ("ResponsesRequest.input", "an escaped string"),
    ("ResponsesRequest.instructions", "a string"),
    ("ResponsesRequest.instructions", "an escaped string"),
}
"""Prompts, and tokens, may fill a body: what they may be at most is a matter of the model's context."""


def structs_in(kind: msgspec.inspect.Type) -> Iterator[tuple[msgspec.inspect.StructType, bool]]:
    """The structs that a field may hold, and whether they stand in a list."""
    match kind:
        case msgspec.inspect.Metadata():
            yield from structs_in(kind.type)
        case msgspec.inspect.UnionType():
            for inner in kind.types:
                yield from structs_in(inner)
        case msgspec.inspect.ListType():
            yield from ((struct, True) for struct, _ in structs_in(kind.item_type))
        case msgspec.inspect.StructType():
            yield kind, False


def places(kind: type[msgspec.Struct]) -> Iterator[tuple[str, Callable[[Any], dict[str, Any]]]]:
    """Each field's path, and what makes a body with a value there; of structs in it, too, and one that nobody knows."""
    base = {name: GOOD[name] for name in kind.__struct_fields__ if name in GOOD}
    if kind is TokenizeRequest:
        del base["messages"]
    if kind is MessagesRequest:
        base["max_tokens"] = 5
    if kind is ResponsesRequest:
        del base["prompt"]

    def walk(
        struct: msgspec.inspect.StructType, path: str, wrap: Callable[[Any], dict[str, Any]]
    ) -> Iterator[tuple[str, Callable[[Any], dict[str, Any]]]]:
        for name in [*(field.encode_name for field in struct.fields), "unknown"]:
            yield f"{path}.{name}", partial(_wrapped, wrap, name)
        for field in struct.fields:
            name = field.encode_name
            for inner, in_list in structs_in(field.type):

                def deeper(own: Any, name: str = name, in_list: bool = in_list) -> dict[str, Any]:
                    own = {"role": "user", **own} if name == "messages" else own
                    return wrap({name: [own] if in_list else own})

                yield from walk(inner, f"{path}.{name}{'[]' if in_list else ''}", deeper)

    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    yield from walk(info, kind.__name__, lambda own: {**base, **own})


def _wrapped(wrap: Callable[[Any], dict[str, Any]], name: str, value: Any) -> dict[str, Any]:
    return wrap({name: value})


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_a_bound(kind: type[msgspec.Struct]) -> None:
    """More than may be in any field, in any form, is a 400 of some hundred characters; but for the texts of prompts."""
    read, taken, wrong = reader(kind), set(), []
    for number, (path, body) in enumerate(places(kind)):
        mark = json.dumps(body("MARK")).encode()
        for form, value in too_large(kind, path, number):
            try:
                read(mark.replace(b'"MARK"', value))
            except ApiError as error:
                if error.status != 400 or len(error.message) > 1100 or len(error.body()) > 2000:
                    wrong.append((path, form, error.status, error.message[:200]))
            else:
                taken.add((path, form))
    assert not wrong
    extra = {place for place in taken - TAKEN if not place[0].endswith("messages[].unknown")}
    assert not extra
    assert {place for place in TAKEN if place[0].startswith(f"{kind.__name__}.")} <= taken


@pytest.mark.parametrize(
    ("field", "most", "over"),
    [
        ("model", "x" * 512, "x" * 513),
        ("user", "x" * 512, "x" * 513),
        ("stop", ["x" * 256] * 64, ["x"] * 65),
        ("stop", "x" * 256, "x" * 257),
        ("stop_token_ids", [1] * 1024, [1] * 1025),
        ("logit_bias", {str(n): 1 for n in range(1024)}, {str(n): 1 for n in range(1025)}),
        ("logit_bias", {"2147483647": 1}, {"1" * 11: 1}),
        ("tools", [{}] * 512, [{}] * 513),
        ("guided_choice", ["a"] * 4096, ["a"] * 4097),
        ("guided_regex", "a" * 65_000, "a" * 66_000),
        ("guided_grammar", "a" * 65_000, "a" * 66_000),
        ("guided_json", {"enum": ["x" * 260_000]}, {"enum": ["x" * 263_000]}),
        ("messages", [{"role": "user", "content": ""}] * 10_000, [{"role": "user", "content": ""}] * 10_001),
        ("metadata", {str(n): "x" * 100 for n in range(16)}, {str(n): "" for n in range(17)}),
        ("metadata", {"k" * 64: ""}, {"k" * 65: ""}),
        ("metadata", {"k": "x" * 512}, {"k": "x" * 513}),
        ("service_tier", "priority", "fastest"),
        ("min_tokens", 2**31 - 1, 2**31),
        ("nvext", {"annotations": ["x"] * 64}, {"annotations": ["x"] * 65}),
    ],
)
def test_bounds_are_where_they_are_said_to_be(field: str, most: Any, over: Any) -> None:
    """A field at its bound is taken; one above it is a 400 that names the field."""
    read = reader(ChatRequest)
    body = {"model": "m", "messages": GOOD["messages"]}
    read(json.dumps({**body, field: most}).encode())
    with pytest.raises(ApiError) as caught:
        read(json.dumps({**body, field: over}).encode())
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith(field)


def test_bodies_have_few_fields() -> None:
    """More fields than any client has a use for are refused, whether anybody knows them or not."""
    body = {"model": "m", "prompt": "hi", **{f"x{number}": 1 for number in range(MAX_FIELDS)}}
    with pytest.raises(ApiError, match="fields: at most 256"):
        reader(CompletionRequest)(json.dumps(body).encode())


def test_unknown_fields_are_named_briefly() -> None:
    """Of many unknown fields some are named, each cut, in the log and in strict mode's answer."""
    body = {f"{'x' * 3000}{number}": 1 for number in range(200)}
    names = openai.unknown_fields({**body, "nvext": dict.fromkeys(map(str, range(500)), 1)}, ChatRequest)
    assert len(names) == 20
    assert max(map(len, names)) == 60
    refused = openai.refuse_unknown(names, ChatRequest)
    assert len(refused.body()) < 2000


def test_half_a_surrogate_pair_is_found_at_once() -> None:
    """However deep it lies and however many strings there are, its place is known without a search."""
    inner = b'["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",' * 50 + b'"' + b"a" * 3_000_000 + b'\\ud800"' + b"]" * 50
    raw = b'{"model":"m","prompt":"a","metadata":' + inner + b"}"
    began = time.process_time()
    with pytest.raises(ApiError, match=f"at byte {raw.index(b'ud800') - 1}") as caught:
        decode(raw)
    assert caught.value.code == "invalid_string"
    assert time.process_time() - began < 2  # the search that there was took half a minute


@pytest.mark.parametrize(
    ("raw", "at"),
    [
        (b'{"a":"\\ud800"}', 6),
        (b'{"a":"\\udc00x"}', 6),
        (b'{"a":"\\ud83d\\ude00\\ud83d"}', 18),
        (b'{"a":"\\ud800\\u0041"}', 6),
        (b'{"\\udfff":1}', 2),
    ],
)
def test_each_half_of_a_pair_is_named(raw: bytes, at: int) -> None:
    """A half alone, at the end, before another escape, or in a field's name is told apart from what is no JSON."""
    with pytest.raises(ApiError, match=f"at byte {at}") as caught:
        decode(raw)
    assert caught.value.code == "invalid_string"


@pytest.mark.parametrize("raw", [b'{"a":"\\ud83d\\ude00"}', b'{"a":"\\\\ud800"}', b'{"a":"\\\\\\\\ud800"}'])
def test_whole_pairs_and_escaped_backslashes_are_text(raw: bytes) -> None:
    """What only looks like half a pair is taken."""
    assert decode(raw) == json.loads(raw)


def test_arguments_of_calls_are_counted_together() -> None:
    """JSON in a string is what a template reads: many small ones are bounded as one large one is."""
    read = reader(ChatRequest)

    def chat(arguments: str, times: int) -> bytes:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        said = [{"role": "assistant", "tool_calls": [call]}] * times
        return json.dumps({"model": "m", "messages": [*GOOD["messages"], *said]}).encode()

    read(chat(json.dumps({"content": "def f(x): return {[()]}\n" * 3000}), 30))
    for arguments, times in (("[" + "[]," * 1_000_000 + "1]", 1), ("[" + "[]," * 60 + "1]", 9000), ("9" * 99_999, 1)):
        with pytest.raises(ApiError) as caught:
            read(chat(arguments, times))
        assert (caught.value.param, caught.value.code) == ("messages", "too_many_values")


@pytest.mark.parametrize("asked", [CompletionCreateParamsBase, ResponseCreateParamsBase])
def test_no_tier_of_the_sdk_is_refused(asked: Any) -> None:
    """What OpenAI's SDK may send is taken."""
    (tiers,) = [kind for kind in get_args(get_type_hints(asked)["service_tier"]) if kind is not type(None)]
    assert set(get_args(tiers)) <= set(get_args(Tier))
