"""The bytes of streams and answers, pinned: clients parse exactly these."""

from __future__ import annotations

import json

from dynamo.frontend.openai.chunks import DONE, ChatChunks, CompletionChunks, Identity, error_event
from dynamo.frontend.responses.generation_events import usage_dict
from dynamo.frontend.responses.json_response import chat_answer

WHO = Identity("chatcmpl-1", 1700000000, "m", "fp_1")
HEAD = b'data: {"id":"chatcmpl-1","object":"%b","created":1700000000,"model":"m","system_fingerprint":"fp_1","choices":'
CHAT = HEAD % b"chat.completion.chunk"
TEXT = HEAD % b"text_completion"


def test_chat_token() -> None:
    """A token of a chat stream is a prefix, its JSON string and a tail."""
    form = ChatChunks(WHO, usage=False)
    line = form.prefix(0) + b'"hi"' + form.tail
    assert line == CHAT + b'[{"index":0,"delta":{"content":"hi"},"logprobs":null,"finish_reason":null}]}\n\n'


def test_chat_first_token_names_the_role() -> None:
    """The first chunk of a choice has the role, text in any script, and escapes what JSON must."""
    assert ChatChunks(WHO, usage=False).first(1, 'é"\n') == (
        CHAT + '[{"index":1,"delta":{"role":"assistant","content":"é\\"\\n"},'.encode()
        + b'"logprobs":null,"finish_reason":null}]}\n\n'
    )  # fmt: skip


def test_chat_end() -> None:
    """The end is an empty delta with the reason, and the stop string where one matched."""
    form = ChatChunks(WHO, usage=False)
    assert form.finish(0, "length", None) == (
        CHAT + b'[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}\n\n'
    )
    assert form.finish(0, "stop", "END") == (
        CHAT + b'[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":"END"}]}\n\n'
    )


def test_usage_chunk() -> None:
    """With include_usage every chunk has `usage`, null until the last, which has no choices."""
    form = ChatChunks(WHO, usage=True)
    assert form.finish(0, "stop", None).endswith(b'"finish_reason":"stop"}],"usage":null}\n\n')
    assert form.usage(usage_dict(3, 2, 1)) == (
        CHAT + b'[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,'
        b'"prompt_tokens_details":{"cached_tokens":1}}}\n\n'
    )


def test_completion_chunks() -> None:
    """Completion chunks hold `text` where chat has a delta."""
    form = CompletionChunks(WHO, usage=False)
    token = b'[{"index":2,"text":"hi","logprobs":null,"finish_reason":null}]}\n\n'
    assert form.prefix(2) + b'"hi"' + form.tail == TEXT + token
    assert form.first(2, "hi") == TEXT + token
    assert form.finish(2, "stop", 7) == (
        TEXT + b'[{"index":2,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":7}]}\n\n'
    )


def test_logprobs_chunk_is_the_same_envelope() -> None:
    """A chunk with log probabilities differs in nothing else."""
    form = ChatChunks(WHO, usage=False)
    body = json.loads(form.scored(0, "a", True, {"logprobs": {"content": []}}).removeprefix(b"data: "))
    assert body["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "a"},
            "logprobs": {"content": []},
            "finish_reason": None,
        }
    ]


def test_whole_answers() -> None:
    """Whole answers are one object."""
    usage = usage_dict(1, 1, 0)
    assert json.loads(chat_answer(WHO, [{"index": 0}], usage)) == {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "m",
        "system_fingerprint": "fp_1", "choices": [{"index": 0}], "usage": usage,
    }  # fmt: skip


def test_error_event() -> None:
    """An error in mid-stream is one event whose only key is `error`, as the SDK expects to raise."""
    assert error_event(b'{"error":{}}') == b'data: {"error":{}}\n\n'
    assert DONE == b"data: [DONE]\n\n"
