"""Large bodies: every field of every request in every form, and shapes that cost more than their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import msgspec
import pytest

from dynamo.frontend.openai.request_structs import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingsRequest,
    TokenizeRequest,
)

BYTES: Final = 640 << 10
USER: Final = [{"role": "user", "content": "hi"}]
ROUTES: Final[dict[str, tuple[type[msgspec.Struct], dict[str, Any]]]] = {
    "/v1/chat/completions": (ChatRequest, {"model": "m", "messages": USER, "max_tokens": 1}),
    "/v1/completions": (CompletionRequest, {"model": "m", "prompt": "hi", "max_tokens": 1}),
    "/v1/embeddings": (EmbeddingsRequest, {"model": "m", "input": "hi"}),
    "/tokenize": (TokenizeRequest, {"model": "m", "prompt": "hi"}),
    "/detokenize": (DetokenizeRequest, {"model": "m", "tokens": [1]}),
}
HEADERS: Final = {"content-type": "application/json"}


def hostile_values() -> Iterator[tuple[str, bytes]]:
    """JSON values of `BYTES`, one of each form."""
    yield "text", b'"' + b"a" * BYTES + b'"'
    yield "escapes", b'"' + b"\\u0041" * (BYTES // 6) + b'"'
    yield "numbers", b"[" + b",".join([b"1"] * (BYTES // 2)) + b"]"
    yield "texts", b"[" + b",".join([b'"a"'] * (BYTES // 4)) + b"]"
    yield "lists", b"[" + b",".join([b"[]"] * (BYTES // 3)) + b"]"
    yield "objects", b"[" + b",".join([b"{}"] * (BYTES // 3)) + b"]"
    yield "keys", b"{" + b",".join(b'"%x":0' % n for n in range(BYTES // 10)) + b"}"
    yield "depth", b"[" * (BYTES // 2) + b"]" * (BYTES // 2)
    yield "digits", b"9" * BYTES
    yield "surrogate", b'"' + b"a" * BYTES + b'\\ud800"'


def with_field(body: dict[str, Any], name: str, value: bytes) -> bytes:
    """Encode `body` with one field as raw JSON."""
    rest = {key: part for key, part in body.items() if key != name}
    head = json.dumps(rest)[:-1]
    return (head + (", " if rest else "") + json.dumps(name) + ": ").encode() + value + b"}"


@pytest.mark.parametrize("route", ROUTES)
def test_every_field_has_a_bound(served: Any, route: str) -> None:
    """A field of 640 KB, in whatever form, ends in an answer or a short refusal, never in a 5xx."""
    kind, body = ROUTES[route]
    wrong: list[Any] = []
    with httpx.Client(base_url=served.url, timeout=60) as client:
        for form, value in hostile_values():
            for name in (*kind.__struct_fields__, "unknown", "x" * 4096):
                answer = client.post(route, content=with_field(body, name, value), headers=HEADERS)
                refused = 400 <= answer.status_code < 500
                if answer.status_code != 200 and not (refused and len(answer.content) < 4096):
                    wrong.append((form, name[:40], answer.status_code, answer.text[:200]))
    assert wrong == []
    assert served.post(route, body).status_code in (200, 404)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"[]," * 600_000,
        b'{"model": "' + b"m" * (3 << 20) + b'"}',
        b"\xff" * 100_000,
    ],
)
def test_shapes_are_refused(served: Any, route: str, raw: bytes) -> None:
    """What is too deep, has too many parts or is no JSON is a 400 of a few hundred bytes."""
    answer = httpx.post(served.url + route, content=raw, headers=HEADERS, timeout=60)
    assert answer.status_code == 400, answer.text[:200]
    assert len(answer.content) < 1000


def test_a_body_over_the_limit_is_refused_unread(served: Any) -> None:
    """Four megabytes are the most by default."""
    raw = with_field({"model": "m"}, "prompt", b'"' + b"a" * (4 << 20) + b'"')
    answer = httpx.post(served.url + "/v1/completions", content=raw, headers=HEADERS, timeout=60)
    assert answer.status_code == 413


@pytest.mark.parametrize("digits", ["1", "0" * 11 + "1" + "9" * 20, "9" * 400, "-1", "1e3", ""])
def test_time_limits_are_numbers(served: Any, digits: str) -> None:
    """A time limit in a header is 1 to 24 hours in milliseconds, or a 400; nothing of it is a 500."""
    answer = served.post(
        "/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 1}, headers={"x-request-timeout-ms": digits}
    )
    assert answer.status_code in (200, 400, 504)


@pytest.mark.parametrize("value", [[1], {}, -5, "5", 1e308, 0])
def test_completions_check_the_newer_name(served: Any, value: Any) -> None:
    """`max_completion_tokens` of a completion is checked as chat's is."""
    body = {"model": "m", "prompt": "hi", "max_completion_tokens": value}
    assert served.post("/v1/completions", body).status_code == 400
