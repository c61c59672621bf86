"""The examples of the Python reference: they run, and what they explain is what the code has."""

import inspect

import pytest
from docs.generate.python_page import found
from docs.generate.python_start import NAMES, Name


def title(name: Name) -> str:
    return name.path


@pytest.mark.parametrize("name", NAMES, ids=title)
def test_examples_run(name: Name, capsys: pytest.CaptureFixture[str]) -> None:
    """Each runs as it stands; those that print do."""
    exec(compile(name.example, name.path, "exec"), {"__name__": "example"})
    assert ("print(" in name.example) == bool(capsys.readouterr().out)


@pytest.mark.parametrize("name", NAMES, ids=title)
def test_arguments_are_the_function_s(name: Name) -> None:
    """No argument is told that isn't there; of functions with a single form, all are."""
    parameters = [
        key for key, one in inspect.signature(found(name.path)).parameters.items() if one.kind.name != "VAR_POSITIONAL"
    ]
    if "kwargs" not in parameters:
        assert sorted(key for key in parameters if key != "self") == sorted(name.args)
