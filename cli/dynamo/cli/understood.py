"""A command line of `dynamo-run` that was understood: made by `run.py`, carried out by `session.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dynamo.cli.grammar import Roles, Words
from dynamo.cli.run_settings import RunSettings


@dataclass(frozen=True)
class Run:
    """Who asks, who answers, with which model and flags."""

    words: Words
    roles: Roles
    settings: RunSettings
    model: str
    template: dict[str, Any]
    """The fields of `--request-template`."""
