"""Tool calls and thoughts by the `openai` SDK: what a scripted worker says, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from dynamo.llm.protocols import delta

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
ASK: Any = [{"role": "user", "content": "And the weather?"}]


@pytest.fixture
def talk(site: Any, speaker: Any) -> Callable[..., Any]:
    """Serve the speaker with parsers, and ask the model; the whole answer's choice and the stream's chunks."""
    site.worker(speaker, tool_call_parser="hermes", reasoning_parser="qwen3", context_length=100_000)

    def ask(answer: str, **options: Any) -> tuple[Any, list[Any]]:
        speaker.answer = answer
        with site.client() as client:
            whole = client.chat.completions.create(model="m", messages=ASK, **options)
            stream = client.chat.completions.create(model="m", messages=ASK, stream=True, **options)
            return whole.choices[0], [chunk.choices[0] for chunk in stream]

    return ask


def folded(chunks: list[Any]) -> dict[str, Any]:
    """What a client puts together of a stream."""
    fields: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "finish": chunks[-1].finish_reason}
    for chunk in chunks:
        fields["content"] += chunk.delta.content or ""
        fields["reasoning"] += getattr(chunk.delta, "reasoning_content", None) or ""
        for call in chunk.delta.tool_calls or ():
            known = fields["calls"].setdefault(
                call.index, {"id": call.id, "type": call.type, "name": "", "arguments": ""}
            )
            known["name"] += call.function.name or ""
            known["arguments"] += call.function.arguments or ""
    return fields


def test_a_call_and_thoughts(talk: Callable[..., Any]) -> None:
    """Both forms have the thoughts, the text, the call with an id of its own, and its finish reason."""
    whole, chunks = talk(f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}", tools=TOOLS)
    assert whole.finish_reason == "tool_calls"
    assert whole.message.reasoning_content == "Hm."
    assert whole.message.content == "I look."
    first, second = whole.message.tool_calls
    assert (first.type, first.function.name) == ("function", "get_weather")
    assert json.loads(first.function.arguments) == {"city": "Zürich"}
    assert first.id.startswith("call_")
    assert first.id != second.id
    stream = folded(chunks)
    assert (stream["content"], stream["reasoning"], stream["finish"]) == ("I look.", "Hm.", "tool_calls")
    assert [call["arguments"] for call in stream["calls"].values()] == [first.function.arguments] * 2
    assert [call["name"] for call in stream["calls"].values()] == ["get_weather"] * 2
    assert all(call["id"].startswith("call_") and call["type"] == "function" for call in stream["calls"].values())
    assert [chunk.delta.role for chunk in chunks if chunk.delta.role] == ["assistant"]
    assert not [chunk for chunk in chunks if "<" in (chunk.delta.content or "")]


def test_a_call_alone_has_no_content(talk: Callable[..., Any]) -> None:
    """As OpenAI's: null, and the first chunk names role and call."""
    whole, chunks = talk(CALL, tools=TOOLS)
    assert whole.message.content is None
    assert (chunks[0].delta.role, chunks[0].delta.content) == ("assistant", None)
    assert chunks[0].delta.tool_calls[0].function.name == "get_weather"
    pieces = [chunk.delta.tool_calls[0].function.arguments for chunk in chunks[1:] if chunk.delta.tool_calls]
    assert "".join(pieces) == '{"city": "Zürich"}'
    assert len(pieces) > 10, "they leave while they are written"


