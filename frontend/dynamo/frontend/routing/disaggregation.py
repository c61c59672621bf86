"""Whether a prompt goes to a prefill worker, and what to do when that one failed. Pure.

The rules are NVIDIA Dynamo's conditional disaggregation (its names, since 1.5) and the `max_local_prefill_length` of
its first releases. What a request's prompt costs is its *effective* length: without what the decode worker has cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from dynamo.runtime.errors import DynamoException, NoInstances
from dynamo.runtime.process.settings import setting

MOST_TRIES: Final = 2
"""Prefill workers that one attempt of a request is sent to, one after the other."""
MOST_PARTS: Final = 2
"""Attempts of a request that begin at a prefill worker and bring no token, one after the other."""
FLAG: Final = "--router-conditional-disagg-config"
_BY_LENGTH: Final = ("isl_bounding", "isl_or_load")
_BY_LOAD: Final = ("prefill_load", "isl_or_load")
_NEEDS_LOAD: Final = (
    f"{FLAG}: policy '{{}}' looks at how busy prefill workers are: set prefill_busy_threshold there, or "
    "--router-queue-threshold"
)


class ConditionalDisagg(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object of `--router-conditional-disagg-config`; defaults are NVIDIA Dynamo's."""

    policy: Literal["isl_bounding", "prefill_load", "isl_or_load"] = "isl_bounding"
    eff_isl_threshold: Annotated[int, Meta(ge=0)] = 2048
    """Tokens; a decode worker computes prompts whose effective length is below it, and..."""
    eff_isl_ratio_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.7
    """...below this share of the whole."""
    prefill_busy_threshold: Annotated[float, Meta(ge=0)] | None = None
    """In batches of the engine (`max_num_batched_tokens`): with more to compute, a prefill worker is busy."""
    decode_busy_threshold: Annotated[float, Meta(ge=0)] | None = None
    """Share of its KV blocks in use above which a decode worker computes no prompts by these rules; None: never."""


@dataclass(frozen=True)
class DisaggSettings:
    """Which prompts decode workers compute although there are prefill workers."""

    conditional: bool = setting(
        False, "Let decode workers compute prompts that they have mostly cached, or that prefill workers are too busy "
        "for (kv router with events).", env="DYN_ROUTER_CONDITIONAL_DISAGG", name="router_conditional_disagg",
    )  # fmt: skip
    config: str = setting(
        "", "Which prompts: a JSON object with policy (isl_bounding, prefill_load, isl_or_load), eff_isl_threshold, "
        "eff_isl_ratio_threshold, prefill_busy_threshold, decode_busy_threshold.",
        env="DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG", name="router_conditional_disagg_config",
    )  # fmt: skip
    max_local_prefill_length: int | None = setting(
        None, "Decode workers compute prompts of at most that many tokens (less those known to be cached), also where "
        "there are prefill workers.", env="DYN_MAX_LOCAL_PREFILL_LENGTH",
    )  # fmt: skip


class Rules(msgspec.Struct, frozen=True):
    """Rules that a frontend's settings mean."""

    conditional: ConditionalDisagg | None = None
    max_local_prefill_length: int | None = None
    """Tokens; a decode worker computes prompts whose effective length is at most that."""

    @property
    def any(self) -> bool:
        """Tell whether some prompts may stay."""
        return self.conditional is not None or self.max_local_prefill_length is not None

    @property
    def looks_at_prefill(self) -> bool:
        """Tell whether they need the load of the prefill worker."""
        return self.conditional is not None and self.conditional.policy in _BY_LOAD


class Situation(NamedTuple):
    """One request, and the two workers that it would go to."""

    tokens: int
    """Of its prompt."""
    cached: int = 0
    """Of these, probably at the decode worker."""
    prefill_batches: float | None = None
    """What the prefill worker has to compute, in batches of its engine; None: unknown."""
    decode_usage: float | None = None
    """Share of the decode worker's KV blocks in use; None: unknown."""


def rules(settings: DisaggSettings, queue_threshold: float | None) -> Rules:
    """Read the settings; raises `ValueError` with one sentence where they can't be meant."""
    longest = settings.max_local_prefill_length
    try:
        conditional = msgspec.json.decode(settings.config or "{}", type=ConditionalDisagg)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{FLAG} can't be read: {error}") from error
    if longest is not None and longest < 0:
        raise ValueError("--max-local-prefill-length must be 0 or more")
    if not settings.conditional:
        if settings.config:
            raise ValueError(f"{FLAG} has no effect without --router-conditional-disagg: add it")
        return Rules(max_local_prefill_length=longest)
    if conditional.policy in _BY_LOAD and conditional.prefill_busy_threshold is None:
        if queue_threshold is None:
            raise ValueError(_NEEDS_LOAD.format(conditional.policy))
        conditional = msgspec.structs.replace(conditional, prefill_busy_threshold=queue_threshold)
    return Rules(conditional, longest)


def stays(rules: Rules, situation: Situation) -> str:
    """Say why the decode worker should compute the prompt: `short`, `cached` or `busy`.

    Empty: a prefill worker should.
    """
    effective = max(0, situation.tokens - situation.cached)
    if rules.max_local_prefill_length is not None and effective <= rules.max_local_prefill_length:
        return "short"
    conditional = rules.conditional
    if conditional is None or not _decode_may(conditional, situation.decode_usage):
        return ""
    if conditional.policy in _BY_LENGTH and _mostly_cached(conditional, effective, situation.tokens):
        return "cached"
    if conditional.policy in _BY_LOAD and _prefill_is_busy(conditional, situation.prefill_batches):
        return "busy"
    return ""


def tries_another(error: DynamoException | None, tries: int, left: float | None) -> bool:
    """Tell whether another prefill worker should compute it, after `tries` of them have failed.

    None: it handed nothing out.

    One that is gone or full says nothing about the next one. An engine's own error would come again, and by then
    the decode worker can be as far. `left`: seconds until the request's time limit.
    """
    if error is None or not error.retryable or isinstance(error, NoInstances):
        return False
    return tries < MOST_TRIES and (left is None or left > 0)


def _decode_may(conditional: ConditionalDisagg, usage: float | None) -> bool:
    """Tell whether the decode worker may compute it; what isn't known counts as busy, as in NVIDIA Dynamo."""
    limit = conditional.decode_busy_threshold
    return limit is None or (usage is not None and usage <= limit)


def _mostly_cached(conditional: ConditionalDisagg, effective: int, tokens: int) -> bool:
    below = effective < conditional.eff_isl_threshold
    return below and effective / max(1, tokens) < conditional.eff_isl_ratio_threshold


def _prefill_is_busy(conditional: ConditionalDisagg, batches: float | None) -> bool:
    limit = conditional.prefill_busy_threshold
    return limit is not None and batches is not None and batches > limit
