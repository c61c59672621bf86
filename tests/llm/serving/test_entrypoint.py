"""What `EntrypointArgs` become: fields of the frontend's settings."""

from __future__ import annotations

import pytest

from dynamo.frontend.embedded import settings_of
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.llm import EngineType, EntrypointArgs, KvRouterConfig, RouterConfig, RouterMode
from dynamo.llm.serving import entrypoint as module
from dynamo.runtime.errors import InvalidArgument


def test_a_nought_is_a_value() -> None:
    """Port 0 is a free one, and weights of 0 switch off: only what was not given is left to the settings."""
    router = RouterConfig(RouterMode.KV, KvRouterConfig(overlap_score_weight=0.0, router_temperature=0.0))
    options = module._of_frontend(EntrypointArgs(EngineType.Dynamic, http_port=0, router_config=router))
    assert options["http_port"] == 0
    weighing = ("router_mode", "router_prefill_load_scale", "router_temperature")
    assert [options[name] for name in weighing] == ["kv", 0.0, 0.0]
    assert all(options[name] is None for name in ("http_host", "namespace", "migration_limit"))
    assert options["active_decode_blocks_threshold"] is None


def test_all_of_a_kv_router_config_reaches_the_frontend(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given goes before the frontend's variables; what is not given is left to them."""
    monkeypatch.setenv("DYN_ROUTER_TEMPERATURE", "0.25")
    config = KvRouterConfig(
        overlap_score_credit=0.5, overlap_score_credit_decay=0.1, prefill_load_scale=3.0,
        decode_active_request_weight=4.0, use_kv_events=False, router_replica_sync=True, router_ttl_secs=30.0,
    )  # fmt: skip
    for given in (config, config.copy(), config.with_overrides(prefill_load_scale=3.0)):
        kv = settings_of(module._of_router(RouterConfig(RouterMode.KV, given))).kv
        assert kv == KvOptions(
            overlap_score_credit=0.5, overlap_score_credit_decay=0.1, overlap_score_weight=3.0,
            decode_request_weight=4.0, follow_events=False, replica_sync=True, predict_seconds=30.0, temperature=0.25,
        )  # fmt: skip
    assert settings_of(module._of_router(RouterConfig(config=KvRouterConfig()))).kv == KvOptions(temperature=0.25)
    assert settings_of(module._of_router(RouterConfig(config=KvRouterConfig(0)))).kv.weights().overlap_credit == 0.0


@pytest.mark.parametrize(
    "name", ["router_track_active_blocks", "router_assume_kv_reuse", "router_track_prefill_tokens"]
)
def test_what_a_frontend_can_not_leave_out_is_refused(name: str) -> None:
    """It counts the blocks and tokens of every request; True, the default, is what it does."""
    assert KvRouterConfig(**{name: True}).frontend_options() == {}
    with pytest.raises(InvalidArgument, match=rf"KvRouterConfig\({name}=False\): a frontend has no such option"):
        KvRouterConfig(**{name: False}).frontend_options()
