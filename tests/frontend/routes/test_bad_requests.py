"""Bad input: the right status, one sentence, the field's name, a string code; and nothing else is disturbed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALLS = {"role": "assistant", "tool_calls": [{"id": f"c{n}", "function": {"name": "f"}} for n in range(4)]}
RESULTS = [{"role": "tool", "tool_call_id": f"c{n}", "content": "x"} for n in range(4)]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": USER, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hi", **fields}


CASES: list[tuple[str, Any, int, str | None, str]] = [
    (CHAT, {"messages": USER}, 400, "model", "missing_required_parameter"),
    (CHAT, {"model": "m"}, 400, "messages", "missing_required_parameter"),
    (CHAT, chat(messages=[]), 400, "messages", "invalid_value"),
    (CHAT, chat(messages="hi"), 400, "messages", "invalid_type"),
    (CHAT, chat(messages=[{"content": "x"}]), 400, "messages[0].role", "missing_required_parameter"),
    (CHAT, chat(messages=[{"role": "user", "content": 3}]), 400, "messages[0].content", "invalid_type"),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400,
     "messages[0].content[0].image_url", "missing_required_parameter"),
    (CHAT, chat(model=3), 400, "model", "invalid_type"),
    (CHAT, chat(model="n"), 404, "model", "model_not_found"),
    (CHAT, chat(temperature=9), 400, "temperature", "invalid_value"),
    (CHAT, chat(temperature="hot"), 400, "temperature", "invalid_type"),
    (CHAT, chat(top_p=-0.1), 400, "top_p", "invalid_value"),
    (CHAT, chat(top_k=-2), 400, "top_k", "invalid_value"),
    (CHAT, chat(min_p=1.1), 400, "min_p", "invalid_value"),
    (CHAT, chat(repetition_penalty=0), 400, "repetition_penalty", "invalid_value"),
    (CHAT, chat(presence_penalty=3), 400, "presence_penalty", "invalid_value"),
    (CHAT, chat(seed=2**64), 400, "seed", "invalid_value"),
    (CHAT, chat(max_tokens=0), 400, "max_tokens", "invalid_value"),
    (CHAT, chat(max_tokens=1.5), 400, "max_tokens", "invalid_type"),
    (CHAT, chat(max_completion_tokens=-1), 400, "max_completion_tokens", "invalid_value"),
    (CHAT, chat(n=0), 400, "n", "invalid_value"),
    (CHAT, chat(n=129), 400, "n", "invalid_value"),
    (CHAT, chat(stop=[""]), 400, "stop", "invalid_value"),
    (CHAT, chat(stop=[1]), 400, "stop[0]", "invalid_type"),
    (CHAT, chat(stop=["a"] * 65), 400, "stop", "invalid_value"),
    (CHAT, chat(stop_token_ids=[-1]), 400, "stop_token_ids[0]", "invalid_value"),
    (CHAT, chat(logit_bias={"x": 1}), 400, "logit_bias", "invalid_value"),
    (CHAT, chat(logit_bias={"1": 1, "2": "x"}), 400, "logit_bias.2", "invalid_type"),
    (CHAT, chat(logit_bias={"1": 1, "2": 101}), 400, "logit_bias.2", "invalid_value"),
    (CHAT, chat(stream="yes"), 400, "stream", "invalid_type"),
    (CHAT, chat(stream_options={"include_usage": True}), 400, "stream_options", "invalid_value"),
    (CHAT, chat(top_logprobs=2), 400, "top_logprobs", "invalid_value"),
    (CHAT, chat(logprobs=True, top_logprobs=21), 400, "top_logprobs", "invalid_value"),
    (CHAT, chat(min_tokens=5, max_tokens=4), 400, "min_tokens", "invalid_value"),
    (CHAT, chat(response_format={"type": "xml"}), 400, "response_format", "unsupported_value"),
    (CHAT, chat(response_format={"type": "json_schema"}), 400, "response_format", "invalid_value"),
    (CHAT, chat(response_format={"type": "json_object"}, guided_regex="x"), 400, "response_format", "invalid_value"),
    (CHAT, chat(guided_json=7), 400, "guided_json", "invalid_type"),
    (CHAT, chat(guided_choice=[]), 400, "guided_choice", "invalid_type"),
    (CHAT, chat(guided_json={}, nvext={"guided_regex": "x"}), 400, "guided_json", "invalid_value"),
    (CHAT, chat(tool_choice="required"), 400, "tool_choice", "invalid_value"),
    (CHAT, chat(tool_choice="any"), 400, "tool_choice", "unsupported_value"),
    (CHAT, chat(tool_choice={"type": "function"}), 400, "tool_choice", "unsupported_value"),
    (CHAT, chat(tool_choice={"type": "function", "function": {"name": "g"}}, tools=TOOLS), 400, "tool_choice",
     "invalid_value"),
    (CHAT, chat(tool_choice="required", tools=TOOLS, guided_regex="x"), 400, "tool_choice", "invalid_value"),
    (CHAT, chat(tool_choice="required", tools=TOOLS, nvext={"guided_regex": "x"}), 400, "tool_choice", "invalid_value"),
    (CHAT, chat(tool_choice="required", tools=TOOLS, response_format={"type": "json_object"}), 400, "tool_choice",
     "invalid_value"),
    (CHAT, chat(messages=[{"role": "user", "content": "x" * 2000}]), 400, "messages", "context_length_exceeded"),
    (CHAT, {"model": "m", "mesages": USER}, 400, "messages", "missing_required_parameter"),
    (CHAT, chat(messages=[{"role": "wizard", "content": "x"}]), 400, "messages[0].role", "invalid_value"),
    (CHAT, chat(messages=[{"role": "user"}]), 400, "messages[0].content", "missing_required_parameter"),
    (CHAT, chat(messages=[{"role": "user", "content": None}]), 400, "messages[0].content", "invalid_type"),
    (CHAT, chat(messages=[{"role": "assistant"}]), 400, "messages[0].content", "missing_required_parameter"),
    (CHAT, chat(messages=[*USER, {"role": "tool", "content": "x"}]), 400, "messages[1].tool_call_id",
     "missing_required_parameter"),
    (CHAT, chat(messages=[*USER, {"role": "tool", "content": "x", "tool_call_id": "c"}]), 400,
     "messages[1].tool_call_id", "invalid_value"),
    (CHAT, chat(messages=[*USER, {"role": "assistant", "tool_calls": [{"type": "function", "function": {}}]}]), 400,
     "messages[1].tool_calls[0].id", "missing_required_parameter"),
    (CHAT, chat(messages=[*USER, {"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]}]), 400,
     "messages[1].tool_calls[0].function.name", "missing_required_parameter"),
    (CHAT, chat(messages=[*USER, CALLS, *RESULTS[:3]]), 400, "messages[1]", "invalid_value"),
    (CHAT, chat(messages=[*USER, CALLS, *RESULTS[1:], *USER, RESULTS[0]]), 400, "messages[1]", "invalid_value"),
    (CHAT, chat(messages=[*USER, CALLS, *USER]), 400, "messages[1]", "invalid_value"),
    (CHAT, chat(messages=[*USER, {"role": "assistant", "tool_calls": [{"id": "c", "type": "zz"}]}]), 400,
     "messages[1].tool_calls[0].type", "unsupported_value"),
    (CHAT, chat(messages=[*USER, {"role": "assistant", "tool_calls": [{"id": "c", "type": None}]}]), 400,
     "messages[1].tool_calls[0].function", "missing_required_parameter"),
    (CHAT, chat(metadata={"a": 1}), 400, "metadata.a", "invalid_type"),
    (CHAT, chat(metadata={"a": "x", "b.c": "x" * 513, "d": 1}), 400, "metadata.b.c", "invalid_value"),
    (CHAT, chat(metadata={"a" * 65: "x"}), 400, "metadata", "invalid_value"),
    (CHAT, chat(metadata={"a": None}), 400, "metadata.a", "invalid_type"),
    (CHAT, chat(tools=[{"function": {"name": "f"}}]), 400, "tools[0].type", "missing_required_parameter"),
    (CHAT, chat(tools=[{"type": "function"}]), 400, "tools[0].function", "missing_required_parameter"),
    (CHAT, chat(tools=[{"type": "function", "function": {}}]), 400, "tools[0].function.name",
     "missing_required_parameter"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "a b"}}]), 400, "tools[0].function.name",
     "invalid_value"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f", "parameters": []}}]), 400,
     "tools[0].function.parameters", "invalid_type"),
    (CHAT, chat(max_tokens=1024), 400, "max_tokens", "context_length_exceeded"),
    (CHAT, chat(max_completion_tokens=5000), 400, "max_completion_tokens", "context_length_exceeded"),
    (TEXT, text(max_tokens=1023), 400, "max_tokens", "context_length_exceeded"),
    (CHAT, chat(guided_jsn={"type": "object"}), 400, "guided_jsn", "unknown_parameter"),
    (CHAT, chat(nvext={"guided_regx": "x"}), 400, "nvext.guided_regx", "unknown_parameter"),
    (CHAT, chat(structured_outputs={"jsn": {}}), 400, "structured_outputs.jsn", "unknown_parameter"),
    (CHAT, chat(structured_outputs={"choice": []}), 400, "structured_outputs.choice", "invalid_type"),
    (CHAT, chat(structured_outputs=7), 400, "structured_outputs", "invalid_type"),
    (CHAT, chat(structured_outputs={"regex": "x"}, guided_regex="y"), 400, "structured_outputs.regex",
     "invalid_value"),
    (CHAT, chat(format="yaml"), 400, "format", "unsupported_value"),
    (CHAT, chat(regex=7), 400, "regex", "invalid_type"),
    (CHAT, chat(nvext={"max_thinking_tokens": -1}), 400, "nvext.max_thinking_tokens", "invalid_value"),
    (TEXT, text(nvext={"routing_constraints": {"required_taints": ["a"]}}), 400,
     "nvext.routing_constraints.required_taints", "unsupported_parameter"),
    (TEXT, text(bad_words=[" "]), 400, "bad_words", "invalid_value"),
    (TEXT, text(allowed_token_ids=[]), 400, "allowed_token_ids", "invalid_value"),
    (TEXT, text(allowed_token_ids=[999_999]), 400, "logit_bias", "invalid_value"),
    (TEXT, text(truncate_prompt_tokens=-2), 400, "truncate_prompt_tokens", "invalid_value"),
    (CHAT, chat(chat_template="{{ messages }}"), 400, "chat_template", "invalid_value"),
    (CHAT, chat(continue_final_message=True, add_generation_prompt=True), 400, "continue_final_message",
     "invalid_value"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f", "strict": "yes"}}]), 400,
     "tools[0].function.strict", "invalid_type"),
    (CHAT, chat(tools=[{"type": "custom"}]), 400, "tools[0].custom", "missing_required_parameter"),
    (CHAT, chat(tools=[{"type": "custom", "custom": {}}]), 400, "tools[0].custom.name", "missing_required_parameter"),
    (CHAT, chat(tools=[{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar"}}}]), 400,
     "tools[0].custom.format", "invalid_value"),
    (TEXT, text(response_format={"type": "xml"}), 400, "response_format", "unsupported_value"),
    ("/v1/rerank", {"model": "m", "query": "a", "documents": []}, 400, "documents", "invalid_value"),
    ("/v1/rerank", {"model": "m", "query": "a", "documents": [{}]}, 400, "documents[0]", "invalid_type"),
    ("/v1/rerank", {"model": "m", "query": "a", "documents": ["b"]}, 404, "model", "model_not_found"),
    ("/v1/score", {"model": "m", "text_1": ["a", "b"], "text_2": "c"}, 400, "text_1", "invalid_value"),
    (TEXT, {"model": "m"}, 400, "prompt", "missing_required_parameter"),
    (TEXT, text(prompt=[]), 400, "prompt", "invalid_value"),
    (TEXT, text(prompt={"a": 1}), 400, "prompt", "invalid_value"),
    (TEXT, text(prompt=[1, "a"]), 400, "prompt", "invalid_type"),
    (TEXT, text(prompt=[1, -1]), 400, "prompt", "invalid_type"),
    (TEXT, text(prompt=[1, 99_999_999]), 400, "prompt", "invalid_value"),
    (TEXT, text(prompt=""), 400, "prompt", "invalid_value"),
    (TEXT, text(prompt="x" * 2000), 400, "prompt", "context_length_exceeded"),
    (TEXT, text(prompt=["x"] * 100, n=100), 400, "n", "invalid_value"),
    (TEXT, text(prompt=["x"] * 3000), 400, "prompt", "invalid_value"),
    (TEXT, text(best_of=1, n=2), 400, "best_of", "invalid_value"),
    (TEXT, text(suffix="x"), 400, "suffix", "invalid_value"),
    (CHAT, chat(response_format={}), 400, "response_format.type", "missing_required_parameter"),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}), 400,
     "response_format.json_schema.strict", "invalid_type"),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {}}}), 400,
     "response_format.json_schema.name", "missing_required_parameter"),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {}, "name": 5}}), 400,
     "response_format.json_schema.name", "invalid_type"),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {}, "name": "a b"}}), 400,
     "response_format.json_schema.name", "invalid_value"),
    ("/v1/responses", {"model": "m", "input": "x", "text": {"format": {"type": "json_schema", "schema": {}}}}, 400,
     "text.format.name", "missing_required_parameter"),
    (CHAT, chat(messages=[{"role": "system", "content": [{"type": "image_url", "image_url": {}}]}, *USER]), 400,
     "messages[0].content[0]", "invalid_value"),
    (CHAT, chat(reasoning_effort="enormous"), 400, "reasoning_effort", "invalid_value"),
    (CHAT, chat(reasoning_effort=3), 400, "reasoning_effort", "invalid_type"),
    (CHAT, chat(reasoning_effort=["low"]), 400, "reasoning_effort", "invalid_type"),
    ("/tokenize", {"model": "m", "messages": USER, "reasoning_effort": "x"}, 400, "reasoning_effort", "invalid_value"),
    (CHAT, b'{"model":"m","temperature":1e400}', 400, None, "invalid_json"),
    (TEXT, text(logprobs=True), 400, "logprobs", "invalid_type"),
    (TEXT, text(metadata={"a": []}), 400, "metadata.a", "invalid_type"),
    (CHAT, b"{", 400, None, "invalid_json"),
    (CHAT, b"", 400, None, "invalid_json"),
    (CHAT, b"[]", 400, None, "invalid_json"),
    (CHAT, b'{"model": NaN}', 400, None, "invalid_json"),
    (CHAT, b'{"model":"\xff"}', 400, None, "invalid_json"),
    (CHAT, b"[" * 100_000, 400, None, "invalid_json"),
    (TEXT, b'{"model":"m","prompt":"a\\ud800b"}', 400, None, "invalid_string"),
    ("/tokenize", {"model": "m"}, 400, "prompt", "invalid_value"),
    ("/detokenize", {"model": "m", "tokens": ["a"]}, 400, "tokens[0]", "invalid_type"),
    ("/detokenize", {"model": "m", "tokens": [99_999_999]}, 400, "tokens", "invalid_value"),
    ("/v1/nope", {}, 404, None, "unknown_url"),
    ("/chat/completions", {}, 404, None, "unknown_url"),
    ("/v1/models", {}, 405, None, "method_not_allowed"),
]  # fmt: skip


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer that has OpenAI's form."""
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize("stream", [False, True])
def test_table(served: Any, stream: bool) -> None:
    """Every wrong request is answered by its status, field and code, streaming or not."""
    wrong: list[Any] = []
    with httpx.Client(base_url=served.url) as client:
        for path, body, status, param, code in CASES:
            if isinstance(body, dict) and path in (CHAT, TEXT) and "stream" not in body:
                body = {**body, "stream": stream} if "stream_options" not in body else body
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = client.post(path, content=raw, headers={"content-type": "application/json"})
            error = error_of(answer)
            if (answer.status_code, error["param"], error["code"]) != (status, param, code):
                wrong.append((path, raw[:80], answer.status_code, error))
            if error["type"] != "invalid_request_error" or len(error["message"]) < 10:
                wrong.append((path, raw[:80], error))
    assert not wrong
    assert served.post(TEXT, text(max_tokens=2)).json()["choices"][0]["text"] == "hi"


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions"])
def test_a_base_url_that_is_a_little_wrong(served: Any, path: str) -> None:
    """Without /v1, or with it twice: the message names the route."""
    assert "Did you mean /v1/chat/completions?" in error_of(served.post(path, {}))["message"]