@pytest.mark.parametrize("options", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_nothing_is_a_call(talk: Callable[..., Any], options: Any) -> None:
    """Who asks for none gets the text, and the thoughts apart."""
    whole, chunks = talk(f"<think>Hm.</think>{CALL}", **options)
    assert (whole.message.content, whole.message.tool_calls, whole.finish_reason) == (CALL, None, "stop")
    assert folded(chunks) == {"content": CALL, "reasoning": "Hm.", "calls": {}, "finish": "stop"}


@pytest.mark.parametrize("text", ['<tool_call>{"name": 5}</tool_call>', CALL[:50], "<tool_c", "a < b \n"])
def test_what_is_no_call_is_content(talk: Callable[..., Any], text: str) -> None:
    """Nothing is lost of it."""
    whole, chunks = talk(f"Oh. {text}", tools=TOOLS)
    assert (whole.message.content, whole.finish_reason) == (f"Oh. {text}", "stop")
    assert folded(chunks) == {"content": f"Oh. {text}", "reasoning": "", "calls": {}, "finish": "stop"}


def test_an_answer_that_is_cut_off(talk: Callable[..., Any]) -> None:
    """Half a name is text, half a call has half of its arguments; the reason is that it was cut."""
    whole, chunks = talk(CALL, tools=TOOLS, max_tokens=40)
    assert (whole.message.content, whole.finish_reason) == (CALL[:40], "length")
    assert folded(chunks)["content"] == CALL[:40]
    whole, chunks = talk(CALL, tools=TOOLS, max_tokens=64)
    assert (whole.message.tool_calls[0].function.arguments, whole.finish_reason) == ('{"city": "Züri', "length")
    assert folded(chunks)["calls"][0]["arguments"] == '{"city": "Züri'
    whole, _ = talk("<think>and so on and on", max_tokens=12)
    assert (whole.message.content, whole.message.reasoning_content, whole.finish_reason) == ("", "and s", "length")


def test_one_call_only(talk: Callable[..., Any]) -> None:
    """`parallel_tool_calls: false` keeps the first."""
    whole, chunks = talk(CALL + CALL, tools=TOOLS, parallel_tool_calls=False)
    assert len(whole.message.tool_calls) == len(folded(chunks)["calls"]) == 1


def test_log_probabilities_are_of_all_tokens(talk: Callable[..., Any]) -> None:
    """Those of thoughts and calls, too, whose texts stand elsewhere."""
    answer = f"<think>Hm.</think>Ok {CALL}"
    whole, chunks = talk(answer, tools=TOOLS, logprobs=True)
    assert len(whole.logprobs.content) == len(answer.encode())
    assert sum(len(chunk.logprobs.content) for chunk in chunks if chunk.logprobs) == len(answer.encode())
    assert (whole.message.content, len(whole.message.tool_calls)) == ("Ok", 1)
    assert (folded(chunks)["content"], folded(chunks)["reasoning"], len(folded(chunks)["calls"])) == ("Ok", "Hm.", 1)


def test_every_choice_has_its_own(site: Any, talk: Callable[..., Any]) -> None:
    """With `n`, calls are counted per choice."""
    talk("")
    _, chunks = talk(CALL, tools=TOOLS, n=2)
    calls = [(chunk.index, call.index) for chunk in chunks for call in chunk.delta.tool_calls or () if call.id]
    assert sorted(calls) == [(0, 0), (1, 0)]


def test_tokens_of_thoughts_are_counted(site: Any, talk: Callable[..., Any]) -> None:
    """Whole answers and a stream's usage have them, of all choices; 0 where the model didn't think."""
    talk(thoughtful := "<think>Hm.</think>Ok")
    asked: Any = {"model": "m", "messages": ASK}
    counts = []
    with site.client() as client:
        for more in ({}, {"n": 2}, {"tools": TOOLS}, {"extra_body": {"include_reasoning": False}}):
            whole = client.chat.completions.create(**asked, **more).usage
            stream = client.chat.completions.create(
                **asked, **more, stream=True, stream_options={"include_usage": True}
            )  # fmt: skip
            (streamed,) = [chunk.usage for chunk in stream if chunk.usage is not None]
            assert whole.completion_tokens_details == streamed.completion_tokens_details
            counts.append(whole.completion_tokens_details.reasoning_tokens)
        assert 0 < counts[0] < len(thoughtful)
        assert counts == [counts[0], 2 * counts[0], counts[0], counts[0]]
    talk("Ok")
    with site.client() as client:
        forced: Any = {"tools": TOOLS, "tool_choice": FORCED}
        assert client.chat.completions.create(**asked, **forced).usage.completion_tokens_details is None
        assert client.chat.completions.create(**asked).usage.completion_tokens_details.reasoning_tokens == 0


def test_where_only_calls_are_parsed_no_thoughts_are_counted(site: Any, speaker: Any) -> None:
    """Nothing tells thoughts apart there, so that a 0 would be wrong."""
    site.worker(speaker, tool_call_parser="hermes")
    speaker.answer = f"<think>Hm.</think>{CALL}"
    usage = site.post("/v1/chat/completions", {"model": "m", "messages": ASK, "tools": TOOLS}).json()["usage"]
    assert "completion_tokens_details" not in usage


def test_a_prompt_that_opens_the_thought(site: Any, speaker: Any) -> None:
    """The end of the prompt says that the answer begins inside one."""
    site.worker(speaker, reasoning_parser="qwen3")
    speaker.answer = "Hm.\n</think>\n\nHello"
    prompt = {"role": "user", "content": "x"}
    with site.client() as client:
        extra = {"nvext": {"use_raw_prompt": True}}
        raw: Any = [{**prompt, "content": "<assistant><think>\n"}]
        opened = client.chat.completions.create(model="m", messages=raw, extra_body=extra).choices[0].message
        plain = client.chat.completions.create(model="m", messages=[prompt]).choices[0].message
    assert (opened.content, opened.reasoning_content) == ("Hello", "Hm.")
    assert plain.content == "Hm.\n</think>\n\nHello"


FORCED: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize(
    ("choice", "answer"),
    [("required", '[{"name": "get_weather", "parameters": {"city": "Bern"}}]'), (FORCED, '{"city": "Bern"}')],
)
def test_forced_calls(site: Any, speaker: Any, choice: Any, answer: str) -> None:
    """The engine is given a schema, and its answer is the call; the model needs no parser for it."""
    site.worker(speaker)
    speaker.answer = answer
    with site.client() as client:
        whole = client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, tool_choice=choice)
        stream = client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, tool_choice=choice, stream=True)
        message = folded([chunk.choices[0] for chunk in stream])
    schema = speaker.seen[0]["sampling_options"]["guided_decoding"]["json"]
    parameters = TOOLS[0]["function"]["parameters"]
    assert (schema if choice is FORCED else schema["items"]["properties"]["parameters"]) == parameters
    assert whole.choices[0].finish_reason == message["finish"] == "tool_calls"
    calls = whole.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.arguments == message["calls"][0]["arguments"] == '{"city": "Bern"}'


