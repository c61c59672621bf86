"""A sentence on every field of the answers, for the HTTP reference, by the name of the OpenAPI schema."""

from __future__ import annotations

from typing import Final

from docs.generate.api.event_texts import MESSAGE, RESPONSE
from docs.generate.api.field_texts import Texts

_ID: Final = "Id of this answer."
_CREATED: Final = "When the answer began, in seconds since 1970."
_MODEL: Final = "Name of the model, as the request has it."
_USAGE: Final = "Tokens that the request and its answer took."
_STOP_REASON: Final = "Stop text or token id that ended it; left out where there was none."
_FINGERPRINT: Final = "Changes when the served model or its settings change."
_CHOICES: Final = "As many as the request's `n`, for each prompt."
_LOGPROBS: Final = "Log probabilities of its tokens, where the request wants them; else null."
_PROMPT_LOGPROBS: Final = "In vLLM's form: per token of the prompt log probabilities by token id; null for the first."
_IDS: Final = "Token ids of the answer, with `return_token_ids`."
_PROMPT_IDS: Final = "Token ids of the prompt, with `return_token_ids`."
_TIER: Final = "`default`, where the request names a tier; there is only one."
_LIST: Final = "Always `list`."

ANSWER_TEXTS: Final[dict[str, Texts]] = {
    "ChatCompletion": {
        "id": _ID,
        "object": "Always `chat.completion`.",
        "created": _CREATED,
        "model": _MODEL,
        "choices": _CHOICES,
        "usage": _USAGE,
        "service_tier": _TIER,
        "prompt_logprobs": _PROMPT_LOGPROBS,
        "prompt_token_ids": _PROMPT_IDS,
        "system_fingerprint": _FINGERPRINT,
    },
    "Conversation": {
        "id": "Id of the conversation, for a request's `conversation`.",
        "object": "Always `conversation`.",
        "created_at": "When it was made, in seconds since 1970.",
        "metadata": "What was set with it.",
    },
    "PromptLogprob": {
        "logprob": "Natural logarithm of the token's probability.",
        "rank": "Place among the likeliest that were asked for, from 1; null further down.",
        "decoded_token": "Text of the token.",
    },
    "ChatChoice": {
        "index": "Place of this answer among `choices`.",
        "message": "What the model answered.",
        "finish_reason": "`stop`, `length` (a limit of tokens) or `tool_calls`.",
        "logprobs": _LOGPROBS,
        "token_ids": _IDS,
        "stop_reason": _STOP_REASON,
    },
    "AnsweredMessage": {
        "role": "Always `assistant`.",
        "content": "Text of the answer; null where the model only calls tools.",
        "refusal": "Always null: the server doesn't tell a refusal from other text.",
        "reasoning_content": "The model's reasoning, where a reasoning parser is set.",
        "reasoning": "Instead of `reasoning_content`, with `--reasoning-field-name reasoning`.",
        "tool_calls": "Calls that your program should make, where a tool call parser is set.",
    },
    "AnsweredCall": {
        "id": "Id of the call; your message with the result names it in `tool_call_id`.",
        "type": "Always `function`.",
        "function": "Function to call.",
    },
    "AnsweredFunction": {
        "name": "Name of the function, one of the request's `tools`.",
        "arguments": "JSON as a string, as the model wrote it: check it before use.",
    },
    "Completion": {
        "id": _ID,
        "object": "Always `text_completion`.",
        "created": _CREATED,
        "model": _MODEL,
        "choices": _CHOICES,
        "usage": _USAGE,
        "service_tier": _TIER,
        "system_fingerprint": _FINGERPRINT,
    },
    "TextChoice": {
        "index": "Place of this continuation: prompts in their order, `n` continuations for each.",
        "text": "The continuation; with `echo` the prompt comes first.",
        "finish_reason": "`stop` or `length` (a limit of tokens).",
        "logprobs": _LOGPROBS,
        "token_ids": _IDS,
        "prompt_token_ids": _PROMPT_IDS,
        "stop_reason": _STOP_REASON,
        "prompt_logprobs": _PROMPT_LOGPROBS,
    },
    "Usage": {
        "prompt_tokens": "Tokens of the prompt, template included.",
        "total_tokens": "Tokens of prompt and answer.",
        "completion_tokens": "Tokens of the answer, reasoning included.",
        "prompt_tokens_details": "Where the prompt's tokens came from, if the engine reports it.",
        "completion_tokens_details": "What the answer's tokens are, where a reasoning parser reads the answer.",
    },
    "CachedTokens": {"cached_tokens": "Tokens of the prompt that the engine read from its KV cache."},
    "ReasoningTokens": {"reasoning_tokens": "Tokens of the answer that are the model's thoughts."},
    "EmbeddingList": {
        "object": _LIST,
        "data": "One entry for each input, in their order.",
        "model": _MODEL,
        "usage": _USAGE,
    },
    "EmbeddingEntry": {
        "object": "Always `embedding`.",
        "index": "Place of the input in the request.",
        "embedding": "Numbers; with `encoding_format: base64` their bytes (float32, little endian) in base64.",
    },
    "Ranking": {"id": _ID, "model": _MODEL, "results": "Documents, the nearest first.", "usage": _USAGE},
    "Ranked": {
        "index": "Place of the document in the request.",
        "relevance_score": "How near it is to the query; larger is nearer.",
        "document": "The document, with `return_documents`.",
    },
    "RankedText": {"text": "Text of the document."},
    "ScoreList": {
        "id": _ID,
        "object": _LIST,
        "created": _CREATED,
        "model": _MODEL,
        "data": "One entry for each pair of texts.",
        "usage": _USAGE,
    },
    "Score": {
        "index": "Place of the pair in the request.",
        "object": "Always `score`.",
        "score": "How near the two texts are; larger is nearer.",
    },
    "Model": {
        "id": "Name to send as `model`.",
        "object": "Always `model`.",
        "created": "When this frontend first saw the model, in seconds since 1970.",
        "owned_by": "Always `dynamo`.",
        "context_window": "Tokens of prompt and answer together; null where the worker doesn't tell.",
        "max_model_len": "The same, under vLLM's name.",
        "types": "What it answers: `chat`, `completions`, `embedding`.",
        "input_modalities": "`text`, and `image` where the model takes images.",
    },
    "ModelList": {
        "data": "The models; see [`GET /v1/models/{model_id}`](#get-v1modelsmodel_id) for their fields.",
        "object": _LIST,
    },
    "ModelReadiness": {
        "model": "Name of the model.",
        "ready": "Whether a request could be answered now.",
        "namespaces": "For each namespace: whether it is ready, and its number of workers of each kind.",
    },
    "Tokens": {
        "count": "Number of tokens.",
        "tokens": "Their ids.",
        "max_model_len": "Tokens that the model takes, prompt and answer together.",
        "token_strs": "Text of each token, with `return_token_strs`.",
    },
    "Detokenized": {"prompt": "Text of the tokens, special ones included."},
    "Version": {"version": "Installed version."},
    "ResponseAnswer": RESPONSE,
    "OutputItem": {
        "id": "Id of the item.",
        "type": "`message`, `reasoning`, `function_call`, or another call of a tool.",
        "status": "`in_progress`, `completed` or `incomplete`.",
        "role": "`assistant`, of a message.",
        "content": "Texts of a message, or of reasoning.",
        "summary": "Texts of reasoning, where a summary was wanted.",
        "call_id": "Id of a call; your item with its output names it.",
        "name": "Name of the tool that is called.",
        "arguments": "Arguments of a function, as JSON in a string.",
        "input": "Input of a `custom` tool.",
    },
    "OutputPart": {"type": "`output_text`, `reasoning_text` or `summary_text`.", "text": "The text."},
    "ResponseUsage": {
        "input_tokens": "Tokens of the input, template included.",
        "output_tokens": "Tokens of the output, reasoning included.",
        "total_tokens": "Both together.",
        "input_tokens_details": "What of the input came from a cache, or went into one.",
        "output_tokens_details": "What the tokens of the output are.",
    },
    "InputTokensDetails": {
        "cached_tokens": "Tokens of the input that the engine read from its KV cache.",
        "cache_write_tokens": "Always 0: no engine says it.",
    },
    "OutputTokensDetails": {"reasoning_tokens": "Tokens of the output that are the model's thoughts."},
    "InputTokenCount": {"object": "Always `response.input_tokens`.", "input_tokens": "Tokens that the input takes."},
    "MessageAnswer": MESSAGE,
    "MessageBlock": {
        "type": "`text`, `thinking` or `tool_use`.",
        "text": "The text.",
        "thinking": "The model's reasoning.",
        "signature": "Comes with `thinking`; send it back with the block.",
        "id": "Id of a call; your `tool_result` names it.",
        "name": "Name of the tool that is called.",
        "input": "Arguments of the call.",
    },
    "MessageUsage": {
        "input_tokens": "Tokens of the prompt that no cache had or took.",
        "output_tokens": "Tokens of the answer, thinking included.",
        "cache_creation_input_tokens": "Tokens of the prompt that the cache took.",
        "cache_read_input_tokens": "Tokens of the prompt that the cache had.",
    },
    "MessageTokenCount": {"input_tokens": "Tokens that the messages take."},
    "Deleted": {
        "id": "Id of what is gone.",
        "object": "Its kind, such as `conversation.deleted`.",
        "deleted": "Always true.",
    },
    "ItemList": {
        "object": _LIST,
        "data": "The items of this page.",
        "has_more": "Whether there are more behind them.",
        "first_id": "Id of the first; null where there is none.",
        "last_id": "Id of the last, for `after`; null where there is none.",
    },
    "Liveness": {"status": "Always `live`.", "message": "The same as a sentence."},
}
