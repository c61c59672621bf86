"""`POST /v1/messages` by the `anthropic` SDK and by raw HTTP: what a scripted worker says, streamed and whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anthropic
import httpx
import pytest

from dynamo.frontend.limits.request_threads import Turn
from dynamo.llm.models.file_cache import FileCache
from dynamo.llm.protocols import delta

TOOL: Any = {
    "name": "get_weather", "description": "Looks.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
ASK: Any = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{# shows no tools #}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.reasoning_content %}(thought {{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls or [] %}(calls {{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}"
    "{% endfor %}{% if enable_thinking is defined %}<{{ enable_thinking }}>{% endif %}"
)


@pytest.fixture
def start(make_site: Any, speaker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Start a frontend whose model thinks and calls as the speaker says."""
    monkeypatch.setenv("DYN_CACHE_DIR", str(tmp_path))

    def start(wait: bool = True, **settings: Any) -> Any:
        template = FileCache(tmp_path).keep(TEMPLATE.encode(), "chat_template.jinja")
        site = make_site(**settings)
        site.worker(
            speaker, tool_call_parser="hermes", reasoning_parser="qwen3", context_length=100_000,
            files={"chat_template": template}, wait=wait,
        )  # fmt: skip
        return site

    return start


@pytest.fixture
def talking(start: Callable[..., Any]) -> Any:
    return start()


def client(site: Any, **options: Any) -> anthropic.Anthropic:
    """The SDK, without retries."""
    return anthropic.Anthropic(base_url=site.url, max_retries=0, timeout=20, **{"api_key": "any", **options})


def asked(site: Any, **options: Any) -> tuple[Any, list[Any]]:
    """Ask for a whole message, and for a stream's raw events."""
    options = {"model": "m", "max_tokens": 500, "messages": ASK, **options}
    with client(site) as sdk:
        return sdk.messages.create(**options), list(sdk.messages.create(**options, stream=True))


def prompt_of(speaker: Any) -> str:
    return bytes(speaker.seen[-1]["token_ids"]).decode()


