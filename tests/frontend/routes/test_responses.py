"""`POST /v1/responses` by the `openai` SDK: what a scripted worker says, streamed and whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest
from pydantic import BaseModel

from dynamo.llm.models.file_cache import FileCache
from dynamo.llm.protocols import delta

TOOL: Any = {
    "type": "function", "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TEMPLATE = (
    "{# shows no tools #}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.reasoning_content %}(thought {{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls or [] %}(calls {{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}"
    "{% endfor %}{% if enable_thinking is defined %}<{{ reasoning_effort }} {{ enable_thinking }}>{% endif %}"
)


@pytest.fixture
def talking(make_site: Any, speaker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A frontend whose model thinks and calls as the speaker says."""
    monkeypatch.setenv("DYN_CACHE_DIR", str(tmp_path))
    template = FileCache(tmp_path).keep(TEMPLATE.encode(), "chat_template.jinja")
    site = make_site()
    site.worker(
        speaker, tool_call_parser="hermes", reasoning_parser="qwen3", context_length=100_000,
        files={"chat_template": template},
    )  # fmt: skip
    return site


@pytest.fixture
def ask(talking: Any, speaker: Any) -> Callable[..., tuple[Any, list[Any]]]:
    """Ask for a whole answer, and for a stream."""

    def both(answer: str, **options: Any) -> tuple[Any, list[Any]]:
        speaker.answer = answer
        options = {"model": "m", "input": "hi", **options}
        with talking.client() as client:
            return client.responses.create(**options), list(client.responses.create(**options, stream=True))

    return both


def prompt_of(speaker: Any) -> str:
    """The last prompt, as its worker saw it."""
    return bytes(speaker.seen[-1]["token_ids"]).decode()


def without_ids(response: Any) -> Any:
    """What two answers to one request have in common."""
    body = response.model_dump()
    for name in ("id", "created_at", "completed_at"):
        del body[name]
    for item in body["output"]:
        del item["id"]
        item.pop("call_id", None)
    return body


def test_text(ask: Callable[..., Any]) -> None:
    """A whole answer is OpenAI's object; a stream's events come in OpenAI's order, numbered, with one id."""
    penalty = {"presence_penalty": 0.5}
    whole, events = ask(
        "Grüezi", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5, user="u", extra_body=penalty
    )  # fmt: skip
    assert whole.output_text == "Grüezi"
    assert (whole.status, whole.object, whole.instructions, whole.metadata) == (
        "completed", "response", "Be brief.", {"a": "b"},
    )  # fmt: skip
    assert (whole.temperature, whole.top_p, whole.user, whole.error) == (0.5, 1.0, "u", None)
    assert whole.usage.input_tokens_details.cache_write_tokens == 0
    assert (whole.presence_penalty, whole.frequency_penalty) == (0.5, 0.0)
    assert whole.usage.output_tokens == len("Grüezi".encode())
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    assert whole.id.startswith("resp_")
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        *["response.output_text.delta"] * deltas, "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Grüezi"
    assert len({event.response.id for event in events if hasattr(event, "response")}) == 1
    assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1
    assert without_ids(events[-1].response) == without_ids(whole)


def test_thoughts_and_calls(ask: Callable[..., Any]) -> None:
    """A thought, text and two calls are items of their own, each with its events."""
    whole, events = ask(f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}", tools=[TOOL])
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    thought, message, first, second = whole.output
    assert (thought.content[0].text, message.content[0].text) == ("Hm.", "I look.")
    assert (first.name, json.loads(first.arguments), first.status) == (
        "get_weather", {"city": "Zürich"}, "completed",
    )  # fmt: skip
    assert first.call_id != second.call_id
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
    kinds = [event.type.removeprefix("response.") for event in events]
    shown = [kind for at, kind in enumerate(kinds) if kinds[at - 1] != kind]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert shown == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        *call, *call, "completed",
    ]  # fmt: skip
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.model_dump(exclude={"id", "call_id"}) for item in done] == [
        item.model_dump(exclude={"id", "call_id"}) for item in whole.output
    ]
    assert [event.output_index for event in events if event.type == "response.output_item.done"] == [0, 1, 2, 3]
    assert without_ids(events[-1].response) == without_ids(whole)


def test_a_conversation_goes_on(talking: Any, speaker: Any) -> None:
    """What an answer said is sent back as it came, with a tool's output: the model sees one turn of its own."""
    speaker.answer = f"<think>Hm.</think>I look.{CALL}"
    with talking.client() as client:
        first = client.responses.create(
            model="m", instructions="Be brief.", input=[{"role": "user", "content": "hi"}], tools=[TOOL],
            store=False, include=["reasoning.encrypted_content"],
        )  # fmt: skip
        call = first.output[-1]
        items = [item.model_dump(exclude_none=True) for item in first.output]
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        for thought in ({**items[0]}, {**items[0], "content": None}):
            client.responses.create(
                model="m", instructions="Be brief.", tools=[TOOL],
                input=[
                    {"role": "developer", "content": [{"type": "input_text", "text": "Really."}]},
                    {"role": "user", "content": "hi"}, thought, *items[1:], output,
                ],
            )  # fmt: skip
            assert prompt_of(speaker) == (
                "[system]Be brief.\n\nReally.[user]hi[assistant]I look.(thought Hm.)"
                '(calls get_weather {"city": "Zürich"})[tool]sunny'
            )


