"""`KvRouterConfig`: NVIDIA Dynamo's keywords (ai-dynamo 1.6.1, and older versions'), and what they are here."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from dynamo.llm.kv.cost import Weights
from dynamo.runtime.errors import InvalidArgument

_MEANT: Final[dict[str, Any]] = {
    "overlap_score_weight": None, "router_temperature": 0.0, "use_kv_events": True, "overlap_score_credit": 1.0,
    "overlap_score_credit_decay": 0.0, "prefill_load_scale": 1.0, "decode_active_request_weight": 0.0,
    "router_replica_sync": False, "router_track_active_blocks": True, "router_assume_kv_reuse": True,
    "router_track_prefill_tokens": True, "router_ttl_secs": 120.0,
}  # fmt: skip
_NO_EFFECT: Final[dict[str, Any]] = {
    "host_cache_hit_weight": 0.75, "disk_cache_hit_weight": 0.25, "router_event_threads": 4,
    "router_snapshot_threshold": 1_000_000, "router_reset_states": False,
    "router_max_tree_size": 1 << 20, "router_prune_target_ratio": 0.8,
}  # fmt: skip
"""Taken with any value: one tier, one thread, nothing stored on the way, an index that the workers' caches bound."""
_DEFAULT_ONLY: Final[dict[str, Any]] = {
    "router_track_output_blocks": False, "router_prefill_load_model": "none", "router_approximate_cache_policy": "ttl",
    "router_queue_threshold": None, "router_queue_policy": "fcfs", "use_remote_indexer": False, "serve_indexer": False,
    "enable_session_prefix_index": False, "shared_cache_multiplier": None, "shared_cache_type": "none",
    "router_predicted_ttl_secs": None, "conditional_disagg_enabled": False,
    "conditional_disagg_policy": "isl_bounding", "conditional_disagg_eff_isl_threshold": 2048,
    "conditional_disagg_eff_isl_ratio_threshold": 0.7, "conditional_disagg_prefill_busy_threshold": None,
    "conditional_disagg_decode_busy_threshold": None, "router_policy_config": None, "router_prefill_policy": None,
    "router_decode_policy": None, "router_tracking_hash": "public-xxh3-v1", "router_tracking_key_file": None,
    "router_tracking_key_id": None,
}  # fmt: skip
"""What they would turn on is not here."""
_POSITIONAL: Final = (
    "overlap_score_weight", "host_cache_hit_weight", "disk_cache_hit_weight", "router_temperature", "use_kv_events",
)  # fmt: skip
_COST: Final = (
    "overlap_score_credit", "overlap_score_credit_decay", "prefill_load_scale", "decode_active_request_weight",
    "router_temperature",
)  # fmt: skip

_OF_A_REQUEST: Final = {
    "assume_kv_reuse": "router_assume_kv_reuse", "track_prefill_tokens": "router_track_prefill_tokens",
}  # fmt: skip
"""Words of a request's `router_config_override` that are shorter than the configuration's."""
_OPTIONS: Final = {
    "prefill_load_scale": "router_prefill_load_scale", "overlap_score_credit": "router_kv_overlap_score_credit",
    "overlap_score_credit_decay": "router_kv_overlap_score_credit_decay",
    "decode_active_request_weight": "router_decode_active_request_weight", "router_temperature": "router_temperature",
    "use_kv_events": "use_kv_events", "router_replica_sync": "router_replica_sync",
    "router_ttl_secs": "router_ttl_secs",
}  # fmt: skip
"""What a frontend calls the keywords that it has; it always does what the other ones turn off."""


class KvRouterConfig:
    """Configuration of how a `KvRouter` chooses. Defaults are NVIDIA Dynamo's; every keyword is an attribute.

    Raises `ValueError` for a keyword that nobody knows, for a value that can't be, and for one that asks for what is
    not here yet.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if len(args) > len(_POSITIONAL):
            raise ValueError(f"KvRouterConfig has {len(_POSITIONAL)} positional arguments, not {len(args)}")
        given = dict(zip(_POSITIONAL, args, strict=False)) | kwargs
        self._values = {**_MEANT, **_NO_EFFECT, **_DEFAULT_ONLY}
        self._given = set(given)
        for name, value in given.items():
            self._set(name, value)
        weight = self._values["overlap_score_weight"]
        if weight is not None:  # the older word weighs prefill; 0 takes the credit for caches away too
            self._values["prefill_load_scale"] = weight
            self._given.add("prefill_load_scale")
            if not weight:
                self._values["overlap_score_credit"] = 0.0
                self._given.add("overlap_score_credit")

    @staticmethod
    def from_json(config_json: str) -> KvRouterConfig:
        """Read an object with the same keywords."""
        try:
            return KvRouterConfig(**msgspec.json.decode(config_json, type=dict[str, Any]))
        except msgspec.MsgspecError as error:
            raise ValueError(f"a KvRouterConfig in JSON is an object: {error}") from error

    def copy(self) -> KvRouterConfig:
        return self.with_overrides()

    def with_overrides(self, overlap_score_weight: Any = None, **kwargs: Any) -> KvRouterConfig:
        """Return a copy with what one request may choose for itself: terms of the cost, what is tracked.

        None keeps a term.
        """
        changes = {"overlap_score_weight": overlap_score_weight}
        changes |= {_OF_A_REQUEST.get(name, name): value for name, value in kwargs.items()}
        if unknown := set(changes) - {*_COST, *_OF_A_REQUEST.values(), "overlap_score_weight"}:
            raise ValueError(f"there is no {sorted(map(str, unknown))[0]} among what a request may override")
        kept = {name: self._values[name] for name in self._given if name != "overlap_score_weight"}
        return KvRouterConfig(**kept | {name: value for name, value in changes.items() if value is not None})

    def weights(self) -> Weights:
        """Return the terms of the cost."""
        return Weights(
            overlap_credit=self.overlap_score_credit,
            overlap_credit_decay=self.overlap_score_credit_decay,
            prefill_load_scale=self.prefill_load_scale,
            decode_request_weight=self.decode_active_request_weight,
        )

    def frontend_options(self) -> dict[str, Any]:
        """Return what was given as options of a frontend, whose own defaults count for the rest.

        Raises `InvalidArgument` for what only a `KvRouter` can leave out.
        """
        for name in _MEANT.keys() - _OPTIONS.keys() - {"overlap_score_weight"}:
            if self._values[name] != _MEANT[name]:
                raise InvalidArgument(f"KvRouterConfig({name}={self._values[name]!r}): a frontend has no such option")
        return {option: self._values[name] for name, option in _OPTIONS.items() if name in self._given}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._values:
            return self._values[name]
        raise AttributeError(f"KvRouterConfig has no {name}")

    def __repr__(self) -> str:
        return f"KvRouterConfig({', '.join(f'{n}={v!r}' for n, v in self._values.items() if n in _MEANT)})"

    def _set(self, name: str, value: Any) -> None:
        if name in _DEFAULT_ONLY:
            if value != _DEFAULT_ONLY[name]:
                raise ValueError(f"KvRouterConfig {name}={value!r} is not supported, only {_DEFAULT_ONLY[name]!r}")
        elif name in _MEANT:
            self._values[name] = _checked(name, value)
        elif name in _NO_EFFECT:
            self._values[name] = value
        else:
            raise ValueError(f"KvRouterConfig has no {name}")


def _checked(name: str, value: Any) -> Any:
    default = _MEANT[name]
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"KvRouterConfig {name} is True or False, not {value!r}")
        return value
    if value is None and default is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"KvRouterConfig {name} is a number that is not negative, not {value!r}")
    return float(value)