def test_text(talking: Any, speaker: Any) -> None:
    """A whole message, and a stream's events in Anthropic's order."""
    speaker.answer = "Grüezi"
    whole, events = asked(talking, system="Be brief.")
    assert (whole.type, whole.role, whole.model, whole.stop_reason) == ("message", "assistant", "m", "end_turn")
    assert [block.text for block in whole.content] == ["Grüezi"]
    assert whole.id.startswith("msg_")
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (len("[system]Be brief.[user]hi"), 7)
    kinds = [event.type for event in events]
    deltas = kinds.count("content_block_delta")
    assert kinds == [
        "message_start", "content_block_start", *["content_block_delta"] * deltas, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[0].message.usage.input_tokens == whole.usage.input_tokens
    assert "".join(event.delta.text for event in events if event.type == "content_block_delta") == "Grüezi"
    assert (events[-2].delta.stop_reason, events[-2].usage.output_tokens) == ("end_turn", 7)


def test_thoughts_and_calls(talking: Any, speaker: Any) -> None:
    """Blocks in their order, and what the SDK puts together of a stream is the whole message."""
    speaker.answer = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    whole, _ = asked(talking, tools=[TOOL], thinking=thinking)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    thought, text, first, second = whole.content
    assert (thought.thinking, text.text, whole.stop_reason) == ("Hm.", "I look.", "tool_use")
    assert thought.signature
    assert (first.name, first.input) == ("get_weather", {"city": "Zürich"})
    assert first.id != second.id
    assert whole.usage.output_tokens_details.thinking_tokens > 0
    with client(talking) as sdk, sdk.messages.stream(
        model="m", max_tokens=500, messages=ASK, tools=[TOOL], thinking=thinking
    ) as stream:  # fmt: skip
        final = stream.get_final_message()
    ids: Any = {"content": {"__all__": {"id", "parsed_output"}}, "id": True}
    assert final.model_dump(exclude=ids) == whole.model_dump(exclude=ids)
    assert prompt_of(speaker).endswith("<True>")


def test_a_conversation_goes_on(talking: Any, speaker: Any) -> None:
    """What a message said is sent back with the tools' results: the model sees one turn of its own, then theirs."""
    speaker.answer = f"<think>Hm.</think>I look.{CALL}{CALL}"
    with client(talking) as sdk:
        first = sdk.messages.create(model="m", max_tokens=500, messages=ASK, tools=[TOOL])
        calls = [block.id for block in first.content if block.type == "tool_use"]
        results: Any = [
            {"type": "tool_result", "tool_use_id": calls[0], "content": "sunny"},
            {"type": "tool_result", "tool_use_id": calls[1], "is_error": True,
             "content": [{"type": "text", "text": "no such city"}]},
            {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
        ]  # fmt: skip
        messages: Any = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        system: Any = [
            {"type": "text", "text": "x-anthropic-billing-header: abc"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ]
        sdk.messages.create(
            model="m", max_tokens=50, messages=messages, tools=[TOOL], system=system, thinking={"type": "disabled"}
        )
        call = '(calls get_weather {"city": "Zürich"})'
        seen = f"[system]Be brief.[user]hi[assistant]I look.(thought Hm.){call}{call}"
        assert prompt_of(speaker) == f"{seen}[tool]sunny[tool]no such city[user]And?<False>"
        counted = sdk.messages.count_tokens(
            model="m", messages=messages, tools=[TOOL], system=system, thinking={"type": "disabled"}
        )
    assert counted.input_tokens == len(prompt_of(speaker).encode())


def test_ends(talking: Any, speaker: Any) -> None:
    """A stop sequence is named; a limit is `max_tokens`."""
    speaker.answer = "one END two"
    whole, events = asked(talking, stop_sequences=["END"])
    assert (whole.stop_reason, whole.stop_sequence, whole.content[0].text) == ("stop_sequence", "END", "one ")
    assert (events[-2].delta.stop_reason, events[-2].delta.stop_sequence) == ("stop_sequence", "END")
    whole, _ = asked(talking, max_tokens=3)
    assert (whole.stop_reason, whole.stop_sequence, whole.content[0].text) == ("max_tokens", None, "one")
    speaker.answer = ""
    whole, events = asked(talking)
    assert (whole.content, whole.stop_reason) == ([], "end_turn")


def test_forced_tools_and_schemas(talking: Any, speaker: Any) -> None:
    """`any` and a named tool are forced; `output_config.format` constrains the text."""
    speaker.answer = '{"city": "Bern"}'
    whole, _ = asked(talking, tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"})
    assert [(block.name, block.input) for block in whole.content] == [("get_weather", {"city": "Bern"})]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    speaker.answer = '[{"name": "get_weather", "parameters": {"city": "Bern"}}]'
    asked(talking, tools=[TOOL], tool_choice=choice)
    assert speaker.seen[-1]["sampling_options"]["guided_decoding"]["json"]["maxItems"] == 1
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    asked(talking, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert speaker.seen[-1]["sampling_options"]["guided_decoding"]["json"] == schema


IMAGE: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
USE: Any = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
RESULT: Any = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
MISTAKES: Final[list[tuple[dict[str, Any], str]]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]: the model 'm' takes no images"),
    ({"messages": [{"role": "user", "content": [RESULT]}]}, "messages[0].content[0].tool_use_id: no call"),
    (
        {"messages": [{"role": "assistant", "content": [USE]}, {"role": "user", "content": "x"}]},
        "messages: each tool call needs its result before the model can go on; these have none: 't'.",
    ),
    (
        {"messages": [{"role": "assistant", "content": [USE, USE]}, {"role": "user", "content": [RESULT]}]},
        "messages: each tool call needs its result before the model can go on; these have none: 't'.",
    ),
    ({"service_tier": "flex"}, "service_tier"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    ({"messages": [*ASK, {"role": "assistant", "content": "I"}]}, "messages: the last one is the assistant's"),
    ({"system": [IMAGE]}, "system[0]"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}, "tools[0]: tools of type"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "deep"}}, "thinking.type"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name: expected 1 to 128 letters"),
    ({"tools": [{"name": "a" * 129, "input_schema": {}}]}, "tools[0].name: expected 1 to 128 letters"),
    ({"tools": [{"name": "a", "input_schema": {"type": "string"}}]}, "tools[0].input_schema.type: expected object"),
    ({"tools": [{"name": "a", "input_schema": {}}] * 2}, "tools[1].name: tool names must be unique"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_k": -1}, "top_k"),
    ({"messages": [{"role": "user", "content": "x" * 200_000}]}, "prompt is too long: 200006 tokens > 100000 maximum"),
]


def test_mistakes(talking: Any) -> None:
    """Each is a 400 in Anthropic's shape, whose message names the field."""
    for body, beginning in MISTAKES:
        answer = talking.post("/v1/messages", {"model": "m", "max_tokens": 5, "messages": ASK, **body})
        assert answer.status_code == 400, (body, answer.text)
        said = answer.json()
        assert (said["type"], said["error"]["type"]) == ("error", "invalid_request_error")
        assert said["error"]["message"].startswith(beginning), said
        assert answer.headers["request-id"] == answer.headers["x-request-id"]


def test_errors_are_the_sdks(talking: Any) -> None:
    """The SDK raises its own classes, on routes that aren't there too; a version is a date."""
    with client(talking) as sdk:
        assert [model.id for model in sdk.models.list()] == ["m"]
        with pytest.raises(anthropic.NotFoundError):
            sdk.messages.create(model="nobody", max_tokens=5, messages=ASK)
        with pytest.raises(anthropic.BadRequestError):
            sdk.messages.count_tokens(model="m", messages=[])
        with pytest.raises(anthropic.NotFoundError):
            sdk.messages.count_tokens(model="nobody", messages=ASK)
    body = {"model": "m", "max_tokens": 5, "messages": ASK}
    wrong = talking.post("/v1/messages", body, headers={"anthropic-version": "newest"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")
    assert talking.post("/v1/messages", body, headers={"anthropic-version": "2023-06-01"}).status_code == 200
    assert httpx.get(f"{talking.url}/v1/messages").json()["type"] == "error"
    assert talking.post("/v1/messages/batches", {}).json()["error"]["type"] == "not_found_error"
    assert talking.metric("requests_total", endpoint="anthropic_messages", status="success", model="m") == 1


def ids(site: Any, **asked: Any) -> tuple[list[str], bool]:
    """The models of a page, and whether there are more."""
    with client(site) as sdk:
        page = sdk.models.list(**asked)
        assert (page.first_id, page.last_id) == ((page.data[0].id, page.data[-1].id) if page.data else (None, None))
        return [model.id for model in page.data], bool(page.has_more)


def test_models_are_listed_by_pages(site: Any, echo: Any) -> None:
    """As the SDK asks for them; it reads all pages by itself, and how much a model takes."""
    for number, name in enumerate("abc"):
        site.worker(
            echo, name=name, path=f"test.{name}.generate", context_length=None if name == "c" else 1000 + number
        )
    assert ids(site) == (["a", "b", "c"], False)
    assert ids(site, limit=2) == (["a", "b"], True)
    assert ids(site, limit=2, after_id="a") == (["b", "c"], False)
    assert ids(site, after_id="c") == ([], False)
    assert ids(site, limit=1, before_id="c") == (["b"], True)
    assert ids(site, limit=1000, before_id="c") == (["a", "b"], False)
    assert ids(site, before_id="a") == ([], False)
    with client(site) as sdk:
        assert [model.id for model in sdk.models.list(limit=1)] == ["a", "b", "c"]
        assert [model.max_input_tokens for model in sdk.models.list()] == [1000, 1001, None]
        assert sdk.models.retrieve("b").max_input_tokens == 1001


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"), ("limit=1001", "limit"), ("limit=-1", "limit"), ("limit=a", "limit"), ("limit=", "limit"),
        ("after_id=zz", "after_id"), ("before_id=zz", "before_id"), ("after_id=m&before_id=m", "before_id"),
    ],
)  # fmt: skip
def test_pages_that_are_none(served: Any, query: str, field: str) -> None:
    """A 400 in Anthropic's shape names the field; OpenAI's list has no pages."""
    path = f"{served.url}/v1/models?{query}"
    refused = httpx.get(path, headers={"anthropic-version": "2023-06-01"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert refused.json()["error"]["message"].startswith(f"{field}: ")
    assert [model["id"] for model in httpx.get(path).json()["data"]] == ["m"]


def test_threads_are_refused_as_the_sdk_understands(talking: Any, speaker: Any) -> None:
    """The SDK's tool runner asks the server to hold its conversation, hears no, and sends all of it from then on."""
    cities = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Look at a city."""
        cities.append(city)
        speaker.answer = "Sunny."
        return "sun"

    speaker.answer = CALL
    with client(talking) as sdk:
        runner = sdk.beta.messages.tool_runner(model="m", max_tokens=500, tools=[get_weather], messages=ASK)
        assert [block.to_dict()["text"] for block in runner.until_done().content] == ["Sunny."]
    assert cities == ["Zürich"]
    other = {"type": "continue", "previous_message_id": "msg_1"}
    said = talking.post("/v1/messages", {"model": "m", "max_tokens": 5, "messages": ASK, "thread": other})
    assert (said.status_code, said.json()["error"]["details"]["error_code"]) == (400, "thread_not_found")


def test_a_failure_in_mid_stream(talking: Any, speaker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream ends with an `error` event, which the SDK raises."""

    async def speak(incoming: Any, payload: dict[str, Any]) -> None:
        incoming.send(delta([65], None))
        await asyncio.sleep(0.05)
        incoming.finish(delta([], "error", {"message": "out of steam"}))

    monkeypatch.setattr(speaker, "speak", speak)
    with client(talking) as sdk:
        stream = sdk.messages.create(model="m", max_tokens=5, messages=ASK, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="out of steam"):
            list(stream)
        with pytest.raises(anthropic.InternalServerError):
            sdk.messages.create(model="m", max_tokens=5, messages=ASK)


def test_keys(start: Callable[..., Any], tmp_path: Path, within: Callable[..., Any]) -> None:
    """Where keys are asked for, `x-api-key` is one, and so is a bearer's; without any it is a 401 in this shape."""
    keys = tmp_path / "keys"
    keys.write_text("secret-1\n")
    site = start(wait=False, api_keys_file=str(keys))
    body = {"model": "m", "max_tokens": 5, "messages": ASK}

    def served() -> bool:
        status: int = site.post("/v1/messages", body, headers={"x-api-key": "secret-1"}).status_code
        return status == 200

    within("the model is served", served)
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        refused = site.post(path, body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    for options in ({"api_key": "secret-1"}, {"api_key": None, "auth_token": "secret-1"}):
        with client(site, **options) as sdk:
            assert sdk.messages.create(model="m", max_tokens=5, messages=ASK).content
    with client(site, api_key="wrong") as sdk, pytest.raises(anthropic.AuthenticationError):
        sdk.messages.create(model="m", max_tokens=5, messages=ASK)
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        assert site.post(path, {"model": "m", "input": "hi"}).status_code == 401


def test_input_tokens(talking: Any, speaker: Any) -> None:
    """`/v1/responses/input_tokens` counts what the model then sees."""
    body = {"model": "m", "input": "hi " * 2000, "instructions": "Be brief."}
    answer = talking.post("/v1/responses", {**body, "max_output_tokens": 3}).json()
    counted = talking.post("/v1/responses/input_tokens", body).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": answer["usage"]["input_tokens"]}
    assert json.loads(talking.post("/v1/responses/input_tokens", {"model": "m"}).text)["error"]["param"] == "input"


def test_all_apis_share_the_bounds(make_site: Any, engines: Any) -> None:
    """One place for one caller: a message takes that of a response, which says so in its own API's words."""
    site = make_site(max_requests_per_client=1)
    site.worker(engines(delay=0.05))
    headers = {"x-tenant-id": "t"}
    body = {"model": "m", "max_tokens": 300, "messages": ASK}
    with client(site, default_headers=headers) as sdk, sdk.messages.create(**body, stream=True) as stream:
        assert next(iter(stream)).type == "message_start"
        with pytest.raises(anthropic.RateLimitError):
            sdk.messages.create(**body)
        refused = site.post("/v1/responses", {"model": "m", "input": "hi"}, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        counted = site.post("/v1/messages/count_tokens", body, headers=headers)
        assert (counted.status_code, counted.json()["error"]["type"]) == (429, "rate_limit_error")
        assert refused.headers["retry-after"]
    assert site.metric("rejected_requests_total", reason="rate_limit_exceeded") == 3


def test_large_bodies_are_read_in_the_threads(make_site: Any, engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of items and blocks keep nobody else waiting: their reading has a turn in the threads."""
    turns: list[str] = []
    enter = Turn.enter

    async def entered(self: Turn) -> None:
        turns.append("turn")
        await enter(self)

    monkeypatch.setattr(Turn, "enter", entered)
    hidden = b'{"model":"m","input":"x","previous\\u005fresponse_id":"resp_1"}'
    site = make_site()
    site.worker(engines(), context_length=1_000_000)
    for path, field, limit in (("messages", "messages", "max_tokens"), ("responses", "input", "max_output_tokens")):
        for number, expected in ((1, 0), (1000, 1)):
            turns.clear()
            messages = [{"role": "user", "content": "x"}] * number
            assert site.post(f"/v1/{path}", {"model": "m", field: messages, limit: 1}).status_code == 200
            assert len(turns) == expected, (path, number)
    turns.clear()
    refused = httpx.post(f"{site.url}/v1/responses", content=hidden)
    assert (refused.json()["error"]["code"], len(turns)) == ("previous_response_not_found", 1)
