"""The guides' batch: a file of prompts, a real model, the answers beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.environments import quick_environment
from tests.pages.printed import Rows, command
from tests.processes import answered

pytestmark = pytest.mark.processes


def test_a_file_of_prompts(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """Each prompt gets its answer, counted; the figures are printed at the end."""
    prompts = ["capital of 3", "what is 34"]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in prompts))
    words = {**own, "PROMPTS.jsonl": str(tmp_path / "prompts.jsonl")}
    done = answered(command(rows["batch"], words, "--request-template", own["GREEDY"]), "", quick_environment(tmp_path))
    assert done.returncode == 0, done.stderr
    table = {}
    for line in (tmp_path / "output.jsonl").read_text().splitlines():
        entry = json.loads(line)
        table[entry["text"]] = (entry["response"], entry["tokens_in"], entry["tokens_out"])
        assert set(entry) >= {name for name in rows["batch, output"].what.split("`")[3::2] if "jsonl" not in name}
    assert list(json.loads(rows["batch, input"].what.split("`")[1].replace("PROMPT", '""'))) == ["text"]
    assert table == {"capital of 3": ("45", 12, 3), "what is 34": ("5", 10, 2)}
    assert "Ran 2 files in" in done.stderr