def test_the_sdks_stream_helper(talking: Any, speaker: Any) -> None:
    """`client.responses.stream` puts a schema's answer, and a call, together."""

    class City(BaseModel):
        city: str

    speaker.answer = '{"city": "Zürich"}'
    with talking.client() as client:
        with client.responses.stream(model="m", input="hi", text_format=City) as stream:
            final = stream.get_final_response()
        assert final.output_parsed == City(city="Zürich")
        guided = speaker.seen[-1]["sampling_options"]["guided_decoding"]
        assert guided["json"]["properties"]["city"]["type"] == "string"
        speaker.answer = CALL
        with client.responses.stream(model="m", input="hi", tools=[TOOL]) as stream:
            deltas = "".join(e.delta for e in stream if e.type == "response.function_call_arguments.delta")
            assert json.loads(deltas) == {"city": "Zürich"}


def test_an_answer_that_is_cut_off(ask: Callable[..., Any]) -> None:
    """`max_output_tokens` makes it incomplete, and says why."""
    whole, events = ask("abcdef", max_output_tokens=3)
    assert (whole.status, whole.incomplete_details.reason, whole.output_text) == (
        "incomplete", "max_output_tokens", "abc",
    )  # fmt: skip
    assert whole.output[0].status == "incomplete"
    assert events[-1].type == "response.incomplete"
    assert without_ids(events[-1].response) == without_ids(whole)


def test_log_probabilities(ask: Callable[..., Any]) -> None:
    """They come with the deltas, and all of them at the end."""
    whole, events = ask("ab", include=["message.output_text.logprobs"], top_logprobs=1)
    logprobs = whole.output[0].content[0].logprobs
    assert [entry.token for entry in logprobs] == ["a", "b"]
    assert len(logprobs[0].top_logprobs) == 1
    streamed = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in logprobs]


@pytest.mark.parametrize(("effort", "shown"), [("none", "<none False>"), ("high", "<high True>")])
def test_effort_is_for_the_template(ask: Callable[..., Any], speaker: Any, effort: Any, shown: str) -> None:
    """Templates that know of thinking are told."""
    ask("ok", reasoning={"effort": effort})
    assert prompt_of(speaker).endswith(shown)


def test_tools_are_allowed_or_forced(talking: Any, speaker: Any) -> None:
    """`allowed_tools` leaves the others out; a named function is forced."""
    other = {**TOOL, "name": "other"}
    speaker.answer = '{"city": "Zürich"}'
    with talking.client() as client:
        forced = client.responses.create(
            model="m", input="hi", tools=[TOOL, other], tool_choice={"type": "function", "name": "get_weather"}
        )
        assert [(item.type, item.name) for item in forced.output] == [("function_call", "get_weather")]
        speaker.answer = '[{"name": "get_weather", "arguments": {"city": "Bern"}}]'
        allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
        client.responses.create(model="m", input="hi", tools=[TOOL, other], tool_choice=allowed)
    assert "get_weather" not in json.dumps(speaker.seen[-1]["sampling_options"]["guided_decoding"])


