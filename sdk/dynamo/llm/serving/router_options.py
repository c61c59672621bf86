"""`RouterMode` and `RouterConfig`: how requests for a model find their worker, in NVIDIA Dynamo's words."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

from dynamo.llm.kv_router.config import KvRouterConfig
from dynamo.runtime.errors import InvalidArgument

_INSTEAD: Final = {
    "Direct": "name the worker in each request instead: by the header x-worker-instance-id, or in nvext",
    "DeviceAwareWeighted": "workers of one model are alike here: LeastLoaded follows what each does",
}


class RouterMode(enum.Enum):
    """NVIDIA Dynamo's names; `value` is the word that `--router-mode` takes."""

    RoundRobin = "round-robin"
    Random = "random"
    PowerOfTwoChoices = "power-of-two"
    KV = "kv"
    LeastLoaded = "least-loaded"
    Direct = "direct"
    """Refused where a model is registered with it."""
    DeviceAwareWeighted = "device-aware-weighted"
    """Refused likewise."""

    def __str__(self) -> str:
        """Return the word, which `endpoint.client(router_mode=…)` reads."""
        return self.value


class RouterConfig:
    """The mode of one model, or of a frontend (`EntrypointArgs`). `enforce_disagg` has no effect, as in NVIDIA Dynamo.

    Thresholds and sessions are flags of the frontend here (`--active-decode-blocks-threshold`,
    `--router-session-affinity-ttl-secs`): `EntrypointArgs` sets them, with `register_model` they are refused.
    """

    def __init__(
        self,
        mode: RouterMode | None = None,
        config: KvRouterConfig | None = None,
        active_decode_blocks_threshold: float | None = None,
        active_prefill_tokens_threshold: int | None = None,
        active_prefill_tokens_threshold_frac: float | None = None,
        enforce_disagg: bool = False,
        session_affinity_ttl_secs: int | None = None,
        session_affinity_mode: str = "hard",
    ) -> None:
        self.router_mode = mode or RouterMode.RoundRobin
        self.kv_router_config = config
        self.active_decode_blocks_threshold = active_decode_blocks_threshold
        self.active_prefill_tokens_threshold = active_prefill_tokens_threshold
        self.active_prefill_tokens_threshold_frac = active_prefill_tokens_threshold_frac
        self.session_affinity_ttl_secs = session_affinity_ttl_secs
        self.session_affinity_mode = session_affinity_mode

    def of_frontend(self) -> list[str]:
        """Return names of what is set here beside the mode."""
        names = (
            "kv_router_config", "active_decode_blocks_threshold", "active_prefill_tokens_threshold",
            "active_prefill_tokens_threshold_frac", "session_affinity_ttl_secs",
        )  # fmt: skip
        return [name for name in names if getattr(self, name) is not None]


class RoutedEngine(Protocol):
    """Engine that answers requests after choosing a worker for each, for type hints of programs; a `KvRouter` does."""

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield the pieces of the answer."""


def mode_word(mode: RouterMode | str | enum.Enum) -> str:
    """Return the word of a mode, also of `dynamo.runtime.RouterMode` or of a text.

    `InvalidArgument` where there is none.
    """
    if isinstance(mode, RouterMode) and mode.name in _INSTEAD:
        raise InvalidArgument(f"RouterMode.{mode.name}: {_INSTEAD[mode.name]}")
    words = {known.value for known in RouterMode if known.name not in _INSTEAD}
    word = str(mode.value if isinstance(mode, enum.Enum) else mode).replace("_", "-").lower()
    if word not in words:
        raise InvalidArgument(f"router mode {mode!r} is none of {', '.join(sorted(words))}")
    return word
