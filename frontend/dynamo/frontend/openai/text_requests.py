"""A client's body for an engine that takes text: passed on as it came, once per prompt and choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dynamo.frontend.errors import ApiError
from dynamo.frontend.openai.constraints import forced_by
from dynamo.frontend.openai.request_structs import ChatRequest, CompletionRequest
from dynamo.frontend.openai.requests import check_forwarded, per_prompt, prompts
from dynamo.llm.processing.image_prompts import without_urls
from dynamo.llm.protocols import ImageInput, TextRequest


class ForwardedBodies(NamedTuple):
    """A request's bodies, and how many prompts they are of."""

    requests: list[TextRequest]
    prompts: int
    echo: list[str]
    """Per request, the text before its answer; empty where none is asked for."""


def text_requests(
    request: ChatRequest | CompletionRequest, body: dict[str, Any], kind: str, images: Sequence[ImageInput]
) -> ForwardedBodies:
    """Make the requests of `kind`, prompt by prompt; `ApiError` for what such an engine can't do."""
    if request.logprobs:
        text = "logprobs: this model's engine takes text and gives no log probabilities."
        raise ApiError(400, text, code="unsupported_parameter", param="logprobs")
    answers, echo = per_prompt(request), list[str]()
    if isinstance(request, ChatRequest):
        bodies = [_chat_body(request, body, images)]
    else:
        texts = _texts(request)
        bodies = [{**body, "prompt": prompt} for prompt in texts]
        echo = [prompt for prompt in texts for _ in range(answers)] if request.echo else []
    check_forwarded(bodies[0] if isinstance(request, ChatRequest) else body, len(bodies), answers, images)
    shown = list(images) or None
    made = [
        TextRequest(model=request.model, kind=kind, body={**own, "n": 1, **_seed(request.seed, index)}, images=shown)
        for own in bodies
        for index in range(answers)
    ]
    return ForwardedBodies(made, len(bodies), echo)


def _chat_body(request: ChatRequest, body: dict[str, Any], images: Sequence[ImageInput]) -> dict[str, Any]:
    if forced_by(request.tool_choice) is not None:
        text = "tool_choice: this model's engine takes text and can't be made to call a tool; use auto."
        raise ApiError(400, text, code="unsupported_value", param="tool_choice")
    return {**body, "messages": without_urls(body["messages"])} if images else body


def _texts(request: CompletionRequest) -> list[str]:
    """Return a completion's prompts."""
    if request.max_tokens == 0:
        text = "max_tokens: this model's engine takes text and can't score a prompt; ask for 1."
        raise ApiError(400, text, code="unsupported_value", param="max_tokens")
    given = prompts(request.prompt)
    texts = [prompt for prompt in given if isinstance(prompt, str)]
    if len(texts) < len(given):
        text = "prompt: this model's engine takes text, not token ids."
        raise ApiError(400, text, code="unsupported_value", param="prompt")
    return texts


def _seed(seed: int | None, choice: int) -> dict[str, int]:
    """Return the seed of one choice: were it the same for all, they would be alike."""
    return {} if seed is None else {"seed": seed + choice}
