"""A leader that is paused at every single point of a reconcile; `make test` has every fourth."""

from __future__ import annotations

import asyncio

import pytest
from tests.operator.pipelines import Spec
from tests.operator.reconcile.test_paused import SPECS, passed


@pytest.mark.full
@SPECS
def test_a_leader_that_was_paused_writes_nothing(spec: Spec | None) -> None:
    """Nothing of it arrives after another has led, wherever it stood still."""
    assert asyncio.run(passed(spec, asking=False, step=1)) > 100, "it stood still on its way"
