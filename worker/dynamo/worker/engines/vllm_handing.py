"""Prompts from one vLLM to another (`--role prefill`, `--role decode`): what each is told, and what goes between. Pure.

vLLM's connector (NIXL unless the engine arguments name another) moves the blocks. We carry its words: a prefill worker
answers with where its blocks are, the frontend hands that to the decode worker with the request, and blocks that nobody
fetches are free again after the connector's own time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dynamo.llm.protocols import DISAGGREGATED_PARAMS, PreprocessedRequest
from dynamo.runtime.errors import InvalidArgument

CONFIG: Final = "kv_transfer_config"
_PARAMS: Final = "kv_transfer_params"
_FITTING: Final = {
    "aggregated": ("kv_both",),
    "prefill": ("kv_both", "kv_producer"),
    "decode": ("kv_both", "kv_consumer"),
}
_NIXL: Final = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
"""A decode worker that can't fetch a prompt computes it."""


def transfer_config(role: str, given: Any) -> Any:
    """vLLM's `kv_transfer_config` for a role, given the user's; `InvalidArgument` where they don't fit."""
    if given is None:
        return None if role == "aggregated" else dict(_NIXL)
    theirs = given.get("kv_role") if isinstance(given, Mapping) else None
    if theirs is not None and theirs not in _FITTING[role]:
        raise InvalidArgument(
            f"vLLM argument {CONFIG!r} with kv_role {theirs!r} does not fit --role {role}, which takes"
            f" {' or '.join(_FITTING[role])}"
        )
    return given


def needs_nixl(role: str, given: Mapping[str, Any]) -> bool:
    """Whether the role's own connector is meant, given the engine arguments by vLLM's names."""
    return role != "aggregated" and given.get(CONFIG) is None


def asked(role: str, request: PreprocessedRequest) -> dict[str, Any] | None:
    """The extra arguments of a request's sampling parameters; None: its prompt is nobody else's affair."""
    if role == "prefill":
        return {_PARAMS: {"do_remote_decode": True, "do_remote_prefill": False}}
    if role == "decode" and request.prefill_result is not None:
        found = request.prefill_result.disaggregated_params.get(_PARAMS)
        if not isinstance(found, dict):
            raise InvalidArgument(f"the prefill worker's answer has no {_PARAMS}: is it vLLM, too?")
        return {_PARAMS: found}
    return None


def handed_over(told: Mapping[str, Any] | None) -> dict[str, Any]:
    """Our extras of what vLLM says at a request's end; empty where nothing is kept for anybody."""
    if not told or not told.get("do_remote_prefill"):
        return {}
    return {DISAGGREGATED_PARAMS: {_PARAMS: dict(told)}}
