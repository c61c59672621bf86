"""What streams and the objects of the agents' APIs consist of, for the HTTP reference, by route.

A test writes answers with the frontend's own writers, and compares: an event or a field without a sentence fails it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from docs.generate.api.field_texts import Texts

_AS_SENT: Final = "As the request has it, or its default."

RESPONSE: Final[Texts] = {
    "id": "Id of the response, for `previous_response_id` and `GET /v1/responses/{response_id}`.",
    "object": "Always `response`.",
    "created_at": "When it began, in seconds since 1970.",
    "completed_at": "When it was complete; else null.",
    "status": "`queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.",
    "error": "Code and message of what failed; else null.",
    "incomplete_details": "`reason` is `max_output_tokens` where a limit of tokens ended it; else null.",
    "model": "Name of the model.",
    "output": "Items: `message` with its text, `reasoning`, and calls of tools.",
    "usage": "`input_tokens` and `output_tokens`, with cached ones and those of reasoning; null until the end.",
    "background": "Whether it runs without its connection.",
    "store": "Whether the server keeps it.",
    "previous_response_id": "The response that it continues; else null.",
    "service_tier": "Always `default`.",
    **dict.fromkeys(
        (
            "instructions", "metadata", "text", "tool_choice", "tools", "max_output_tokens", "max_tool_calls",
            "parallel_tool_calls", "presence_penalty", "frequency_penalty", "prompt_cache_key", "reasoning",
            "safety_identifier", "temperature", "top_logprobs", "top_p", "truncation", "user",
        ),
        _AS_SENT,
    ),
}  # fmt: skip
MESSAGE: Final[Texts] = {
    "id": "Id of the answer.",
    "type": "Always `message`.",
    "role": "Always `assistant`.",
    "model": "Name of the model.",
    "content": "Blocks: `text`, `thinking` and `tool_use`.",
    "stop_reason": "`end_turn`, `max_tokens`, `stop_sequence` or `tool_use`; null until the end.",
    "stop_sequence": "The stop sequence that ended it; else null.",
    "usage": "`input_tokens`, `cache_read_input_tokens` and `cache_creation_input_tokens` sum up to the prompt.",
}

_ITEM: Final = "`item_id`, `output_index`"
_PART: Final = f"{_ITEM}, `content_index`"
_SUMMARY: Final = f"{_ITEM}, `summary_index`"
CHAT_EVENTS: Final[Mapping[str, tuple[str, str]]] = {
    "first chunk": ("`choices[].delta.role`", "The answer begins; one for each choice."),
    "chunk with text": ("`choices[].delta.content`", "The next piece of text."),
    "chunk with reasoning": ("`choices[].delta.reasoning_content`", "The next piece of reasoning."),
    "chunk with a call": (
        "`choices[].delta.tool_calls`",
        "A call begins (`id`, `function.name`), or its `function.arguments` grow; `index` says which.",
    ),
    "last chunk of a choice": ("`choices[].finish_reason`", "Why the choice ended; `delta` is empty."),
    "chunk of usage": ("`usage`", "The token counts, with `include_usage`; `choices` is empty."),
    "error": ("`error`", "What failed in mid-stream, in the form of [errors](errors.md). It is the last event."),
    "`[DONE]`": ("none", "The stream is complete."),
}
RESPONSES_EVENTS: Final[Mapping[str, tuple[str, str]]] = {
    "response.created": ("`response`", "The response exists, without output."),
    "response.queued": ("`response`", "It runs in the background, and waits for its first token."),
    "response.in_progress": ("`response`", "The first token is there."),
    "response.output_item.added": ("`output_index`, `item`", "An item begins: a message, reasoning or a call."),
    "response.content_part.added": (f"{_PART}, `part`", "A text of the item begins."),
    "response.output_text.delta": (f"{_PART}, `delta`, `logprobs`", "The next piece of the answer's text."),
    "response.output_text.done": (f"{_PART}, `text`, `logprobs`", "The whole text."),
    "response.reasoning_text.delta": (f"{_PART}, `delta`", "The next piece of reasoning."),
    "response.reasoning_text.done": (f"{_PART}, `text`", "The whole reasoning."),
    "response.reasoning_summary_part.added": (f"{_SUMMARY}, `part`", "As `content_part.added`, with `summary`."),
    "response.reasoning_summary_text.delta": (f"{_SUMMARY}, `delta`", "As `reasoning_text.delta`."),
    "response.reasoning_summary_text.done": (f"{_SUMMARY}, `text`", "As `reasoning_text.done`."),
    "response.reasoning_summary_part.done": (f"{_SUMMARY}, `part`", "As `content_part.done`."),
    "response.function_call_arguments.delta": (f"{_ITEM}, `delta`", "The call's arguments grow, JSON as a string."),
    "response.function_call_arguments.done": (f"{_ITEM}, `name`, `arguments`", "The whole arguments."),
    "response.custom_tool_call_input.delta": (f"{_ITEM}, `delta`", "The input of a `custom` tool, in one piece."),
    "response.custom_tool_call_input.done": (f"{_ITEM}, `input`", "The whole input."),
    "response.content_part.done": (f"{_PART}, `part`", "The text is complete, and repeated."),
    "response.output_item.done": ("`output_index`, `item`", "The item is complete, and repeated."),
    "response.completed": ("`response`", "The whole response. It is the last event."),
    "response.incomplete": ("`response`", "A limit of tokens ended it, or it was cancelled. It is the last event."),
    "response.failed": ("`response`", "It failed in mid-stream; `response.error` says why. It is the last event."),
}
"""Each has `type` and `sequence_number`, too."""
MESSAGES_EVENTS: Final[Mapping[str, tuple[str, str]]] = {
    "message_start": ("`message`", "The answer begins, with the prompt's tokens in `usage`."),
    "ping": ("none", "The connection lives; ignore it."),
    "content_block_start": ("`index`, `content_block`", "A block begins: `text`, `thinking` or `tool_use`."),
    "content_block_delta": (
        "`index`, `delta`",
        "The block grows: `text_delta`, `thinking_delta`, `signature_delta`, `input_json_delta`.",
    ),
    "content_block_stop": ("`index`", "The block is complete."),
    "message_delta": ("`delta`, `usage`", "Why the answer ended (`stop_reason`), and the final token counts."),
    "message_stop": ("none", "The stream is complete."),
    "error": ("`error`", "What failed, also in mid-stream. It is the last event."),
}
EVENTS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "POST /v1/chat/completions": CHAT_EVENTS,
    "POST /v1/responses": RESPONSES_EVENTS,
    "POST /v1/messages": MESSAGES_EVENTS,
}
"""By route and event: its fields, and when it comes. Those of completions are `text_completion`s, as whole answers."""
