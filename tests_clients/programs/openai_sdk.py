"""OpenAI's SDK: chats, streams, calls, schemas, log probabilities, images, completions, Responses, embeddings."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Literal

import openai
from pydantic import BaseModel

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL: Any = [{"role": "user", "content": 'Please call get_weather {"city": "Paris"}'}]
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


class Event(BaseModel):
    """What an answer shall look like."""

    name: str
    day: Literal["Monday", "Friday"]


def chats(client: openai.OpenAI) -> None:
    """Ask plainly, as a stream, with log probabilities and with a picture."""
    ask: Any = [{"role": "user", "content": "Hello"}]
    whole = client.chat.completions.create(model="demo", messages=ask, max_completion_tokens=40, seed=1)
    assert whole.choices[0].finish_reason == "length"
    stream = client.chat.completions.create(
        model="demo",
        messages=ask,
        max_completion_tokens=40,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens == 40
    spoken = client.chat.completions.create(model="demo", messages=ask, max_tokens=3, logprobs=True, top_logprobs=2)
    tokens = spoken.choices[0].logprobs
    assert tokens is not None
    assert tokens.content is not None
    assert [len(token.top_logprobs) for token in tokens.content] == [2, 2, 2]
    parts: Any = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    seen = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": parts}], max_tokens=3)
    assert seen.usage is not None
    several = client.chat.completions.create(model="demo", messages=ask, n=2, max_tokens=4)
    assert [choice.index for choice in several.choices] == [0, 1]


def calls(client: openai.OpenAI) -> None:
    """Have a tool called, whole and streamed, and hand its answer back; force calls; take a model for an answer."""
    whole = client.chat.completions.create(model="demo", messages=CALL, tools=[TOOL])
    [call] = whole.choices[0].message.tool_calls or []
    assert json.loads(call.function.arguments) == {"city": "Paris"}  # type: ignore[union-attr]
    with client.chat.completions.stream(model="demo", messages=CALL, tools=[TOOL]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    answer: Any = {"role": "tool", "tool_call_id": call.id, "content": "Sunny"}
    told = client.chat.completions.create(
        model="demo", messages=[*CALL, whole.choices[0].message, answer], tools=[TOOL], max_tokens=9
    )
    assert told.choices[0].message.content
    forced = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hi"}], tools=[TOOL], tool_choice="required"
    )
    assert forced.choices[0].message.tool_calls
    parsed = client.chat.completions.parse(
        model="demo", messages=[{"role": "user", "content": "When?"}], response_format=Event
    )
    assert isinstance(parsed.choices[0].message.parsed, Event)


def responses(client: openai.OpenAI) -> None:
    """Use the Responses API: whole, streamed, stored, parsed, with tools, in the background."""
    first = client.responses.create(model="demo", input="Hello", max_output_tokens=20)
    assert first.output_text
    second = client.responses.create(model="demo", input="Go on", previous_response_id=first.id, max_output_tokens=20)
    assert client.responses.retrieve(second.id).output_text == second.output_text
    with client.responses.stream(model="demo", input="Hello", max_output_tokens=20) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created"
    parsed = client.responses.parse(model="demo", input="When?", text_format=Event)
    assert isinstance(parsed.output_parsed, Event)
    tool: Any = {"type": "function", **TOOL["function"]}
    called = client.responses.create(model="demo", input=CALL, tools=[tool])
    assert "function_call" in [item.type for item in called.output]
    later = client.responses.create(model="demo", input="Hi", background=True, max_output_tokens=5)
    assert later.status in ("queued", "in_progress", "incomplete")
    client.responses.delete(first.id)


def others(client: openai.OpenAI) -> None:
    """Complete a prompt, list models, embed texts, and see what a mistake looks like."""
    done = client.completions.create(model="demo", prompt="Once", max_tokens=5, logprobs=1, echo=True)
    assert done.choices[0].text.startswith("Once")
    assert "demo" in [model.id for model in client.models.list()]
    with openai.OpenAI(base_url=os.environ["EMBEDDER"] + "/v1") as embedder:
        vectors = embedder.embeddings.create(model="embed", input=["a", "b"])
        assert [len(vector.embedding) for vector in vectors.data] == [16, 16]
    refused = None
    try:
        client.chat.completions.create(model="nobody", messages=CALL)
    except openai.NotFoundError as error:
        refused = error.code
    assert refused == "model_not_found"


async def many() -> None:
    """Ask twenty times at once."""
    async with openai.AsyncOpenAI() as client:
        asks = (client.chat.completions.create(model="demo", messages=CALL, max_tokens=5) for _ in range(20))
        assert len(await asyncio.gather(*asks)) == 20


if __name__ == "__main__":
    with openai.OpenAI() as openai_client:
        for step in (chats, calls, responses, others):
            step(openai_client)
    asyncio.run(many())
