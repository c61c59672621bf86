"""LlamaIndex, instructor, pydantic-ai and OpenAI's Agents SDK: each by its own way to agents and schemas."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from pydantic import BaseModel

CALL = 'Please call get_weather {"city": "Paris"}'
ASKED: list[str] = []


class Event(BaseModel):
    """An event."""

    name: str
    seats: int


def get_weather(city: str) -> str:
    """Say the weather of a city."""
    ASKED.append(city)
    return f"Sunny in {city}"


def llama_index() -> None:
    """Chat, stream and call a tool by LlamaIndex' class for servers of this kind."""
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model="demo", api_base=os.environ["SERVER"] + "/v1", api_key="any", is_chat_model=True,
        is_function_calling_model=True, max_tokens=400,
    )  # fmt: skip
    whole = model.chat([ChatMessage(role="user", content="Hello")])
    streamed = [chunk.delta or "" for chunk in model.stream_chat([ChatMessage(role="user", content="Hello")])]
    assert "".join(streamed) == whole.message.content
    answer = model.predict_and_call([FunctionTool.from_defaults(get_weather)], user_msg=CALL)
    assert "Sunny in Paris" in str(answer)


def instructor() -> None:
    """Have models filled in by instructor: by tools, by schemas, and as they come."""
    import instructor as package
    import openai

    for mode in (package.Mode.TOOLS, package.Mode.JSON_SCHEMA):
        client = package.from_openai(openai.OpenAI(), mode=mode)
        ask: Any = {"model": "demo", "messages": [{"role": "user", "content": "When?"}]}
        assert isinstance(client.chat.completions.create(response_model=Event, **ask), Event)
    *_, last = client.chat.completions.create_partial(response_model=Event, **ask)
    assert last.name is not None


def pydantic_ai() -> None:
    """Run agents of pydantic-ai with tools and typed output, by chats and Responses."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

    for model in (OpenAIChatModel("demo"), OpenAIResponsesModel("demo")):
        ASKED.clear()
        agent = Agent(model, tools=[get_weather])
        assert agent.run_sync(CALL).output
        assert ASKED == ["Paris"]
        assert isinstance(Agent(model, output_type=Event).run_sync("When?").output, Event)

    async def stream() -> str:
        async with Agent(OpenAIChatModel("demo")).run_stream("Hello") as run:
            return "".join([text async for text in run.stream_text(delta=True)])

    assert asyncio.run(stream())


def openai_agents() -> None:
    """Run agents of OpenAI's Agents SDK, by Responses, its default, and by chats."""
    import agents

    agents.set_tracing_disabled(True)
    tool = agents.function_tool(get_weather)
    for api in ("responses", "chat_completions"):
        agents.set_default_openai_api(api)
        ASKED.clear()
        agent: Any = agents.Agent(name="Helper", instructions="Be brief.", model="demo", tools=[tool])
        assert agents.Runner.run_sync(agent, CALL).final_output
        assert ASKED == ["Paris"]
        typed: Any = agents.Agent(name="Typed", model="demo", output_type=Event)
        assert isinstance(agents.Runner.run_sync(typed, "When?").final_output, Event)

    async def stream() -> list[str]:
        run = agents.Runner.run_streamed(agent, "Hello")
        return [event.type async for event in run.stream_events()]

    assert "run_item_stream_event" in asyncio.run(stream())


if __name__ == "__main__":
    programs = (llama_index, instructor, pydantic_ai, openai_agents)
    {program.__name__: program for program in programs}[sys.argv[1]]()
