"""Argo CD's health check in a real Lua, and kstatus' rules, over statuses that the operator makes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime
from tests.gitops.cases import FOLDER, HEALTH, Case, Health, cases, files, statuses
from tests.gitops.kstatus import CURRENT, FAILED, IN_PROGRESS, TERMINATING, compute
from tests.operator.pipelines import body

from dynamo.operator.api.conditions import Fact, Reason, Type, conditions
from dynamo.operator.api.v1alpha1 import DynamoPipeline

CASES = list(cases())
KSTATUS = {Health.HEALTHY: CURRENT, Health.PROGRESSING: IN_PROGRESS, Health.DEGRADED: FAILED}
UNOBSERVED = ("without-status", "without-conditions")
"""kstatus takes an object without conditions for current; that's why the operator writes some at first sight."""


def health(pipeline: dict[str, Any]) -> tuple[str, str]:
    """What the script says; Argo CD gives it the base and table libraries and nothing else (Lua 5.1)."""
    lua = LuaRuntime(unpack_returned_tuples=True, register_eval=False, register_builtins=False)
    for name in ("io", "os", "string", "math", "debug", "python"):
        lua.globals()[name] = None
    lua.globals()["obj"] = lua.table_from(pipeline, recursive=True)
    value: Any = lua.execute((FOLDER / "health.lua").read_text())
    return value["status"], value["message"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_script_agrees(case: Case) -> None:
    """With what a pipeline in this state should be called, and with the condition's own words."""
    assert health(case.pipeline) == (case.health, case.message)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kstatus_says_the_same(case: Case) -> None:
    """Flux, `helm --wait` and Argo CD tell users one story."""
    if case.name == "being-deleted":
        assert compute(case.pipeline) == TERMINATING
    elif case.name in UNOBSERVED:
        assert compute(case.pipeline) == CURRENT
    else:
        assert compute(case.pipeline) == KSTATUS[case.health]


def test_every_reason_has_a_health() -> None:
    """A new one can't be forgotten: neither what it means nor its test data."""
    assert set(HEALTH) == set(Reason)
    assert {reason for reason, entry in HEALTH.items() if entry} == set(statuses())
    for reason, status in statuses().items():
        (ready,) = [condition for condition in status["conditions"] if condition["type"] == Type.READY]
        assert ready["reason"] == reason


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("ready", ["True", "False", "Unknown"])
@pytest.mark.parametrize("beside", [None, Type.RECONCILING, Type.STALLED])
def test_script_and_kstatus_agree_on_all_that_could_be_said(reason: Reason, ready: str, beside: Type | None) -> None:
    """Whatever the three conditions hold, also what no operator of ours writes."""
    facts = [Fact(Type.READY, ready, reason, "so")]
    facts += [] if beside is None else [Fact(beside, "True", reason, "so")]
    entries = conditions(facts, [], 1, "2026-11-21T10:00:00Z")
    pipeline = body({}) | {"status": {"observedGeneration": 1, "conditions": entries}}
    pipeline["metadata"]["generation"] = 1
    assert KSTATUS[Health(health(pipeline)[0])] == compute(pipeline)


def test_the_test_data_is_what_the_operator_writes() -> None:
    """`make generate` after a change of statuses; nothing else lies there."""
    there = {path: path.read_text() for path in (*(FOLDER / "testdata").iterdir(), FOLDER / "health_test.yaml")}
    assert there == files(), "run `make generate`"


def test_the_test_data_are_pipelines() -> None:
    """The types take them, statuses included."""
    for path in (FOLDER / "testdata").iterdir():
        DynamoPipeline.model_validate(yaml.safe_load(path.read_text()), strict=False)
