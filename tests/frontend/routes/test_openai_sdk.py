"""The `openai` SDK against a whole frontend over the memory runtime."""

from __future__ import annotations

from typing import Any


def test_chat_answers_with_the_prompts_tokens(served: Any) -> None:
    """A whole chat answer holds text, finish reason and exact usage."""
    with served.client() as client:
        answer = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "héllo wörld"}], max_tokens=400
        )
    assert "héllo wörld" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 400
    assert answer.id.startswith("chatcmpl-")


def test_chat_streams(served: Any) -> None:
    """A stream has one id, a role first, and the same text as a whole answer."""
    messages = [{"role": "user", "content": "héllo wörld"}]
    with served.client() as client:
        whole = client.chat.completions.create(model="m", messages=messages, max_tokens=30)
        stream = client.chat.completions.create(
            model="m", messages=messages, max_tokens=30, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len({c.id for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == "length"
