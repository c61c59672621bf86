"""LangChain: chat models of OpenAI's and Anthropic's APIs, streams, tools, structured output, embeddings."""

from __future__ import annotations

import os
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Event(BaseModel):
    """An event."""

    name: str
    seats: int


@tool
def get_weather(city: str) -> str:
    """Say the weather of a city."""
    return f"Sunny in {city}"


def converse(model: Any) -> None:
    """Ask, stream, have a tool called and answer it."""
    whole = model.invoke("Hello")
    assert whole.usage_metadata["output_tokens"] > 0
    streamed = [chunk.text for chunk in model.stream("Hello")]
    assert "".join(streamed) == whole.text
    able = model.bind_tools([get_weather])
    ask = HumanMessage('Please call get_weather {"city": "Paris"}')
    called = able.invoke([ask])
    [call] = called.tool_calls
    assert call["args"] == {"city": "Paris"}
    assert able.invoke([ask, called, get_weather.invoke(call)]).tool_calls == []


def main() -> None:
    """Do so with each API, and embed."""
    base = os.environ["SERVER"]
    chat = ChatOpenAI(model="demo", base_url=f"{base}/v1", max_tokens=400)  # type: ignore[call-arg, unused-ignore]
    responses = ChatOpenAI(model="demo", base_url=f"{base}/v1", max_tokens=400, use_responses_api=True)  # type: ignore[call-arg, unused-ignore]
    messages = ChatAnthropic(model="demo", base_url=base, max_tokens=400)  # type: ignore[call-arg, unused-ignore]
    for model in (chat, responses, messages):
        converse(model)
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(Event, method=method).invoke("When?"), Event)
    assert isinstance(messages.with_structured_output(Event).invoke("When?"), Event)
    embeddings = OpenAIEmbeddings(
        model="embed", base_url=os.environ["EMBEDDER"] + "/v1", check_embedding_ctx_length=False
    )
    assert [len(vector) for vector in embeddings.embed_documents(["a", "b"])] == [16, 16]


if __name__ == "__main__":
    main()
