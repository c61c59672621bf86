"""Prompt and answer together: whoever asks for more tokens than the context has room for is told so, as by OpenAI."""

from __future__ import annotations

from collections.abc import Iterable

from dynamo.frontend.errors import bad_request
from dynamo.frontend.openai.request_defaults import RequestDefaults
from dynamo.frontend.openai.request_structs import ChatRequest, CompletionRequest
from dynamo.llm.protocols import PreprocessedRequest

CODE = "context_length_exceeded"


def check_total(
    request: ChatRequest | CompletionRequest, made: Iterable[PreprocessedRequest], context: int | None,
    clipped: int, defaults: RequestDefaults | None,
) -> None:  # fmt: skip
    """Raise the 400 of a request that asks for longer answers than its prompts, `made` already, leave room for.

    What the frontend filled in by its own `defaults`, the client hasn't asked for; up to `clipped` tokens are cut.
    """
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    wanted = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    if wanted is None or context is None or wanted <= clipped:
        return
    if defaults is not None and wanted == defaults.max_completion_tokens:
        return
    for prompt in made:
        count = len(prompt.token_ids)
        if count + wanted <= context:
            continue
        text = (
            f"This model's maximum context length is {context} tokens. However, you requested {count + wanted} tokens "
            f"({count} in the {'messages' if isinstance(request, ChatRequest) else 'prompt'}, {wanted} in the "
            f"completion). Please reduce the length of the prompt, or {name}."
        )
        raise bad_request(text, name, CODE)
