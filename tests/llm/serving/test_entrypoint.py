"""What `EntrypointArgs` become: fields of the frontend's settings."""

from __future__ import annotations

from dynamo.llm import EngineType, EntrypointArgs, KvRouterConfig, RouterConfig, RouterMode
from dynamo.llm.serving import entrypoint as module


def test_a_nought_is_a_value() -> None:
    """Port 0 is a free one, and weights of 0 switch off: only what was not given is left to the settings."""
    router = RouterConfig(RouterMode.KV, KvRouterConfig(overlap_score_weight=0.0, router_temperature=0.0))
    found = module._of_frontend(EntrypointArgs(EngineType.Dynamic, http_port=0, router_config=router))
    assert found["http_port"] == 0
    assert (found["router_mode"], found["router_prefill_load_scale"], found["router_temperature"]) == ("kv", 0.0, 0.0)
    assert not {"http_host", "namespace", "migration_limit", "active_decode_blocks_threshold"} & set(found)
