"""What `EntrypointArgs` become: fields of the frontend's settings."""

from __future__ import annotations

from dynamo.llm import EngineType, EntrypointArgs, KvRouterConfig, RouterConfig, RouterMode
from dynamo.llm.serving import entrypoint as module


def test_a_nought_is_a_value() -> None:
    """Port 0 is a free one, and weights of 0 switch off: only what was not given is left to the settings."""
    router = RouterConfig(RouterMode.KV, KvRouterConfig(overlap_score_weight=0.0, router_temperature=0.0))
    options = module._of_frontend(EntrypointArgs(EngineType.Dynamic, http_port=0, router_config=router))
    assert options["http_port"] == 0
    weighing = ("router_mode", "router_prefill_load_scale", "router_temperature")
    assert [options[name] for name in weighing] == ["kv", 0.0, 0.0]
    assert all(options[name] is None for name in ("http_host", "namespace", "migration_limit"))
    assert options["active_decode_blocks_threshold"] is None
