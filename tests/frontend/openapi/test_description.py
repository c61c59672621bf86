"""`/openapi.json` and `/docs`: what they say is what is served, and a browser asks nobody else for it."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest

from dynamo.frontend.anthropic.answer_structs import MessagesErrorReply
from dynamo.frontend.openai.requests import take_whole, take_whole_prompt
from dynamo.frontend.openapi.description import Error
from dynamo.frontend.responses.answer_structs import ANSWERS

JSON = "application/json"
ASKED = [{"role": "user", "content": "a"}]


def test_every_answer_is_described(served: Any) -> None:
    """Errors of each route, the form of the figures, and nothing that FastAPI would say of its own."""
    described = httpx.get(f"{served.url}/openapi.json").json()
    paths = described["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert {"200", "400", "503"} <= set(operation["responses"]), path
            assert "422" not in operation["responses"], path
            if method == "post":
                assert {"404", "413", "415", "429"} <= set(operation["responses"]), path
    assert set(paths["/metrics"]["get"]["responses"]["200"]["content"]) == {"text/plain"}
    assert "409" in paths["/busy_threshold"]["post"]["responses"]
    assert "Validation" not in json.dumps(described)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/busy_threshold", "GET, HEAD, POST"), ("PATCH", "/busy_threshold/a/b", "DELETE"),
        ("POST", "/metrics", "GET, HEAD"), ("POST", "/docs", "GET, HEAD"),
        ("PUT", "/v1/chat/completions", "POST"), ("PUT", "/live", "GET, HEAD"), ("DELETE", "/tokenize", "POST"),
    ],
)  # fmt: skip
def test_a_wrong_method_is_told_all_right_ones(site: Any, method: str, path: str, allowed: str) -> None:
    """`Allow` has every method of the path, whichever route has which."""
    answer = httpx.request(method, site.url + path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    ("method", "path", "asked"),
    [
        ("post", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("post", "/v1/completions", {"prompt": "a", "max_tokens": 1, "logprobs": 1}),
        ("post", "/tokenize", {"prompt": "a", "return_token_strs": True}),
        ("post", "/detokenize", {"tokens": [97]}),
        ("post", "/v1/responses", {"input": "a", "max_output_tokens": 16}),
        ("post", "/v1/responses/input_tokens", {"input": "a"}),
        ("post", "/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("post", "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]}),
        ("get", "/v1/models", None), ("get", "/v1/models/m", None), ("get", "/v1/models/m/ready", None),
        ("get", "/version", None), ("get", "/live", None),
    ],
)  # fmt: skip
def test_answers_have_the_types_that_are_described(served: Any, method: str, path: str, asked: Any) -> None:
    """Each member of an answer is described, with its type."""
    body = None if asked is None else {"model": "m", **asked}
    answer = httpx.request(method, served.url + path, json=body)
    kind = ANSWERS[method, path.replace("/models/m", "/models/{model_id}")]
    said = answer.json()
    msgspec.convert(said, kind)
    assert said.keys() <= set(kind.__struct_fields__)
    described = httpx.get(f"{served.url}/openapi.json").json()
    assert kind.__name__ in described["components"]["schemas"]


def test_what_the_schema_allows_is_taken(served: Any) -> None:
    """Whole numbers written as floats, in fields, in nested ones and as token ids of a prompt."""
    asked = {"model": "m", "prompt": [104.0, 105], "max_tokens": 3.0, "nvext": {"agent_hints": {"priority": 1.0}}}
    for prompt in ([104.0, 105], [[104, 105.0], [104.0]], "hi"):
        assert served.post("/v1/completions", asked | {"prompt": prompt}).status_code == 200, prompt
    assert served.post("/detokenize", {"model": "m", "tokens": [104.0, 105]}).json()["prompt"] == "hi"
    for wrong in ({"max_tokens": 3.5}, {"max_tokens": 1e300}, {"prompt": [104.5]}, {"prompt": [1e300]}):
        assert served.post("/v1/completions", asked | wrong).status_code == 400, wrong


@pytest.mark.parametrize("deep", [10, 100_000])
def test_a_field_is_walked_however_deep_it_is(deep: int) -> None:
    """Without a stack that could end, and not beyond a bound."""
    value: Any = 5.0
    for _ in range(deep):
        value = [value]
    body = {"nvext": value, "prompt": [1.0] * 200_000}
    assert take_whole(body, "Expected `int`, got `float` - at `$.nvext.dp_rank`") is (deep == 10 or deep <= 100_000)
    take_whole_prompt(body)
    assert body["prompt"][0] == 1.0
    assert not take_whole({}, "Expected `int`, got `float` - at `$.gone`")
    assert not take_whole({"a": 1.5}, "Expected `int | null`, got `float` - at `$.a`")


@pytest.mark.parametrize(
    ("kind", "path", "field", "asked"),
    [
        ("ChatRequest", "/v1/chat/completions", "stop", {"messages": ASKED}),
        ("CompletionRequest", "/v1/completions", "stop", {"prompt": "a"}),
        ("ResponsesRequest", "/v1/responses", "stop", {"input": "a"}),
        ("MessagesRequest", "/v1/messages", "stop_sequences", {"messages": ASKED, "max_tokens": 1}),
    ],
)  # fmt: skip
def test_as_many_stops_are_taken_as_are_described(served: Any, kind: str, path: str, field: str, asked: Any) -> None:
    """And no more; the refusal says how many."""
    described = httpx.get(f"{served.url}/openapi.json").json()["components"]["schemas"][kind]["properties"][field]
    (stops,) = [form for form in described["anyOf"] if form.get("type") == "array"]
    most, longest = stops["maxItems"], stops["items"]["maxLength"]
    assert served.post(path, {"model": "m", **asked, field: ["x" * longest] * most}).status_code == 200
    refused = served.post(path, {"model": "m", **asked, field: ["x"] * (most + 1)})
    assert (refused.status_code, f"<= {most}" in refused.text) == (400, True)
    assert served.post(path, {"model": "m", **asked, field: ["x" * (longest + 1)]}).status_code == 400


def test_docs_is_a_page_of_ours(served: Any) -> None:
    """All routes and fields, no script, nothing of another host, and a policy that lets a browser load nothing."""
    answer = httpx.get(f"{served.url}/docs")
    policy = answer.headers["content-security-policy"]
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page = answer.text
    assert not re.search(r"<script|https?://|\bon\w+=|<link|<img|<iframe", page)
    described = httpx.get(f"{served.url}/openapi.json").json()
    for path in described["paths"]:
        assert path.replace("{", "{") in page
    assert "max_completion_tokens" in page


def test_docs_shows_text_as_text() -> None:
    """Whatever a description holds is no markup."""
    from dynamo.frontend.routes.docs_page import page

    hostile = "<script>alert(1)</script>"
    shown = page(
        {
            "info": {"title": hostile, "version": hostile, "description": hostile},
            "paths": {
                f"/{hostile}": {
                    "get": {
                        "summary": hostile,
                        "responses": {"200": {"description": hostile, "content": {hostile: {}}}},
                        "requestBody": {"content": {JSON: {"schema": {"properties": {hostile: {"type": hostile}}}}}},
                    }
                }
            },
        }
    )
    assert "<script" not in shown


def every(schema: Any) -> list[Any]:
    """Return all objects within, itself included."""
    if isinstance(schema, dict):
        return [schema, *(inner for value in schema.values() for inner in every(value))]
    return [inner for value in schema for inner in every(value)] if isinstance(schema, list) else []


def test_generators_can_make_types_of_it(served: Any) -> None:
    """No field is null unless it is sent, no object is closed by accident, and no body is a union of objects."""
    described = httpx.get(f"{served.url}/openapi.json").json()
    schemas = described["components"]["schemas"]
    for name, schema in schemas.items():
        assert schema["type"] == "object", name
        assert not schema.keys() & {"allOf", "anyOf", "oneOf"}, name
        for part in every(schema["properties"]):
            assert part.get("default", "") is not None, name
            assert part.get("type") != "object" or part.keys() & {"properties", "additionalProperties", "propertyNames"}
            assert part.get("type") != "array" or "items" in part, name
    assert "anyOf" in json.dumps(schemas["ChatRequest"]["then"])  # what fields say together is still there
    names = [operation["operationId"] for methods in described["paths"].values() for operation in methods.values()]
    assert len({*names}) == len(names)


def test_linters_find_what_they_want(served: Any) -> None:
    """Where the server is, how a key is sent, what each tag means, and a sentence on each route."""
    described = httpx.get(f"{served.url}/openapi.json").json()
    operations = [operation for methods in described["paths"].values() for operation in methods.values()]
    assert described["servers"] == [{"url": "/"}]
    assert {} in described["security"]
    assert {name for need in described["security"] for name in need} == {*described["components"]["securitySchemes"]}
    assert {tag["name"] for tag in described["tags"]} == {tag for operation in operations for tag in operation["tags"]}
    assert all(operation["description"].endswith(".") for operation in operations)


def test_errors_and_events_are_described_in_the_words_of_their_api(served: Any) -> None:
    """Messages' errors are not OpenAI's, and the data of a stream's events has a type."""
    paths = httpx.get(f"{served.url}/openapi.json").json()["paths"]
    kinds = {}
    for path in ("/v1/chat/completions", "/v1/messages"):
        answers = paths[path]["post"]["responses"]
        event = answers["200"]["content"]["text/event-stream"]["schema"]["contentSchema"]["$ref"]
        kinds[path] = (answers["404"]["content"][JSON]["schema"]["$ref"].rpartition("/")[2], event.rpartition("/")[2])
    assert kinds == {
        "/v1/chat/completions": ("Error", "ChatChunk"), "/v1/messages": ("MessagesErrorReply", "MessageEvent"),
    }  # fmt: skip
    for path, kind in (("/v1/chat/completions", Error), ("/v1/messages", MessagesErrorReply)):
        msgspec.convert(served.post(path, {"model": "nobody", "messages": [], "max_tokens": 1}).json(), kind)


def test_tokens_of_the_only_model(served: Any) -> None:
    """lm-eval's remote tokenizer names no model, as with vLLM."""
    tokens = served.post("/tokenize", {"prompt": "hi", "add_special_tokens": False}).json()["tokens"]
    assert served.post("/detokenize", {"tokens": tokens}).json() == {"prompt": "hi"}


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"prompt": ["hi", [104]]}, 400), ({"prompt": ["hi", "ho"]}, 200),
        ({"max_tokens": 0, "stream": True}, 400), ({"max_tokens": 0, "stream": False, "echo": True}, 200),
    ],
)  # fmt: skip
def test_what_the_route_refuses_is_not_described(served: Any, asked: dict[str, Any], status: int) -> None:
    """Seen by schemathesis: prompts of two kinds, and an answer of no tokens as a stream."""
    described = httpx.get(f"{served.url}/openapi.json").json()
    body = {"model": "m", "prompt": "hi", "max_tokens": 1} | asked
    schema = {"$ref": "#/components/schemas/CompletionRequest", "components": described["components"]}
    assert served.post("/v1/completions", body).status_code == status
    assert jsonschema.Draft202012Validator(schema).is_valid(body) is (status == 200)
