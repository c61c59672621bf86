"""The lines of NVIDIA Dynamo's guides, before SGLang's own parser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from docs.generate.compatibility.printed_row import Row
from tests.pages.arguments import TOLD, lines_for, told

from dynamo.worker.engines.sglang.arguments import argv
from dynamo.worker.engines.sglang.engine import read_arguments


@pytest.mark.parametrize("row", lines_for("sglang"), ids=lambda row: row.name)
def test_sglang_takes_what_a_line_says(row: Row, tmp_path: Path) -> None:
    """Its parser reads it, with the values that the line has."""
    file = tmp_path / "args.json"
    file.write_text(json.dumps({"dtype": "half", "trust_remote_code": True}))
    found = read_arguments(argv(told(row.words(**{"ARGS.json": str(file)}), "/model")))
    expected = {"model_path": "/model", **TOLD.get(row.name, {})}
    assert {name: getattr(found, name) for name in expected} == expected
