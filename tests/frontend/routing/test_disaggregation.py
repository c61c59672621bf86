"""Which prompts go to prefill workers, and what follows a failure: the decisions alone."""

from __future__ import annotations

import pytest

from dynamo.frontend.routing.disaggregation import (
    ConditionalDisagg,
    DisaggSettings,
    Rules,
    Situation,
    rules,
    stays,
    tries_another,
)
from dynamo.frontend.settings import FrontendSettings, problem
from dynamo.runtime.errors import (
    CapacityExceeded,
    Disconnected,
    DynamoException,
    EngineError,
    InvalidArgument,
    NoInstances,
)
from dynamo.runtime.process.settings import build

ISL, LOAD = ConditionalDisagg(), ConditionalDisagg("prefill_load", prefill_busy_threshold=1.5)
EITHER = ConditionalDisagg("isl_or_load", prefill_busy_threshold=1.5)
GUARDED = ConditionalDisagg(decode_busy_threshold=0.8)


@pytest.mark.parametrize(
    ("policy", "situation", "reason"),
    [
        (Rules(), Situation(1, 1), ""),
        # at most so many tokens, less those that are cached
        (Rules(max_local_prefill_length=100), Situation(100), "short"),
        (Rules(max_local_prefill_length=100), Situation(101), ""),
        (Rules(max_local_prefill_length=100), Situation(5000, 4900), "short"),
        (Rules(max_local_prefill_length=0), Situation(16, 16), "short"),
        (Rules(max_local_prefill_length=0), Situation(17, 16), ""),
        # isl_bounding: below 2,048 tokens and below 0.7 of the prompt
        (Rules(ISL), Situation(1000), ""),
        (Rules(ISL), Situation(1000, 300), ""),
        (Rules(ISL), Situation(1000, 301), "cached"),
        (Rules(ISL), Situation(10_000, 10_000 - 2048), ""),
        (Rules(ISL), Situation(10_000, 10_000 - 2047), "cached"),
        (Rules(ISL), Situation(500, 640), "cached"),
        (Rules(ISL), Situation(0), "cached"),
        (Rules(ISL), Situation(1000, 0, prefill_batches=99.0), ""),
        (Rules(ConditionalDisagg(eff_isl_threshold=0)), Situation(1000, 1000), ""),
        # prefill_load: the prefill worker is over its threshold, whatever is cached
        (Rules(LOAD), Situation(9000, 0, prefill_batches=1.6), "busy"),
        (Rules(LOAD), Situation(9000, 8999, prefill_batches=1.5), ""),
        (Rules(LOAD), Situation(9000, 8999, prefill_batches=None), ""),
        (Rules(EITHER), Situation(9000, 8999, prefill_batches=0.0), "cached"),
        (Rules(EITHER), Situation(9000, 0, prefill_batches=2.0), "busy"),
        (Rules(EITHER), Situation(9000, 0, prefill_batches=1.0), ""),
        # a decode worker that is full, or of which nobody knows, gets no more to do by these rules
        (Rules(GUARDED), Situation(1000, 900, decode_usage=0.8), "cached"),
        (Rules(GUARDED), Situation(1000, 900, decode_usage=0.81), ""),
        (Rules(GUARDED), Situation(1000, 900), ""),
        (Rules(GUARDED, 100), Situation(1000, 900, decode_usage=1.0), "short"),
    ],
)
def test_which_prompts_stay(policy: Rules, situation: Situation, reason: str) -> None:
    assert stays(policy, situation) == reason


@pytest.mark.parametrize(
    ("error", "tries", "left", "again"),
    [
        (Disconnected(), 1, None, True), (CapacityExceeded(), 1, 0.5, True), (Disconnected(), 2, None, False),
        (Disconnected(), 1, 0.0, False), (EngineError("x"), 1, None, False), (InvalidArgument("x"), 1, None, False),
        (NoInstances(), 1, None, False), (NoInstances(), 0, None, False), (None, 1, None, False),
    ],
)  # fmt: skip
def test_when_another_one_is_tried(error: DynamoException | None, tries: int, left: float | None, again: bool) -> None:
    assert tries_another(error, tries, left) is again


def test_the_rules_are_read_from_the_settings() -> None:
    """NVIDIA Dynamo's names and defaults; the threshold of the queue where no other one is said."""
    assert rules(DisaggSettings(), None) == Rules()
    assert rules(DisaggSettings(max_local_prefill_length=1000), None) == Rules(None, 1000)
    plain = ConditionalDisagg("isl_bounding", 2048, 0.7, None, None)
    assert rules(DisaggSettings(conditional=True), None) == Rules(plain)
    text = '{"policy":"isl_or_load","eff_isl_threshold":4096,"eff_isl_ratio_threshold":0.6,"prefill_busy_threshold":16}'
    assert rules(DisaggSettings(True, text), 2.0).conditional == ConditionalDisagg("isl_or_load", 4096, 0.6, 16.0)
    assert rules(DisaggSettings(True, '{"policy":"prefill_load"}'), 2.0).conditional == ConditionalDisagg(
        "prefill_load", prefill_busy_threshold=2.0
    )


KV = {"router_mode": "kv", "router_conditional_disagg": True}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (KV, None),
        ({"router_conditional_disagg": True}, "needs --router-mode kv with KV events"),
        ({**KV, "use_kv_events": False}, "needs --router-mode kv with KV events"),
        ({"router_conditional_disagg_config": "{}"}, "has no effect without --router-conditional-disagg"),
        ({**KV, "router_conditional_disagg_config": "{"}, "--router-conditional-disagg-config can't be read"),
        ({**KV, "router_conditional_disagg_config": '{"isl": 3}'}, "unknown field `isl`"),
        ({**KV, "router_conditional_disagg_config": '{"eff_isl_ratio_threshold": 2}'}, "<= 1.0"),
        ({**KV, "router_conditional_disagg_config": '{"policy": "random"}'}, "$.policy"),
        ({**KV, "router_conditional_disagg_config": '{"policy": "prefill_load"}'}, "set prefill_busy_threshold there"),
        ({"max_local_prefill_length": -1}, "--max-local-prefill-length must be 0 or more"),
        ({"max_local_prefill_length": 0}, None),
    ],
)
def test_what_can_t_be_meant_is_said(settings: dict[str, object], said: str | None) -> None:
    reason = problem(build(FrontendSettings, **settings))
    assert (reason is None) if said is None else said in (reason or "")
