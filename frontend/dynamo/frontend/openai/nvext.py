"""What clients may say in `nvext`, in NVIDIA Dynamo's words, checked with the rest of the body.

`requests.py` has it as a field of both requests; sampling fields of older clients (`request_options.IN_NVEXT`) are
moved to the top level and checked there. `routing/hints.py` reads what routing needs.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct

InstanceId: TypeAlias = Annotated[int, Meta(ge=1, le=2**53 - 1)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Rank: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MAX_NAME: Final = 512
Label: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME)]
Weight: TypeAlias = Annotated[float, Meta(ge=0, le=1e6)]
SessionId: TypeAlias = Annotated[str, Meta(pattern=r"^[\x21-\x7e][\x20-\x7e]{0,255}$")]


class SessionControl(Struct):
    """A session by its id; `close` makes this request its last. Its time to live is the frontend's."""

    session_id: SessionId
    action: Literal["open", "close"] | None = None
    timeout: float | None = None


class AgentHints(Struct):
    """Hints how urgent a request is, where requests wait; `osl` and `speculative_prefill` are accepted and not used."""

    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    strict_priority: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    osl: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    speculative_prefill: bool | None = None


class RouterConfigOverride(Struct, frozen=True, forbid_unknown_fields=True):
    """Weights of mode kv for this request; what isn't named is as the flags say."""

    overlap_score_credit: Weight | None = None
    prefill_load_scale: Weight | None = None
    overlap_score_weight: Weight | None = None
    """The older word for `prefill_load_scale`; 0 takes the credit for caches too."""
    router_temperature: Weight | None = None


Taints: TypeAlias = Annotated[list[Label], Meta(max_length=64)]


class RoutingConstraints(Struct):
    """Taints of workers, of which there are none here: those that are required find no worker."""

    required_taints: Taints | Annotated[dict[Label, Any], Meta(max_length=64)] | None = None
    preferred_taints: Taints | Annotated[dict[Label, Any], Meta(max_length=64)] | None = None


class Nvext(Struct):
    """The object `nvext`."""

    annotations: Annotated[list[Label], Meta(max_length=64)] | None = None
    """Events before a stream's first chunk. `query_instance_id:` asks where the request would go, and sends nothing."""
    token_data: Annotated[list[TokenId], Meta(max_length=1 << 17)] | None = None
    """The prompt's tokens, by who has made them already."""
    extra_fields: Annotated[list[Label], Meta(max_length=64)] | None = None
    """What the answer's `nvext` should say."""
    backend_instance_id: InstanceId | None = None
    decode_worker_id: InstanceId | None = None
    """The same."""
    prefill_worker_id: InstanceId | None = None
    """The prefill worker that is to compute the prompt, or the worker that is to do all."""
    dp_rank: Rank | None = None
    prefill_dp_rank: Rank | None = None
    agent_hints: AgentHints | None = None
    session_control: SessionControl | None = None
    router_config_override: RouterConfigOverride | None = None
    cache_salt: Label | None = None
    max_thinking_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """No engine is told, as in NVIDIA Dynamo 1.6.1: it is named with the fields that are ignored."""
    routing_constraints: RoutingConstraints | None = None
    greed_sampling: Any = None
    use_raw_prompt: Any = None
    # Sampling, in older clients' words: moved to the top level of the body, and checked there.
    ignore_eos: Any = None
    top_k: Any = None
    min_p: Any = None
    repetition_penalty: Any = None
    min_tokens: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
