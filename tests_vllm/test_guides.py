"""The lines of NVIDIA Dynamo's guides, before vLLM's own parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.generate.compatibility.printed_row import Row
from tests.pages.arguments import TOLD, lines_for, told
from tests.worker.chain_model import write_checkout

from dynamo.worker.engines.vllm.arguments import parsed


@pytest.mark.parametrize("row", lines_for("vllm"), ids=lambda row: row.name)
def test_vllm_takes_what_a_line_says(row: Row, tmp_path: Path) -> None:
    """Its parser reads it, with the values that the line has."""
    found = parsed(told(row.words(), str(write_checkout(tmp_path / "chain"))))
    expected = {"model": str(tmp_path / "chain"), **TOLD.get(row.name, {})}
    assert {name: getattr(found, name) for name in expected} == expected
