"""`ModelRuntimeConfig`: what a program's engine says of itself, for the record of its instance.

Routers read the figures (`kv`, `least-loaded`, thresholds), frontends where two engines of a request meet. Of NVIDIA
Dynamo's other fields those are refused that would have frontends do what ours don't; the rest is kept in the record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from dynamo.runtime.errors import InvalidArgument

_REFUSED: Final = {
    "structural_tag": "answers are held to a schema only by tool_choice and requests' guided_* fields: leave it out",
    "kv_state_endpoint": "routers ask workers for snapshots over their own connection: leave it out",
    "kv_transfer_enforcement": "transfers are kept to no domain here: leave it out",
    "taints": "no router here reads them: leave them out, and give workers that aren't for everybody a namespace of "
    "their own",
    "data_parallel_start_rank": "ranks of an instance are numbered from 0: leave it out",
}
_FIGURES: Final = ("total_kv_blocks", "max_num_seqs", "max_num_batched_tokens", "bootstrap_host", "bootstrap_port")
_KEPT: Final = ("stable_routing_id", "runtime_data", "topology_domains", "kv_transfer_domain")


class ModelRuntimeConfig:
    """NVIDIA Dynamo's fields, all of them settable; None is "not said".

    `context_length`, `total_kv_blocks`, `max_num_seqs` and `max_num_batched_tokens` are of one data-parallel rank.
    `tool_call_parser` and `reasoning_parser` are names of docs/how-to/serve/tools.md: frontends parse the
    model's chats with them.
    """

    def __init__(self) -> None:
        self.context_length: int | None = None
        self.total_kv_blocks: int | None = None
        self.max_num_seqs: int | None = None
        self.max_num_batched_tokens: int | None = None
        self.data_parallel_size: int = 1
        self.data_parallel_start_rank: int = 0
        self.bootstrap_host: str | None = None
        self.bootstrap_port: int | None = None
        self.tool_call_parser: str | None = None
        self.reasoning_parser: str | None = None
        self.structural_tag: Any = None
        self.exclude_tools_when_tool_choice_none: bool = True
        self.tokenizer_backend: str | None = None
        self.enable_local_indexer: bool = True
        self.enable_eagle: bool = False
        self.kv_event_publishing_enabled: bool | None = None
        self.kv_event_source_mode: str | None = None
        self.kv_state_endpoint: Any = None
        self.kv_transfer_domain: str | None = None
        self.kv_transfer_enforcement: str | None = None
        self.kv_transfer_preferred_weight: float | None = None
        self.taints: Collection[str] = ()
        self.stable_routing_id: str | None = None
        self.topology_domains: Mapping[str, str] = {}
        self.runtime_data: dict[str, Any] = {}

    def set_engine_specific(self, key: str, value: Any) -> None:
        """Keep a value of the engine's own; `value` is plain data, or JSON text as NVIDIA Dynamo takes it."""
        self.runtime_data[key] = value

    def get_engine_specific(self, key: str) -> Any:
        """Return the value of `key`, or None."""
        return self.runtime_data.get(key)

    def set_disaggregated_endpoint(self, bootstrap_host: str | None = None, bootstrap_port: int | None = None) -> None:
        """Set where decode workers meet this prefill worker."""
        self.bootstrap_host, self.bootstrap_port = bootstrap_host, bootstrap_port

    def set_structural_tag(self, tag: Any) -> None:
        """Set what is refused when the model is registered."""
        self.structural_tag = tag

    def parsers(self) -> tuple[str | None, str | None]:
        """Return those for tool calls and for reasoning; `InvalidArgument` where there is none of that name."""
        for field in ("tool_call_parser", "reasoning_parser"):
            if not isinstance(name := getattr(self, field), str | None):
                raise InvalidArgument(f"runtime_config.{field} is {name!r}, not the name of a parser")
        if self.tool_call_parser or self.reasoning_parser:
            from dynamo.llm.parsers.parser_names import check_parsers  # their patterns are for those who name one

            check_parsers(self.tool_call_parser, self.reasoning_parser)
        return self.tool_call_parser or None, self.reasoning_parser or None

    def figures(self) -> dict[str, Any]:
        """Return what the instance's record gets; `InvalidArgument` names the first field that can't be."""
        for name, why in _REFUSED.items():
            if getattr(self, name):
                raise InvalidArgument(f"runtime_config.{name} = {getattr(self, name)!r}: {why}")
        figures = {name: getattr(self, name) for name in _FIGURES if getattr(self, name) is not None}
        for name, value in figures.items():
            if name != "bootstrap_host" and (type(value) is not int or value < 0):
                raise InvalidArgument(f"runtime_config.{name} must be a whole number, not {value!r}")
        if type(self.data_parallel_size) is not int or self.data_parallel_size < 1:
            raise InvalidArgument(f"runtime_config.data_parallel_size is {self.data_parallel_size!r}, not 1 or more")
        kept = {name: _plain(name, getattr(self, name)) for name in _KEPT if getattr(self, name)}
        return figures | {"data_parallel_size": self.data_parallel_size} | kept


def _plain(name: str, value: Any) -> Any:
    """Return a value as JSON can hold it: the record is that."""
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, msgspec.ValidationError) as error:
        raise InvalidArgument(f"runtime_config.{name} must be plain data: {error}") from error