MISTAKES: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": []}, "input", "invalid_value"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "invalid_value"),
    ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
    ({"input": [{"role": "user", "content": 1}]}, "input[0].content", "invalid_type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]",
     "unsupported_value"),
    ({"input": [{"type": "web_search_call"}]}, "input[0]", "unsupported_value"),
    ({"input": [{"type": ["a"]}]}, "input[0]", "unsupported_value"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id",
     "invalid_value"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}]}, "input", "invalid_value"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "", "arguments": ""}]}, "input[0].name",
     "invalid_type"),
    ({"tools": [{"type": "file_search"}]}, "tools[0]", "unsupported_value"),
    ({"tools": [{"type": "custom"}]}, "tools[0].name", "missing_required_parameter"),
    ({"tools": [{"type": ["a"]}]}, "tools[0]", "unsupported_value"),
    ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "a", "input": {}}]}, "input[0].input",
     "invalid_type"),
    ({"input": [{"type": "local_shell_call", "call_id": "c", "action": "ls"}]}, "input[0].action", "invalid_type"),
    ({"tool_choice": {"type": "web_search"}, "tools": [{"type": "web_search"}]}, "tool_choice", "unsupported_value"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
    ({"tools": [{"type": "function", "name": "a", "parameters": 1}]}, "tools[0].parameters", "invalid_type"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice", "unsupported_value"),
    ({"tool_choice": "perhaps"}, "tool_choice", "unsupported_value"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice.name",
        "missing_required_parameter",
    ),
    ({"text": {"format": {"type": "xml"}}}, "text.format", "unsupported_value"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format", "invalid_value"),
    ({"reasoning": {"effort": "very"}}, "reasoning.effort", "unsupported_value"),
    ({"reasoning": {"summary": "zzz"}}, "reasoning.summary", "unsupported_value"),
    ({"reasoning": {"generate_summary": "zzz"}}, "reasoning.generate_summary", "unsupported_value"),
    ({"text": {"verbosity": "zz"}}, "text.verbosity", "unsupported_value"),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ({"include": ["secrets"]}, "include[0]", "unsupported_value"),
    ({"background": True, "store": False}, "background", "invalid_value"),
    ({"conversation": "conv_1"}, "conversation", "conversation_not_found"),
    ({"conversation": {"id": "c"}, "previous_response_id": "resp_1"}, "conversation", "invalid_value"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"truncation": "maybe"}, "truncation", "invalid_value"),
    ({"min_tokens": 5, "max_output_tokens": 3}, "min_tokens", "invalid_value"),
    ({"input": "x" * 3000, "model": "small"}, "input", "context_length_exceeded"),
    ({"model": "nobody"}, "model", "model_not_found"),
    ({"nvext": {"annotations": ["query_instance_id:"]}}, "nvext.annotations", "unsupported_value"),
]  # fmt: skip


def test_mistakes(talking: Any, speaker: Any) -> None:
    """Each is a 400 (404 for a model) in OpenAI's shape that names the field, in this API's words."""
    talking.worker(speaker, "small", path="test.small.generate", context_length=1000)
    for body, param, code in MISTAKES:
        answer = talking.post("/v1/responses", {"model": "m", "input": "hi", **body})
        assert answer.status_code in (400, 404), (body, answer.text)
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (param, code), (body, error)
        assert not error["message"].startswith(("messages", "response_format", "max_completion_tokens")), error
        assert "max_tokens" not in error["message"], error


def test_errors_are_the_sdks(talking: Any) -> None:
    """The SDK raises its own classes; the wrong method names the right one; the metrics have a word of their own."""
    with talking.client() as client:
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="nobody", input="hi")
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model="m", input="hi", max_output_tokens=-1)
        client.responses.create(model="m", input="hi")
    assert httpx.get(f"{talking.url}/v1/responses").headers["allow"] == "POST"
    assert talking.metric("requests_total", endpoint="responses", status="success", model="m") == 1
    assert talking.metric("requests_total", endpoint="responses", status="error") == 2


def test_a_failure_in_mid_stream(talking: Any, speaker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said stays, and the last event is `response.failed` with the reason."""

    async def speak(incoming: Any, payload: dict[str, Any]) -> None:
        incoming.send(delta([65], None))
        await asyncio.sleep(0.05)
        incoming.finish(delta([], "error", {"message": "out of steam"}))

    monkeypatch.setattr(speaker, "speak", speak)
    with talking.client() as client:
        events = list(client.responses.create(model="m", input="hi", stream=True))
        assert events[-1].type == "response.failed"
        assert (events[-1].response.error.code, events[-1].response.error.message) == ("server_error", "out of steam")
        assert events[-1].response.output[0].content[0].text == "A"
        with pytest.raises(openai.InternalServerError):
            client.responses.create(model="m", input="hi")


def test_large_requests_are_told_in_short(talking: Any, speaker: Any) -> None:
    """A stream's first events leave out tools that are larger than a buffer should hold; its last one has them."""
    speaker.answer = "ok"
    tools = [{**TOOL, "name": f"tool{number}", "description": "x" * 5000} for number in range(20)]
    with talking.client() as client:
        events = list(client.responses.create(model="m", input="hi", tools=tools, stream=True))
    assert events[0].response.tools == []
    assert len(events[-1].response.tools) == 20


def test_truncation_drops_the_oldest(talking: Any, speaker: Any) -> None:
    """`auto` keeps instructions and the end of a conversation; what is one message too long is refused all the same."""
    talking.worker(speaker, "small", path="test.small.generate", context_length=1000)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [
        {"role": "user", "content": "old " * 200}, call,
        {"type": "function_call_output", "call_id": "c", "output": "result"},
        *({"role": role, "content": f"{number} " * 20} for number in range(9) for role in ("user", "assistant")),
        {"role": "user", "content": "last"},
    ]  # fmt: skip
    body = {"model": "small", "instructions": "Be brief.", "input": items, "max_output_tokens": 5}
    assert talking.post("/v1/responses", body).json()["error"]["code"] == "context_length_exceeded"
    answer = talking.post("/v1/responses", {**body, "truncation": "auto"})
    assert answer.json()["truncation"] == "auto"
    prompt = prompt_of(speaker)
    assert prompt.startswith("System: Be brief.\n")
    assert prompt.endswith("User: last\nAssistant:")
    assert "result" not in prompt
    assert 500 < len(prompt) < 1000
    long = {"model": "small", "input": "x" * 3000, "truncation": "auto"}
    assert talking.post("/v1/responses", long).json()["error"]["code"] == "context_length_exceeded"
