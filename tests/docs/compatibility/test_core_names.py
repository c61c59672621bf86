"""The rows of docs/reference/compatibility/index.md about `dynamo._core`: what they say is what happens."""

from __future__ import annotations

import importlib

import pytest
from docs.generate.compatibility.core_names import names, state

import dynamo._core
from dynamo._core.unsupported import INSTEAD, sentence
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.legacy_flags import REFUSED
from dynamo.runtime.unsupported import LEFT_OUT

ALL = [name for name, _ in names()]


def test_each_name_has_one_state() -> None:
    """Nothing is told twice, and what is said of names that nobody had is said of none."""
    assert len(ALL) == len(set(ALL))
    assert set(INSTEAD) <= set(ALL)
    assert all(state(name)[1] for name in ALL)
    with pytest.raises(LookupError):
        state("Nonsense")


@pytest.mark.parametrize("name", [name for name in ALL if state(name)[0] != REFUSED])
def test_what_works_is_what_the_package_has(name: str) -> None:
    """The same object, by its module's attribute."""
    value = getattr(dynamo._core, name)
    where = state(name)[1].strip("`")
    if where in ("dynamo.llm", "dynamo.runtime"):
        assert value is getattr(importlib.import_module(where), name)
    assert callable(value)


@pytest.mark.parametrize("name", sorted({*INSTEAD, *LEFT_OUT} & set(ALL)))
def test_what_is_not_there_says_what_to_use(name: str) -> None:
    """With `from`, too, where Python would put a sentence of its own."""
    with pytest.raises((ImportError, InvalidArgument)) as refused:
        exec(f"from dynamo._core import {name}")
    assert str(refused.value) == sentence(name)


def test_everything_public_is_there() -> None:
    """The names of both packages; where both have one, the one of dynamo.llm."""
    import dynamo.llm
    import dynamo.runtime

    assert {*vars(dynamo.llm)["__all__"], *vars(dynamo.runtime)["__all__"]} <= set(vars(dynamo._core)["__all__"])
    assert dynamo._core.RouterMode is dynamo.llm.RouterMode
