"""The support matrix keeps to the engine table and to tests that exist; engines' pages quote it."""

import re
from pathlib import Path

import pytest
from docs.generate.support.page import PAGES, quoted
from docs.generate.support.table import MATRIX, Feature, Status, Support

from dynamo.engine_catalog import CATALOG, EngineName

ROOT = Path(__file__).parent.parent.parent
CELLS = [(engine, feature, support) for engine, row in MATRIX.items() for feature, support in row.items()]


def test_the_matrix_has_every_engine_of_the_catalog() -> None:
    """Each engine has a row; what the catalog rules out isn't promised."""
    assert set(MATRIX) == set(CATALOG)
    for engine, row in MATRIX.items():
        traits = CATALOG[engine]
        assert traits.multi_node or Feature.NODES not in row
        assert traits.disaggregated or Feature.SPLIT not in row
        assert traits.cpu_only or not traits.loads_weights or Feature.GPU in row or engine is EngineName.PYTHON


def test_what_is_not_planned_has_a_test_that_exists() -> None:
    """A supported cell names a test of `make test` or `make e2e`; an experimental one says where it was tested."""
    assert [
        (engine, feature) for engine, feature, cell in CELLS if cell.status is not Status.PLANNED and not cell.test
    ] == []
    assert [cell for *_, cell in CELLS if cell.test and not _exists(cell)] == []
    assert [cell for *_, cell in CELLS if cell.status is Status.EXPERIMENTAL and not cell.where] == []
    apart = [cell for *_, cell in CELLS if cell.test.startswith(("tests_vllm/", "tests_sglang/"))]
    assert {cell.status for cell in apart} == {Status.EXPERIMENTAL}


def _exists(cell: Support) -> bool:
    file, _, name = cell.test.partition("::")
    path = ROOT / file
    return path.is_file() and re.search(rf"^(?:async )?def {name}\(", path.read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize("engine", EngineName)
def test_each_engine_s_page_quotes_its_row(engine: EngineName) -> None:
    """The line that says how far an engine is stands on its page as the matrix has it."""
    assert quoted(engine) in (ROOT / f"docs/how-to/serve/engines/{PAGES.get(engine, engine)}.md").read_text()
