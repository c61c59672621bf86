"""A sentence on every field of the bodies, for the HTTP reference, by the name of the OpenAPI schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Texts = Mapping[str, str]

_UNUSED: Final = "Accepted and ignored."
_MODEL: Final = "Name of the model, as `/v1/models` lists it."
_STREAM: Final = "Send the answer as server-sent events while it is produced."
_TEMPERATURE: Final = "Randomness of the choice of each token; 0 always takes the most probable one."
_TOP_P: Final = "Choose among the most probable tokens whose probabilities sum up to this."
_NVEXT: Final = "Extensions of NVIDIA Dynamo: routing, priority, and what the answer reports of them."
_TOOLS: Final = "Functions that the model may call. Needs a tool call parser for the model."
_TOOL_CHOICE: Final = "Whether the model may, must or must not call a function, or which one."

_SAMPLING: Final[Texts] = {
    "model": _MODEL,
    "stream": _STREAM,
    "stream_options": "Options of a stream; only with `stream`.",
    "max_tokens": "Tokens of the answer at most. Default: 16 for completions, the rest of the context for chats.",
    "max_completion_tokens": "The newer name of `max_tokens`.",
    "n": "Number of answers.",
    "best_of": "Only the value of `n` is accepted; it changes nothing.",
    "temperature": _TEMPERATURE,
    "top_p": _TOP_P,
    "top_k": "Choose among this many most probable tokens; -1 or 0: among all.",
    "min_p": "Exclude tokens less probable than this share of the most probable one.",
    "presence_penalty": "Lower the probability of tokens that the answer already has.",
    "frequency_penalty": "Lower the probability of tokens by how often the answer already has them.",
    "repetition_penalty": "Divide the scores of tokens that prompt or answer already have by this.",
    "seed": "Seed of the random choice, for repeatable answers.",
    "stop": "Text, or up to 16 texts, at which the answer ends; the text isn't part of the answer.",
    "stop_token_ids": "Token ids at which the answer ends.",
    "include_stop_str_in_output": "Include the stop text in the answer.",
    "ignore_eos": "Continue after the model's end token, up to `max_tokens`.",
    "min_tokens": "Tokens of the answer before it may end; at most `max_tokens`.",
    "logit_bias": "Number to add to the score of a token, by token id.",
    "skip_special_tokens": "Leave special tokens out of the text (default).",
    "add_special_tokens": _UNUSED,
    "prompt_logprobs": "Not supported; only null is accepted.",
    "guided_json": "JSON schema that the answer follows.",
    "guided_regex": "Regular expression that the answer matches.",
    "guided_choice": "Texts of which the answer is one.",
    "guided_grammar": "Grammar that the answer follows: GBNF or Lark, depending on the engine.",
    "guided_structural_tag": "Structural tags that the answer follows, where the engine supports them.",
    "guided_backend": "Constraint library, where the engine has a choice.",
    "guided_whitespace_pattern": "White space between JSON tokens, where the engine supports it.",
    "user": _UNUSED,
    "metadata": _UNUSED,
    "nvext": _NVEXT,
}
_CHAT: Final[Texts] = {
    **_SAMPLING,
    "messages": "The conversation so far.",
    "logprobs": "Return the log probability of each token of the answer.",
    "top_logprobs": "Most probable tokens to return for each position; needs `logprobs`.",
    "response_format": "Constrain the answer to JSON (`json_object`) or to a schema (`json_schema`).",
    "tools": _TOOLS,
    "tool_choice": _TOOL_CHOICE,
    "parallel_tool_calls": "Allow several calls in one answer.",
    "chat_template": "Jinja template in place of the model's own.",
    "chat_template_kwargs": "Variables of the template, for example `enable_thinking`.",
    "chat_template_args": "The same, under NVIDIA Dynamo's name.",
    "add_generation_prompt": "End the prompt with the beginning of an answer (default).",
    "continue_final_message": _UNUSED,
    "documents": _UNUSED,
    "reasoning_effort": "Given to the template, with `enable_thinking` (false for `none`).",
    "store": _UNUSED,
    "service_tier": _UNUSED,
    "safety_identifier": _UNUSED,
    "prompt_cache_key": _UNUSED,
    "functions": "Replaced by `tools`; only an empty list is accepted.",
    "function_call": "Replaced by `tool_choice`; ignored.",
    "modalities": "Only `text` is supported.",
    "audio": _UNUSED,
}
_COMPLETION: Final[Texts] = {
    **_SAMPLING,
    "prompt": "Text, token ids, or a list of either; one answer per prompt.",
    "echo": "Begin the answer with the prompt.",
    "logprobs": "Most probable tokens to return for each position of the answer.",
    "suffix": "Not supported; only null is accepted.",
}
_RESPONSES: Final[Texts] = {
    **{
        name: _SAMPLING[name]
        for name in (
            "model", "stream", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "seed", "stop", "min_tokens", "ignore_eos", "nvext",
        )
    },
    "metadata": "Returned with the response.",
    "user": "Returned with the response.",
    "input": "Text, or the items of the conversation.",
    "instructions": "System message in front of the input.",
    "stream_options": "Options of a stream.",
    "max_output_tokens": "Tokens of the answer at most, thoughts included.",
    "max_tool_calls": "Returned with the response; the server calls no tools itself.",
    "top_logprobs": "Most probable tokens to return for each position.",
    "tools": _TOOLS,
    "tool_choice": _TOOL_CHOICE,
    "parallel_tool_calls": "Allow several calls in one answer.",
    "text": "Form of the text.",
    "reasoning": "How much the model should think.",
    "include": "Further parts of the answer, for example `message.output_text.logprobs`.",
    "truncation": "`auto` drops the oldest messages until the rest fits; `disabled` refuses what is too long.",
    "store": "Keep the response, so that later requests can refer to it (default, where the frontend stores any).",
    "previous_response_id": "Stored response that this one continues.",
    "background": "Answer at once, and produce the response in the background; `GET /v1/responses/ID` has it.",
    "conversation": "Not supported; only null is accepted.",
    "prompt": "Not supported; only null is accepted.",
    "safety_identifier": "Returned with the response.",
    "prompt_cache_key": "Returned with the response.",
    "prompt_cache_retention": _UNUSED,
    "service_tier": _UNUSED,
    "chat_template_kwargs": "Variables of the template, for example `enable_thinking`.",
}  # fmt: skip
_MESSAGES: Final[Texts] = {
    "model": _MODEL,
    "messages": "The conversation so far; the last message is the user's.",
    "system": "System message: a text, or blocks of text.",
    "tools": _TOOLS,
    "tool_choice": _TOOL_CHOICE,
    "thinking": "Whether the model should think before it answers.",
    "output_config": "Form of the answer, and how much effort it is worth.",
    "cache_control": "Counted in `usage`; prefixes are cached without it.",
}

FIELD_TEXTS: Final[Mapping[str, Texts]] = {
    "ChatRequest": _CHAT,
    "CompletionRequest": _COMPLETION,
    "ResponsesRequest": _RESPONSES,
    "CountTokensRequest": _MESSAGES,
    "MessagesRequest": {
        **_MESSAGES,
        "max_tokens": "Tokens of the answer at most.",
        "stream": _STREAM,
        "stop_sequences": "Texts at which the answer ends.",
        "temperature": _TEMPERATURE,
        "top_p": _TOP_P,
        "top_k": "Choose among this many most probable tokens; 0: among all.",
        "metadata": _UNUSED,
        "service_tier": _UNUSED,
        "nvext": _NVEXT,
    },
    "EmbeddingsRequest": {
        "model": _MODEL,
        "input": "Text, token ids, or a list of either; one vector per input.",
        "encoding_format": "Vectors as numbers (`float`, default) or as base64 of 32-bit floats.",
        "dimensions": "Length of the vectors, for models that were made to be cut.",
        "user": _UNUSED,
        "nvext": _NVEXT,
    },
    "TokenizeRequest": {
        "model": _MODEL,
        "prompt": "Text to tokenize.",
        "messages": "Conversation to render by the model's template and tokenize, in place of `prompt`.",
        "add_special_tokens": "Add the model's special tokens, such as BOS.",
        "add_generation_prompt": "End the rendered conversation with the beginning of an answer.",
        "return_token_strs": "Return each token's text, too.",
    },
    "DetokenizeRequest": {"model": _MODEL, "tokens": "Token ids to turn into text."},
    "StreamOptions": {
        "include_usage": "Send a last chunk with the token counts.",
        "continuous_usage_stats": _UNUSED,
    },
    "Message": {
        "role": "`system`, `developer`, `user`, `assistant` or `tool`.",
        "content": "Text, or parts of text.",
        "name": "Name of the participant, for templates that use it.",
        "tool_calls": "Calls that the assistant made.",
        "tool_call_id": "Call that a message of the role `tool` answers.",
    },
    "ResponseStreamOptions": {"include_obfuscation": _UNUSED},
    "TextOptions": {
        "format": "Constrain the answer: `text`, `json_object` or `json_schema`.",
        "verbosity": "Returned with the response.",
    },
    "ReasoningOptions": {
        "effort": "How much the model should think; passed to the template.",
        "summary": "Have thoughts come as a summary; nobody shortens them.",
        "generate_summary": "The older name of `summary`.",
    },
    "Thinking": {
        "type": "`enabled`, `adaptive` or `disabled`.",
        "budget_tokens": _UNUSED,
        "display": _UNUSED,
    },
    "OutputConfig": {
        "effort": "How much the model should think; passed to the template.",
        "format": "JSON schema that the answer follows.",
    },
    "Nvext": {
        "annotations": "`query_instance_id:` asks where the request would go, and doesn't send it.",
        "extra_fields": "What the answer's `nvext` reports: `worker_id`, `timing`, `routing`.",
        "backend_instance_id": "Worker that must take the request, by its instance id.",
        "decode_worker_id": "The same as `backend_instance_id`.",
        "prefill_worker_id": "Prefill worker that must compute the prompt.",
        "dp_rank": "Data-parallel rank of the worker that must take the request.",
        "prefill_dp_rank": "Data-parallel rank of the prefill worker.",
        "agent_hints": "Priority of the request where requests wait.",
        "session_control": "Session whose requests go to one worker.",
        "router_config_override": "Weights of mode `kv` for this request.",
        "greed_sampling": "Take the most probable token always.",
        "use_raw_prompt": "Render a chat without the template.",
    },
    "AgentHints": {
        "priority": "Requests of a higher priority leave the queue earlier.",
        "strict_priority": "Orders the queue before `priority` does.",
        "osl": _UNUSED,
        "speculative_prefill": _UNUSED,
    },
    "SessionControl": {
        "session_id": "Id of the session.",
        "action": "`close` makes this request the last one of its session.",
        "timeout": "Ignored: the frontend's own time to live counts.",
    },
    "RouterConfigOverride": {
        "overlap_score_credit": "Weight of prompt blocks that a worker caches.",
        "prefill_load_scale": "How strongly workers that cache the prompt are preferred over less loaded ones.",
        "overlap_score_weight": "Older name of `prefill_load_scale`; 0 also removes the credit for caches.",
        "router_temperature": "Softmax temperature of the choice; 0 always takes the cheapest worker.",
    },
    "BusyThresholdRequest": {
        "model": _MODEL,
        "active_decode_blocks_threshold": "Share of used KV blocks from which a worker counts as busy.",
        "active_prefill_tokens_threshold": "Prompt tokens waiting at a worker from which it counts as busy.",
        "active_prefill_tokens_threshold_frac": "The same, as a multiple of `max_num_batched_tokens`.",
    },
}
