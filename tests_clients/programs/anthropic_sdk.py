"""Anthropic's SDK: messages, streams, tools and the tool runner, thinking, counting, schemas, models."""

from __future__ import annotations

from typing import Any

import anthropic

ASK: Any = [{"role": "user", "content": "Hello"}]
CALL: Any = [{"role": "user", "content": 'Please call get_weather {"city": "Paris"}'}]
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def talk(client: anthropic.Anthropic) -> None:
    """Ask plainly, as a stream, and with thinking."""
    whole = client.messages.create(model="demo", max_tokens=60, messages=ASK, system="Be brief.")
    assert whole.stop_reason == "max_tokens"
    with client.messages.stream(model="demo", max_tokens=60, messages=ASK, system="Be brief.") as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "".join(block.text for block in whole.content if block.type == "text")
    assert final.usage.output_tokens == whole.usage.output_tokens == 60
    thought = client.messages.create(
        model="demo", max_tokens=2000, messages=ASK, thinking={"type": "enabled", "budget_tokens": 1024}
    )
    assert [block.type for block in thought.content] == ["thinking", "text"]
    counted = client.messages.count_tokens(model="demo", messages=ASK, system="Be brief.")
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def call(client: anthropic.Anthropic) -> None:
    """Have a tool called, answer it, force it, and let the SDK's runner do the same."""
    tools: Any = [{"name": "get_weather", "description": "Says it.", "input_schema": SCHEMA}]
    asked = client.messages.create(model="demo", max_tokens=500, messages=CALL, tools=tools)
    [use] = [block for block in asked.content if block.type == "tool_use"]
    assert (asked.stop_reason, use.input) == ("tool_use", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny"}
    history: Any = [*CALL, {"role": "assistant", "content": asked.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(model="demo", max_tokens=500, messages=history, tools=tools).stop_reason != "tool_use"
    forced = client.messages.create(
        model="demo", max_tokens=500, messages=ASK, tools=tools, tool_choice={"type": "tool", "name": "get_weather"}
    )
    assert forced.content[-1].type == "tool_use"
    asked_for = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Say the weather of a city.

        Args:
            city: The city's name.
        """
        asked_for.append(city)
        return "Sunny"

    runner = client.beta.messages.tool_runner(model="demo", max_tokens=500, tools=[get_weather], messages=CALL)
    assert runner.until_done().stop_reason in ("end_turn", "max_tokens")
    assert asked_for == ["Paris"]


def others(client: anthropic.Anthropic) -> None:
    """Keep to a schema, list models, and see what a mistake looks like."""
    closed = {**SCHEMA, "additionalProperties": False}
    kept = client.messages.create(
        model="demo", max_tokens=500, messages=ASK, output_config={"format": {"type": "json_schema", "schema": closed}}
    )
    assert kept.content[-1].type == "text"
    assert "demo" in [model.id for model in client.models.list()]
    refused = ""
    try:
        client.messages.create(model="nobody", max_tokens=5, messages=ASK)
    except anthropic.NotFoundError as error:
        refused = str(error.type)
    assert refused == "not_found_error"


if __name__ == "__main__":
    with anthropic.Anthropic() as anthropic_client:
        for step in (talk, call, others):
            step(anthropic_client)
