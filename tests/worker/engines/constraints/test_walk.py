"""Answers that the mocker draws from a schema: each is whole, and what it says it is."""

from __future__ import annotations

import datetime
import json

import pydantic
import pytest

from dynamo.worker.engines.constraints.process import ROOM, SEED, WHOLE, WRITTEN, compiled


class Moments(pydantic.BaseModel):
    """Days and times, which Python reads strictly."""

    model_config = pydantic.ConfigDict(extra="forbid")
    at: datetime.datetime
    day: datetime.date
    time: datetime.time


@pytest.mark.parametrize("seed", range(40))
def test_moments_are_moments(seed: int) -> None:
    """No 31st of April, and no 60th second."""
    made = compiled("mocker", {"json": Moments.model_json_schema(), SEED: seed, ROOM: 0})
    assert made[WHOLE]
    Moments.model_validate_json(made[WRITTEN])


@pytest.mark.parametrize("form", ["email", "uri", "hostname", "ipv4", "ipv6", "uuid", "duration"])
def test_texts_of_a_format_end(form: str) -> None:
    """What must have a sign before it can end gets that sign soon."""
    for seed in range(8):
        made = compiled("mocker", {"json": {"type": "string", "format": form}, SEED: seed, ROOM: 0})
        assert made[WHOLE]
        assert 0 < len(json.loads(made[WRITTEN])) < 100