def test_forced_calls_that_the_engine_can_not_make(site: Any, engines: Any) -> None:
    """Its refusal says what was asked for and what to do."""
    from dynamo.runtime.errors import InvalidArgument

    class Plain(engines):  # type: ignore[misc] # a class of the conftest's choice
        def __call__(self, incoming: Any) -> None:
            incoming.fail(InvalidArgument("guided decoding (json): engine echo_core can't constrain its output"))

    site.worker(Plain())
    for stream in (False, True):
        with site.client() as client, pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, tool_choice="required", stream=stream)
        assert error.value.param == "tool_choice"
        assert "needs guided decoding (json): engine echo_core can't" in error.value.message


def test_a_text_engine_is_parsed_but_not_forced(site: Any, speaker: Any) -> None:
    """Its text is read likewise; that it calls a tool nobody can make it."""
    site.worker(speaker, model_input="text", tokenizer="none", tool_call_parser="hermes")

    async def speak(incoming: Any, payload: Any) -> None:
        incoming.send(delta(f"Ok {CALL[:20]}"))
        incoming.finish(delta(CALL[20:], "stop"))

    speaker.speak = speak
    with site.client() as client:
        made = client.chat.completions.create(model="m", messages=ASK, tools=TOOLS).choices[0]
        with pytest.raises(openai.BadRequestError, match="takes text"):
            client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, tool_choice="required")
    assert (made.message.content, made.finish_reason, len(made.message.tool_calls or ())) == ("Ok", "tool_calls", 1)


def test_without_parsers_nothing_changes(site: Any, speaker: Any) -> None:
    """The same bytes as ever, whatever the text holds."""
    site.worker(speaker)
    speaker.answer = f"<think>Hm.</think>{CALL}"
    body = {"model": "m", "messages": ASK, "tools": TOOLS}
    answer = site.post("/v1/chat/completions", body).json()
    message = answer["choices"][0]
    assert "completion_tokens_details" not in answer["usage"]
    assert message["message"] == {"role": "assistant", "content": speaker.answer, "refusal": None}
    assert message["finish_reason"] == "stop"


def test_a_parser_that_the_frontend_does_not_know(site: Any, speaker: Any, within: Callable[..., Any]) -> None:
    """A worker of a later age is not routed to, since its answers would come out wrong; /health says why."""
    site.worker(speaker, tool_call_parser="of_2030", wait=False)
    within("the reason is told", lambda: "no tool call parser 'of_2030'" in httpx.get(f"{site.url}/health").text)


def test_thoughts_that_nobody_wants(talk: Callable[..., Any]) -> None:
    """With `include_reasoning: false` they are left out, and the rest stays; the first chunk still has the role."""
    whole, chunks = talk("<think>\nHm.\n</think>\n\nYes.", extra_body={"include_reasoning": False})
    assert (whole.message.content, getattr(whole.message, "reasoning_content", None)) == ("Yes.", None)
    fields = folded(chunks)
    assert (fields["content"], fields["reasoning"], chunks[0].delta.role) == ("Yes.", "", "assistant")


def test_the_field_of_the_reasoning(make_site: Any, speaker: Any) -> None:
    """With `reasoning`, as vLLM's clients read it, nothing is left in the other field."""
    site = make_site(reasoning_field_name="reasoning")
    site.worker(speaker, reasoning_parser="qwen3")
    speaker.answer = "<think>\nHm.\n</think>\n\nYes."
    with site.client() as client:
        whole = client.chat.completions.create(model="m", messages=ASK).choices[0].message.to_dict()
        stream = client.chat.completions.create(model="m", messages=ASK, stream=True)
        deltas = [chunk.choices[0].delta.to_dict() for chunk in stream]
    assert (whole["reasoning"], whole["content"]) == ("Hm.", "Yes.")
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm."
    assert not any("reasoning_content" in message for message in (whole, *deltas))
