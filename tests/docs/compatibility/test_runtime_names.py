"""The rows of docs/reference/compatibility/index.md about `dynamo.runtime`: what they say is what happens."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from docs.generate.compatibility.runtime_names import CHANGES_NOTHING, name_state, names

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.legacy_flags import NEEDLESS, REFUSED
from dynamo.runtime.unsupported import LEFT_OUT

ALL = [name for name, _ in names()]


def of(state: str) -> list[str]:
    return [name for name in ALL if name_state(name)[0] == state]


def test_no_name_is_told_twice_or_not_at_all() -> None:
    """What is left out, and what changes nothing, stands in the table."""
    assert len(ALL) == len(set(ALL))
    assert set(of(REFUSED)) == set(LEFT_OUT)
    assert set(of(NEEDLESS)) == set(CHANGES_NOTHING)


def test_a_name_that_is_nowhere() -> None:
    """It has no state, and so no row."""
    for name in ("Client.nonsense", "Context(nonsense=)", "Nonsense"):
        with pytest.raises((LookupError, ImportError)):
            name_state(name)


@pytest.mark.parametrize("name", of(REFUSED))
def test_what_is_refused_says_what_to_do_instead(name: str) -> None:
    """Importing it, or calling it, says the sentence of the row."""
    with pytest.raises((ImportError, InvalidArgument)) as refused:
        _use(*name.rpartition("."))
    assert str(refused.value) == f"{name} is not there: {LEFT_OUT[name]}"


def _use(owner: str, _: str, name: str) -> None:
    if owner in ("", "logging"):
        exec(f"from dynamo.runtime{'.logging' if owner else ''} import {name}")
        return
    kind: Any = getattr(importlib.import_module("dynamo.runtime"), owner)
    getattr(kind.__new__(kind), name)()  # a property says it before it is called
