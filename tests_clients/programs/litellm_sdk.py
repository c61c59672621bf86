"""LiteLLM's SDK: a hosted vLLM, OpenAI's APIs and Anthropic's, all of them this server."""

from __future__ import annotations

import os
from typing import Any

import litellm

ASK: Any = [{"role": "user", "content": "Hello"}]
CALL: Any = [{"role": "user", "content": 'Please call get_weather {"city": "Paris"}'}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "Says it.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip


def main() -> None:
    """Ask by each provider that its docs name for such a server."""
    bases = {"hosted_vllm/demo": "/v1", "openai/demo": "/v1", "anthropic/demo": ""}
    for model, path in bases.items():
        where: Any = {"model": model, "api_base": os.environ["SERVER"] + path, "api_key": "any"}
        whole = litellm.completion(**where, messages=ASK, max_tokens=30)
        streamed = list(litellm.completion(**where, messages=ASK, max_tokens=30, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
        assert text == (whole.choices[0].message.content or ""), model
        called = litellm.completion(**where, messages=CALL, tools=[TOOL], max_tokens=500)
        [call] = called.choices[0].message.tool_calls
        assert call.function.name == "get_weather"
    answer = litellm.responses(
        model="openai/demo", input="Hello", max_output_tokens=20, api_base=os.environ["SERVER"] + "/v1", api_key="any"
    )
    assert answer.output
    vectors = litellm.embedding(
        model="hosted_vllm/embed", input=["a", "b"], api_base=os.environ["EMBEDDER"] + "/v1", api_key="any"
    )
    assert [len(vector["embedding"]) for vector in vectors.data] == [16, 16]


if __name__ == "__main__":
    main()
