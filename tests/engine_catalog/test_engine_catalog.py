"""The table of engines: complete, true of the packages, and free of what the operator's image lacks."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dynamo.engine_catalog import CATALOG, EngineName, names, traits_of

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_each_engine_has_a_row() -> None:
    """A member of the enum without traits, or out of order, fails here."""
    assert list(CATALOG) == list(EngineName)
    assert names() == sorted(EngineName)
    with pytest.raises(ValueError, match="vlm"):
        traits_of("vlm")


@pytest.mark.parametrize("engine", EngineName)
def test_its_classes_are_where_the_row_says(engine: EngineName) -> None:
    """Each class can be imported without the engine's own package."""
    for target in filter(None, (traits_of(engine).engine_class, traits_of(engine).node_class)):
        module, _, name = target.partition(":")
        assert isinstance(getattr(importlib.import_module(module), name), type)


def test_each_extra_is_one_of_the_distribution() -> None:
    """An engine's extra exists, and an engine with one names the package that comes with it."""
    for traits in CATALOG.values():
        assert not traits.extra or traits.extra in PROJECT["optional-dependencies"]
        assert bool(traits.extra) == bool(traits.package)


def test_it_imports_the_standard_library_only() -> None:
    """The operator's image has no package that the runtime needs."""
    code = "import sys, dynamo.engine_catalog as c; print(*(n for n in sys.modules if n.startswith('dynamo.')))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["dynamo.engine_catalog"]
    code = "import sys, dynamo.engine_catalog; print({n.split('.')[0] for n in sys.modules} - sys.stdlib_module_names)"
    isolated = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False,
                              env={"PYTHONPATH": str(Path(__file__).parents[2] / "sdk")})  # fmt: skip
    assert isolated.stdout.strip() in ("{'dynamo', '__main__'}", "{'__main__', 'dynamo'}"), isolated.stderr
