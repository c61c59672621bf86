"""Tools end to end: a worker's flags, a frontend process, and the `openai` SDK in a conversation of two turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.servers]

TEMPLATE = """\
{% for tool in tools or [] %}<tool>{{ tool.function.name }}</tool>{% endfor %}
{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls or [] %}
<call>{{ call.function.name }}{% for k, v in call.function.arguments.items() %} {{ k }}:{{ v }}{% endfor %}</call>
{% endfor %}{% endfor %}<|assistant|><think>
"""
ENGINE = '''\
"""A tokens engine (a token is a byte) that answers by what it finds in its prompt."""
async def generate(request):
    prompt = bytes(request["token_ids"]).decode()
    if "<|tool|>" in prompt:
        assert "<call>get_weather city:Zürich</call>" in prompt, prompt
        text = "Done.</think>\\n\\n" + prompt.partition("<|tool|>")[2].partition("<|")[0] + " in Zürich"
    elif "<tool>get_weather</tool>" in prompt:
        call = '{"name": "get_weather", "arguments": {"city": "Zürich"}}'
        text = f"I ask.\\n</think>\\n\\n<tool_call>\\n{call}\\n</tool_call>"
    else:
        text = "No tools.</think>Hello"
    for token in text.encode():
        yield {"token_ids": [token], "finish_reason": None}
'''
TOOLS: Any = [
    {"type": "function", "function": {
        "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }},
]  # fmt: skip


def streamed(client: openai.OpenAI, messages: list[Any], **options: Any) -> tuple[dict[str, Any], str, str]:
    """The assistant's message as a client puts it together, its thoughts, and why it ended."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    thoughts, finish = "", ""
    for chunk in client.chat.completions.create(model="m", messages=messages, stream=True, **options):
        choice = chunk.choices[0]
        message["content"] += choice.delta.content or ""
        thoughts += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or ():
            if call.id:
                function = {"name": call.function.name, "arguments": ""}
                message["tool_calls"].append({"id": call.id, "type": call.type, "function": function})
            message["tool_calls"][call.index]["function"]["arguments"] += call.function.arguments or ""
        finish = choice.finish_reason or finish
    return message, thoughts, finish


def test_a_conversation_with_a_tool(stack: Any, tmp_path: Path) -> None:
    """The model calls, the client answers, the model goes on; streamed and whole. The prompt opens each thought."""
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    (tmp_path / "engine.py").write_text(ENGINE)
    frontend = stack.frontend()
    worker = stack.worker(
        "worker", "python", "--python-file", str(tmp_path / "engine.py"), "--chat-template",
        str(tmp_path / "template.jinja"), "--dyn-tool-call-parser", "hermes",
        DYN_REASONING_PARSER="qwen3",
    )  # fmt: skip
    worker.ready_line()
    frontend.wait_for()
    ask: list[Any] = [{"role": "user", "content": "And the weather?"}]
    with openai.OpenAI(base_url=f"{frontend.url}/v1", api_key="any", max_retries=0, timeout=30) as client:
        message, thoughts, finish = streamed(client, ask, tools=TOOLS)
        assert (message["content"], thoughts, finish) == ("", "I ask.", "tool_calls")
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Zürich"}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "snow"}
        after, thoughts, finish = streamed(client, [*ask, message, result], tools=TOOLS)
        assert (after["content"], thoughts, finish) == ("snow in Zürich", "Done.", "stop")

        whole = client.chat.completions.create(model="m", messages=ask, tools=TOOLS).choices[0]
        assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
        assert whole.message.reasoning_content == "I ask."  # type: ignore[attr-defined]
        again: list[Any] = [*ask, whole.message, {**result, "tool_call_id": whole.message.tool_calls[0].id}]  # type: ignore[index]
        last = client.chat.completions.create(model="m", messages=again, tools=TOOLS).choices[0]
        assert last.message.content == "snow in Zürich"
        plain = client.chat.completions.create(model="m", messages=ask, tools=TOOLS, tool_choice="none").choices[0]
        assert (plain.message.content, plain.message.tool_calls) == ("Hello", None)


def test_a_name_that_there_is_not(stack: Any) -> None:
    """One line, with the names there are, before anything is loaded."""
    worker = stack.worker("worker", "echo_core", "--dyn-tool-call-parser", "hermis")
    assert worker.popen.wait(60) == 2
    assert "there is no tool call parser 'hermis': did you mean 'hermes'?" in worker.text()
    assert "qwen3_coder" in worker.text()
