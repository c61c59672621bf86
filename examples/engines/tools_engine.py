"""A text engine that stands in for a model with tools: it thinks, calls the first tool, and reads what came back.

It writes as Qwen3 does. What its clients get is made of that by two flags:

    dynamo-run in=http out=pystr:examples/engines/tools_engine.py --model-name demo \
      --dyn-tool-call-parser hermes --dyn-reasoning-parser qwen3
"""

import json


async def generate(request):
    """Called for each request, with the body that the client sent."""
    text = answer(request["messages"][-1], request.get("tools") or [])
    for start in range(0, len(text), 5):
        yield text[start : start + 5]


def answer(message, tools):
    """What a model might write."""
    if message["role"] == "tool":
        return f"<think>\nThere it is.\n</think>\n\nThe tool says: {message['content']}"
    if not tools:
        return "<think>\nNo tools.\n</think>\n\nI can only talk."
    function = tools[0]["function"]
    names = function.get("parameters", {}).get("properties", {})
    call = {"name": function["name"], "arguments": dict.fromkeys(names, message["content"])}
    return f"<think>\nI ask {function['name']}.\n</think>\n\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