def test_over_long_prompt_names_both_lengths(served: Any) -> None:
    """The sentence says how long the prompt is and how long it may be."""
    message = error_of(served.post(TEXT, text(prompt="x" * 2000)))["message"]
    assert "1024" in message
    assert "2000" in message


def test_nul_is_a_character(served: Any) -> None:
    """A NUL is text like any other."""
    assert served.post(TEXT, text(prompt="a\0b", max_tokens=3)).json()["choices"][0]["text"] == "a\0b"


def test_wrong_content_type(served: Any) -> None:
    """Another content type is 415; none at all counts as JSON."""
    answer = httpx.post(served.url + CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert (answer.status_code, error_of(answer)["code"]) == (415, "unsupported_media_type")
    bare = httpx.post(served.url + TEXT, content=json.dumps(text(max_tokens=1)).encode())
    assert bare.status_code == 200


def test_wrong_method_on_a_hot_route(served: Any) -> None:
    """GET on a POST route is 405 and says what is allowed."""
    answer = httpx.get(served.url + CHAT)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert error_of(answer)["code"] == "method_not_allowed"


def test_unknown_model_suggests_the_near_one(site: Any, echo: Any) -> None:
    """A typo in the model's name gets a hint."""
    site.worker(echo, "org/llama-3")
    error = error_of(site.post(TEXT, text(model="org/lama-3")))
    assert "Did you mean 'org/llama-3'?" in error["message"]


def test_unknown_fields_are_ignored_or_refused(served: Any, make_site: Any, engines: Any) -> None:
    """Unknown fields are ignored; with strict fields they are refused by name, with a hint."""
    assert served.post(TEXT, text(max_tokens=1, temprature=1)).status_code == 200
    strict = make_site(strict_fields=True)
    strict.worker(engines())
    error = error_of(strict.post(TEXT, text(temprature=1, nvext={"foo": 1})))
    assert (error["param"], error["code"]) == ("temprature", "unknown_parameter")
    assert "did you mean temperature?" in error["message"]
    assert "nvext.foo" in error["message"]
    error = error_of(strict.post(TEXT, text(stream=True, stream_options={"include_usgae": True})))
    assert error["param"] == "stream_options.include_usgae"
    assert "did you mean stream_options.include_usage?" in error["message"]


@pytest.mark.parametrize(
    ("route", "body", "field", "meant"),
    [
        ("/v1/responses", {"input": "x", "text": {"formt": {"type": "json_object"}}}, "text.formt", "text.format"),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "output_config": {"formt": {}}},
            "output_config.formt", "output_config.format",
        ),
        (TEXT, {"prompt": "x", "formt": "json"}, "formt", "format"),
        ("/v1/responses", {"input": "x", "response_format": {"type": "json_object"}}, "response_format", ""),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "output_format": {"type": "x"}},
            "output_format", "output_config.format",
        ),
    ],
)  # fmt: skip
def test_a_constraint_is_never_ignored(served: Any, route: str, body: dict[str, Any], field: str, meant: str) -> None:
    """Also where it is misspelt within an object: what comes would look like an answer that keeps to it."""
    answer = served.post(route, {"model": "m", **body})
    assert answer.status_code == 400
    assert f"{field}: unknown" in answer.text
    hint = f"Did you mean {meant}?" if meant else "Known are text.format."
    assert hint in answer.text


