"""What a prefill engine hands to a decode engine, and how long that takes. Pure; time is an argument.

The original's formula: the whole prompt's KV over the link's bandwidth. Its dict has the names of vLLM's connector
where those mean something here; `transfer_ms` is ours, so that the decode side needs to know of neither model nor link.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from dynamo.runtime.errors import InvalidArgument

T = TypeVar("T")
PARAMS: Final = "kv_transfer_params"
"""The key of a hand-over in a request's and an answer's `disaggregated_params`."""
AUTO: Final = "auto"
DTYPES: Final = {
    "bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1, "fp8_ds_mla": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1,
}  # fmt: skip
"""Bytes of one number."""


class Link(NamedTuple):
    """How KV travels from prefill to decode."""

    kv_transfer_bandwidth: float = 64.0
    """GB (10^9 bytes) a second; 0: it takes no time."""
    kv_bytes_per_token: int | None = None
    """None: as the model's configuration says."""
    kv_cache_dtype: str = AUTO

    def milliseconds(self, tokens: int, bytes_per_token: int) -> float:
        """For the KV of a prompt, before any speedup."""
        if not self.kv_transfer_bandwidth:
            return 0.0
        return tokens * bytes_per_token / (self.kv_transfer_bandwidth * 1e6)


def bytes_per_token(config: Mapping[str, Any], dtype: str = AUTO) -> int | None:
    """What one token's KV takes, by a model's `config.json`; None where that doesn't say."""
    config = config.get("text_config") or config
    heads = config.get("num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    size = config.get("head_dim")
    if size is None and heads and config.get("hidden_size"):
        size = config["hidden_size"] // heads
    own = config.get("torch_dtype") or config.get("dtype")
    number = DTYPES.get(str(own) if dtype == AUTO else dtype)
    found = 2
    for factor in (config.get("num_hidden_layers"), kv_heads, size, number):
        if type(factor) is not int or factor <= 0:
            return None
        found *= factor
    return found


class Handover(msgspec.Struct, kw_only=True):
    """One prompt's KV, kept for whoever comes for it."""

    remote_engine_id: str
    """The instance that has it: `namespace.component.endpoint/id`, its id in hexadecimal."""
    remote_request_id: str
    """Under which it is kept there."""
    remote_dp_rank: int = 0
    num_tokens: int
    cached_tokens: int = 0
    """Of the prompt, in the prefill engine's cache before."""
    transfer_ms: float = 0.0


def given(params: Any) -> Handover:
    """Read `disaggregated_params`; raises `InvalidArgument` naming what is wrong."""
    inner = params.get(PARAMS) if isinstance(params, Mapping) else None
    try:
        found = msgspec.convert(inner, Handover)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"prefill_result.disaggregated_params.{PARAMS}: {error}") from error
    if not 0.0 <= found.transfer_ms < 1e9:
        raise InvalidArgument(f"{PARAMS}.transfer_ms: {found.transfer_ms:g} ms is no time to wait")
    return found


class Kept(Generic[T]):
    """What a prefill engine keeps, each until it is taken or its time is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = 0
        self._things: dict[str, tuple[float, T]] = {}
        """In the order in which they end."""

    def __len__(self) -> int:
        return len(self._things)

    @property
    def deadline(self) -> float | None:
        """When the next one's time is over."""
        return next((until for until, _ in self._things.values()), None)

    def keep(self, thing: T, now: float) -> str:
        """Its handle."""
        self._last += 1
        handle = f"{self._last:x}"
        self._things[handle] = (now + self._seconds, thing)
        return handle

    def take(self, handle: str) -> T | None:
        """It is not kept any more; None where it wasn't."""
        found = self._things.pop(handle, None)
        return None if found is None else found[1]

    def expired(self, now: float) -> list[T]:
        """Those whose time is over; they are not kept any more."""
        found = []
        while self._things:
            handle, (until, thing) = next(iter(self._things.items()))
            if until > now:
                break
            del self._things[handle]
            found.append(thing)
        return found
