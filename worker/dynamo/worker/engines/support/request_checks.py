"""What a request says of its tokens, as engines without a name for it need it, and whether there is room. Pure."""

from __future__ import annotations

from typing import Final

from dynamo.engine_catalog import EngineTraits
from dynamo.llm.model_card import ImageTraits
from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.llm.protocols import EOS, STOP, PreprocessedRequest
from dynamo.runtime.errors import CapacityExceeded, InvalidArgument

UNKNOWN_LOGPROB: Final = -9999.0
"""OpenAI's value for a log probability that is not known."""

_HIGHEST_ID: Final = 2**31 - 1


MOST_OPEN: Final = 4096
"""Requests at once, for engines whose own queue has no bound."""


def check_open(here: int, most: int | None = None) -> None:
    """Raise `CapacityExceeded` where so many requests are here already; another worker may have room."""
    if here >= (MOST_OPEN if most is None else most):
        raise CapacityExceeded(f"Engine queue is full ({here} requests). Retry later.")


def stop_reasons(request: PreprocessedRequest) -> dict[int, str]:
    """Return the token ids that end the stream, with the reason each one gives."""
    conditions = request.stop_conditions
    ends = {} if conditions.ignore_eos else dict.fromkeys(request.eos_token_ids, EOS)
    return ends | dict.fromkeys(conditions.stop_token_ids, STOP)


def logit_bias(request: PreprocessedRequest) -> dict[int, float]:
    """Return `logit_bias` by token id; `InvalidArgument` for a key that is none."""
    biases = {}
    for text, bias in (request.sampling_options.logit_bias or {}).items():
        try:
            biases[int(text)] = bias
        except ValueError as error:
            raise InvalidArgument(f"logit_bias is keyed by token ids, got {text!r}") from error
    return biases


def room_for(request: PreprocessedRequest, context: int) -> int:
    """Count the tokens that the context leaves for the answer; `InvalidArgument` where it leaves none."""
    count = request.prompt_tokens
    if not 0 < count < context:
        raise InvalidArgument(f"a prompt of {count} tokens: this engine takes 1 to {context - 1}")
    return context - count


def check_images(request: PreprocessedRequest, engine: str, traits: ImageTraits | None) -> None:
    """Raise `InvalidArgument` for images where the engine takes none, or not where the prompt says."""
    if not request.images:
        return
    if traits is None:
        raise InvalidArgument(f"images: the engine {engine} takes none with this model")
    if any(image.at >= len(request.token_ids) for image in request.images):
        raise InvalidArgument("images: one stands where the prompt has no token")


def check_traits(request: PreprocessedRequest, engine: str, traits: EngineTraits) -> None:
    """Raise `InvalidArgument` for what an engine would have to know how to do, and doesn't."""
    if request.routing is not None and request.routing.cache_salt and not traits.cache_salt:
        text = f"cache_salt: the engine {engine} can't keep the prompt's cache apart from others'; leave it out"
        raise InvalidArgument(text)
    if request.sampling_options.bad_words and not traits.bad_words:
        word = request.sampling_options.bad_words[0]
        raise InvalidArgument(f"bad_words: {word!r} is several tokens, and the engine {engine} takes words of one")


def refuse_prompt_scores(request: PreprocessedRequest, engine: str) -> None:
    """Raise `InvalidArgument` for log probabilities of the prompt, from an engine that has none."""
    if request.output_options.prompt_logprobs is not None:
        text = f"prompt_logprobs (so echo with logprobs, too): engine {engine} gives no log probabilities of prompts"
        raise InvalidArgument(text)


def check_inputs(request: EmbeddingRequest, context: int | None, vocabulary: int = _HIGHEST_ID + 1) -> None:
    """Raise `InvalidArgument` for a request without inputs, or with one that context or vocabulary don't hold."""
    if not request.token_ids:
        raise InvalidArgument("token_ids is empty: there is no input")
    longest, shortest = max(map(len, request.token_ids)), min(map(len, request.token_ids))
    if shortest == 0 or (context is not None and longest > context):
        wrong = shortest if shortest == 0 else longest
        raise InvalidArgument(f"an input of {wrong} tokens: this engine takes 1 to {context or 'any number'}")
    for ids in request.token_ids:
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise InvalidArgument(f"token_ids has {min(ids) if min(ids) < 0 else max(ids)}, which is no token id")


def check_ids(request: PreprocessedRequest, vocabulary: int | None) -> None:
    """Raise `InvalidArgument` for a token that a vocabulary of that size doesn't have: engines that don't look read
    beside their tables, or die. None: its size isn't known."""
    ids = request.token_ids
    if ids and (min(ids) < 0 or (vocabulary is not None and max(ids) >= vocabulary)):
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise InvalidArgument(f"token_ids has {wrong}, which is no token id of this model")


def left(request: PreprocessedRequest, room: int) -> int:
    """Return how many tokens may be made where the context leaves `room`."""
    wanted = request.stop_conditions.max_tokens
    return room if wanted is None else min(wanted, room)
