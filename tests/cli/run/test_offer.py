"""`dynamo-run` without a model names some: those that are here first."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo.cli.run.main import run
from dynamo.cli.run.offer import lines


def test_what_is_here_comes_before_what_could_be_fetched() -> None:
    """Files of the folder, downloads, then the hub's; each line can be typed."""
    text = lines(["a.gguf"], ["org/name"])
    assert text[2:4] == ["  dynamo-run a.gguf", "  dynamo-run org/name"]
    assert all(len(line) <= 80 for line in text)
    assert lines([], [])[1] == "No model was named."


def test_without_arguments_models_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the help, which is long; nothing is started."""
    (tmp_path / "mine.gguf").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    assert run([]) == 0
    assert "dynamo-run mine.gguf" in capsys.readouterr().out