def test_unknown_members_of_objects_are_named(served: Any) -> None:
    """As unknown fields are, whose own names may have dots."""
    for name in ("nvext.x", "stream_options.x", "a.b", "text.", "."):
        answer = served.post("/v1/responses", {"model": "m", "input": "x", name: 1})
        assert (answer.status_code, answer.headers["x-dynamo-ignored-fields"]) == (200, name)
    answer = served.post("/v1/responses", {"model": "m", "input": "x", "reasoning": {"efort": "low"}})
    assert (answer.status_code, answer.headers["x-dynamo-ignored-fields"]) == (200, "reasoning.efort")
    answer = served.post(TEXT, text(max_tokens=1, stream=True, stream_options={"include_usgae": True}))
    assert answer.headers["x-dynamo-ignored-fields"] == "stream_options.include_usgae"


def test_ignored_fields_are_named_in_a_header(served: Any) -> None:
    """What nobody knows is named to the client, printable and bounded; what is known isn't."""
    answer = served.post(TEXT, text(max_tokens=1, temprature=1, user="u", **{"a\r\nb": 1}))
    assert (answer.status_code, answer.headers["x-dynamo-ignored-fields"]) == (200, "a??b, temprature")
    many = served.post(TEXT, text(max_tokens=1, **{f"{'x' * 500}{number}": 1 for number in range(200)}))
    assert 1000 < len(many.headers["x-dynamo-ignored-fields"]) < 2000
    assert "x-dynamo-ignored-fields" not in served.post(TEXT, text(max_tokens=1)).headers
    thinking = served.post(TEXT, text(max_tokens=1, nvext={"max_thinking_tokens": 4}))
    assert (thinking.status_code, thinking.headers["x-dynamo-ignored-fields"]) == (200, "nvext.max_thinking_tokens")


