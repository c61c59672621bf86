"""What a route is asked and answers, for the HTTP reference: requests, whole answers, streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CHAT: Final = """```json
{"model": "qwen3", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
```

The answer:

```json
{"id": "chatcmpl-…", "object": "chat.completion", "created": 1796000000, "model": "qwen3",
 "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi!"}, "finish_reason": "stop"}],
 "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}
```

With `stream: true` the answer is server-sent events: each `data:` line is a `chat.completion.chunk` with a `delta`, the
last one is `data: [DONE]`. With `stream_options: {"include_usage": true}` a chunk without choices has the token counts.

```text
data: {"id":"chatcmpl-…","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hi"}}],…}

data: [DONE]
```

`finish_reason` is `stop`, `length` or `tool_calls`. `reasoning_content` and `tool_calls` of a message come from
the model's parsers; `usage.prompt_tokens_details.cached_tokens` counts prompt tokens from a KV cache."""
_COMPLETION: Final = """```json
{"model": "qwen3", "prompt": "The capital of Germany is", "max_tokens": 8}
```

The answer:

```json
{"id": "cmpl-…", "object": "text_completion", "created": 1796000000, "model": "qwen3",
 "choices": [{"index": 0, "text": " Berlin.", "finish_reason": "stop", "logprobs": null}],
 "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}}
```

With `stream: true` each `data:` line is a `text_completion` with the next piece of `text`; the last one is
`data: [DONE]`."""
_EMBEDDINGS: Final = """```json
{"model": "bge", "input": ["first text", "second text"]}
```

The answer has a vector of length one for each input, in their order:

```json
{"object": "list", "model": "bge", "data": [{"object": "embedding", "index": 0, "embedding": [0.01, -0.02]}],
 "usage": {"prompt_tokens": 4, "total_tokens": 4}}
```"""
_RESPONSES: Final = """```json
{"model": "qwen3", "input": "Hello", "stream": true}
```

Whole answers are a `response` object with `output` items. A stream has an event name on each `event:` line:
`response.created`, `response.output_item.added`, `response.output_text.delta`, …, `response.completed`."""
_MESSAGES: Final = """```json
{"model": "qwen3", "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}
```

Whole answers are a `message` with `content` blocks. A stream has the events `message_start`, `content_block_start`,
`content_block_delta`, `content_block_stop`, `message_delta` and `message_stop`."""
_HEALTH: Final = """
The status is 503 while the frontend starts or shuts down, else 200, even if no model has a worker: the body lists
models and instances. `/live` answers 200 as long as the process runs.
"""

EXAMPLES: Final[Mapping[str, str]] = {
    "POST /v1/chat/completions": _CHAT,
    "POST /v1/completions": _COMPLETION,
    "POST /v1/embeddings": _EMBEDDINGS,
    "POST /v1/responses": _RESPONSES,
    "POST /v1/messages": _MESSAGES,
    "GET /health": _HEALTH,
}
