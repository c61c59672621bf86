"""A sentence on every field of the bodies, for the HTTP reference, by the name of the OpenAPI schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dynamo.llm.processing.request_options import MOST_STOPS

Texts = Mapping[str, str]

_UNUSED: Final = "Accepted and ignored."
_MODEL: Final = "Name of the model, as `/v1/models` lists it."
_STREAM: Final = "Send the answer as server-sent events while it is produced."
_TEMPERATURE: Final = "Randomness of the choice of each token; 0 always takes the most probable one."
_TOP_P: Final = "Choose among the most probable tokens whose probabilities sum up to this."
_NVEXT: Final = "Extensions of NVIDIA Dynamo: routing, priority, and what the answer reports of them."
_TOOLS: Final = "Functions that the model may call. Needs a tool call parser for the model."
_TOOL_CHOICE: Final = "Whether the model may, must or must not call a function, or which one."

_SALT: Final = "The prompt's cache is shared with requests of the same salt only; on mocker and vllm."
_ONLY: Final = "Name of the model; may be left out where only one is served."
_SAMPLING: Final[Texts] = {
    "model": _MODEL,
    "stream": _STREAM,
    "stream_options": "Options of a stream; only with `stream`.",
    "max_tokens": "Tokens of the answer at most. Default: 16 for completions, the rest of the context for chats.",
    "max_completion_tokens": "The newer name of `max_tokens`.",
    "n": "Number of answers.",
    "best_of": "Answers to make, at least `n`; the `n` likeliest of them are returned. Not with `stream`.",
    "temperature": _TEMPERATURE,
    "top_p": _TOP_P,
    "top_k": "Choose among this many most probable tokens; -1 or 0: among all.",
    "min_p": "Exclude tokens less probable than this share of the most probable one.",
    "presence_penalty": "Lower the probability of tokens that the answer already has.",
    "frequency_penalty": "Lower the probability of tokens by how often the answer already has them.",
    "repetition_penalty": "Divide the scores of tokens that prompt or answer already have by this.",
    "seed": "Seed of the random choice, for repeatable answers.",
    "stop": f"Text, or up to {MOST_STOPS} texts, at which the answer ends; the text isn't part of the answer.",
    "stop_token_ids": "Token ids at which the answer ends.",
    "include_stop_str_in_output": "Include the stop text in the answer.",
    "ignore_eos": "Continue after the model's end token, up to `max_tokens`.",
    "min_tokens": "Tokens of the answer before it may end; at most `max_tokens`.",
    "logit_bias": "Number to add to the score of a token, by token id.",
    "skip_special_tokens": "Leave special tokens out of the text (default).",
    "add_special_tokens": _UNUSED,
    "prompt_logprobs": "Most probable tokens to return for each position of the prompt. Not with `stream`.",
    "structured_outputs": "vLLM's object of constraints, in place of `guided_*`.",
    "guided_json": "JSON schema that the answer follows.",
    "guided_regex": "Regular expression that the answer matches.",
    "guided_choice": "Texts of which the answer is one.",
    "guided_grammar": "Grammar that the answer follows: GBNF or Lark, depending on the engine.",
    "guided_structural_tag": "Structural tags that the answer follows, where the engine supports them.",
    "guided_backend": "Constraint library, where the engine has a choice.",
    "guided_whitespace_pattern": "White space between JSON tokens, where the engine supports it.",
    "user": _UNUSED,
    "metadata": "Accepted and ignored; at most 16 keys of 64 characters, texts of 512 as values.",
    "service_tier": "Answered with `default`, the only tier.",
    "nvext": _NVEXT,
    "bad_words": "Words that the answer doesn't have; those of several tokens on mocker and vllm only.",
    "allowed_token_ids": "Token ids of which the answer consists.",
    "truncate_prompt_tokens": "Keep so many tokens at the prompt's end; -1: as many as fit beside `max_tokens`.",
    "cache_salt": _SALT,
    "return_token_ids": "Return the token ids of the prompt and of each answer.",
    "return_tokens_as_token_ids": "Name tokens `token_id:ID` in log probabilities, not by their texts.",
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
    "chat_template": "Rejected with 400: a worker's `--chat-template` sets it.",
    "chat_template_kwargs": "Variables of the template, for example `enable_thinking`.",
    "chat_template_args": "The same, under NVIDIA Dynamo's name.",
    "add_generation_prompt": "End the prompt with the beginning of an answer (default).",
    "continue_final_message": "Go on with the last message, which the assistant began.",
    "documents": _UNUSED,
    "reasoning_effort": "Given to the template, with `enable_thinking` (false for `none`).",
    "include_reasoning": "Leave the model's reasoning out of the answer where it is false.",
    "store": _UNUSED,
    "safety_identifier": _UNUSED,
    "prompt_cache_key": _UNUSED,
    "functions": "The older form of `tools`: functions by themselves.",
    "function_call": "Replaced by `tool_choice`; ignored.",
    "modalities": "Only `text` is supported.",
    "audio": _UNUSED,
}
_CONVERSATION: Final = "Id of the conversation."
_ITEMS: Final = "Items that are added, 20 at most: messages, calls and their outputs."
_COMPLETION: Final[Texts] = {
    **_SAMPLING,
    "prompt": "Text, token ids, or a list of either; one answer per prompt.",
    "echo": "Begin the answer with the prompt.",
    "response_format": "Constrain the answer to JSON (`json_object`) or to a schema (`json_schema`).",
    "logprobs": "Most probable tokens to return for each position of the answer.",
    "suffix": "Text that follows the answer; only for models with fill-in-the-middle tokens.",
}
_RESPONSES: Final[Texts] = {
    **{
        name: _SAMPLING[name]
        for name in (
            "model", "stream", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "seed", "stop", "min_tokens", "ignore_eos", "nvext",
        )
    },
    "metadata": "Returned with the response; at most 16 keys of 64 characters, texts of 512 as values.",
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
    "conversation": "Conversation that this goes on, by its id; what is asked and said is added to it.",
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
        "thread": "A conversation that the server should hold: refused, so that clients send all of it.",
        "nvext": _NVEXT,
    },
    "EmbeddingsRequest": {
        "model": _MODEL,
        "input": "Text, token ids, or a list of either; one vector per input.",
        "encoding_format": "Vectors as numbers (`float`, default) or as base64 of 32-bit floats.",
        "dimensions": "Length of the vectors, for models that were made to be cut.",
        "truncate_prompt_tokens": "Keep so many tokens at the end of each input; -1: as many as the context has.",
        "user": _UNUSED,
        "nvext": _NVEXT,
    },
    "RerankRequest": {
        "model": _MODEL,
        "query": "Text that the documents are compared with.",
        "documents": "Documents to rank.",
        "top_n": "Documents to return; all if left out.",
        "return_documents": "Return the documents' texts, too.",
        "user": _UNUSED,
    },
    "ScoreRequest": {
        "model": _MODEL,
        "text_1": "Text, or texts, on the left side.",
        "text_2": "Text, or texts, on the right side.",
        "user": _UNUSED,
    },
    "TokenizeRequest": {
        "model": _ONLY,
        "prompt": "Text to tokenize.",
        "messages": "Conversation to render by the model's template and tokenize, in place of `prompt`.",
        "tools": _TOOLS,
        "chat_template_kwargs": "Variables of the template, for example `enable_thinking`.",
        "reasoning_effort": "Given to the template, with `enable_thinking` (false for `none`).",
        "continue_final_message": "Go on with the last message, which the assistant began.",
        "add_special_tokens": "Add the model's special tokens, such as BOS.",
        "add_generation_prompt": "End the rendered conversation with the beginning of an answer.",
        "return_token_strs": "Return each token's text, too.",
    },
    "DetokenizeRequest": {"model": _ONLY, "tokens": "Token ids to turn into text."},
    "StreamOptions": {
        "include_usage": "Send a last chunk with the token counts.",
        "continuous_usage_stats": "Send the token counts so far with every chunk; needs `include_usage`.",
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
    "ConversationRef": {"id": _CONVERSATION},
    "ConversationRequest": {"items": _ITEMS, "metadata": "Returned with the conversation; at most 16 keys."},
    "ConversationItems": {"items": _ITEMS},
    "ConversationChange": {"metadata": "Takes the place of the metadata before."},
    "Nvext": {
        "annotations": "Events before a stream: `request_id`, `formatted_prompt`, `token_ids`. `query_instance_id:` "
        "asks where the request would go, and doesn't send it.",
        "token_data": "The prompt's token ids, made by the client or a gateway.",
        "extra_fields": "What the answer's `nvext` reports: `worker_id`, `timing`, `routing`.",
        "backend_instance_id": "Worker that must take the request, by its instance id.",
        "decode_worker_id": "The same as `backend_instance_id`.",
        "prefill_worker_id": "Prefill worker that must compute the prompt.",
        "dp_rank": "Data-parallel rank of the worker that must take the request.",
        "prefill_dp_rank": "Data-parallel rank of the prefill worker.",
        "agent_hints": "Priority of the request where requests wait.",
        "session_control": "Session whose requests go to one worker.",
        "router_config_override": "Weights of mode `kv` for this request.",
        "cache_salt": _SALT,
        "max_thinking_tokens": "Ignored, as in NVIDIA Dynamo 1.6.1, and named in `x-dynamo-ignored-fields`.",
        "routing_constraints": "Taints of workers, of which there are none here.",
        "greed_sampling": "Take the most probable token always.",
        "use_raw_prompt": "Render a chat without the template.",
    },
    "RoutingConstraints": {
        "required_taints": "Rejected with 400 where there are any: no worker has taints.",
        "preferred_taints": _UNUSED,
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