@pytest.mark.parametrize(
    ("said", "guided"),
    [
        ({"structured_outputs": {"json": {"type": "object"}}}, {"json": {"type": "object"}}),
        ({"structured_outputs": {"json_object": True, "regex": None}}, {"json": {"type": "object"}}),
        ({"structured_outputs": {"choice": ["a"], "disable_any_whitespace": False}}, {"choice": ["a"]}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"ebnf": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"format": "json"}, {"json": {"type": "object"}}),
        ({"json_schema": '{"type":"object"}'}, {"json": '{"type":"object"}'}),
        ({"use_beam_search": False, "length_penalty": 1.0, "bad_words": []}, None),
    ],
)
def test_constraints_in_other_servers_words(served: Any, echo: Any, said: Any, guided: Any) -> None:
    """The engine is told the same, whichever server's words a client uses."""
    answer = served.post(CHAT, chat(max_tokens=1, **said))
    assert answer.status_code == 200, answer.text
    assert echo.seen[0].get("sampling_options", {}).get("guided_decoding") == guided


def test_a_whole_tool_conversation_is_taken(served: Any) -> None:
    """Calls and their answers, silence of an assistant that has called, and a developer's words pass."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "developer", "content": "be short"}, *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
        {"role": "assistant", "reasoning_content": "hm"}, *USER,
    ]  # fmt: skip
    assert served.post(CHAT, chat(messages=turns, tools=TOOLS, max_tokens=1)).status_code == 200


def test_calls_without_a_result_are_named_briefly(served: Any) -> None:
    """An error names the calls that nobody answered, three at most; ids may be the same in another turn."""
    again = [*USER, CALLS, *RESULTS, CALLS, *RESULTS[::-1]]
    taken = served.post(CHAT, chat(messages=again, max_tokens=1))
    assert taken.status_code == 200, taken.text
    begun = {
        "messages": [*USER, {**CALLS, "content": "I call"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert served.post(CHAT, chat(**begun, max_tokens=1)).status_code == 200
    refused = error_of(served.post(CHAT, chat(messages=[*again, CALLS])))
    assert refused["param"] == "messages[11]"
    assert "none answers 'c0', 'c1', 'c2' and others." in refused["message"]


def test_request_id_is_echoed_or_made(served: Any) -> None:
    """A usable x-request-id comes back on answers and errors; others are replaced."""
    for path, status in (("/health", 200), ("/nope", 404)):
        answer = httpx.get(served.url + path, headers={"x-request-id": "my-id-7"})
        assert (answer.status_code, answer.headers.get_list("x-request-id")) == (status, ["my-id-7"])
    answer = served.post(TEXT, text(max_tokens=1), headers={"x-request-id": "bad id"})
    assert len(answer.headers["x-request-id"]) == 32
