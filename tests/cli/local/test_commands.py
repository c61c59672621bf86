"""`dynamo validate`, `version`, `completion`, `run` and `--help`, as a shell sees them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dynamo.cli.main import dynamo

if TYPE_CHECKING:
    from conftest import Workplace  # type: ignore[import-not-found]  # pytest finds it, mypy doesn't

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_validate_names_every_problem_of_every_file(tmp_path: Path) -> None:
    """Good ones are said so; exit code 1 if any isn't."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: X}\nspec: {componets: []}\n"
    )
    done = CliRunner().invoke(dynamo, ["validate", str(EXAMPLES / "echo.yaml"), str(bad), str(tmp_path / "none.yaml")])
    assert done.exit_code == 1
    assert "echo.yaml: valid (echo)" in done.stdout
    assert "bad.yaml:3: metadata.name: 'X' must be lower-case" in done.stderr
    assert "did you mean components?" in done.stderr
    assert "none.yaml: can't be read: No such file" in done.stderr


def test_validate_good_files() -> None:
    """Exit code 0, one line each."""
    done = CliRunner().invoke(dynamo, ["validate", *map(str, sorted(EXAMPLES.glob("*.yaml")))])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == len(list(EXAMPLES.glob("*.yaml")))


@pytest.mark.parametrize("source", ["./model.gguf", "model.gguf"])
def test_validate_looks_for_a_model_beside_the_file(source: str, tmp_path: Path) -> None:
    """A file that isn't there is no good one."""
    file = tmp_path / "x.yaml"
    file.write_text(
        "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: x}\n"
        f"spec: {{model: {{source: {source}}}, components: [{{engine: llamacpp}}]}}\n"
    )
    done = CliRunner().invoke(dynamo, ["validate", str(file)])
    assert (done.exit_code, "no model at" in done.stderr) == (1, True)


def test_validate_reads_standard_input_and_writes_json() -> None:
    """For editors and pipes."""
    done = CliRunner().invoke(dynamo, ["validate", "-", "-o", "json"], input="kind: DynamoPipeline\n")
    assert done.exit_code == 1
    assert json.loads(done.stdout)[0]["path"] == "apiVersion"


def test_no_utf8_is_said(tmp_path: Path) -> None:
    """A binary file is no traceback."""
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    done = CliRunner().invoke(dynamo, ["validate", str(file)])
    assert done.exit_code == 1
    assert "is no UTF-8 text" in done.stderr


@pytest.mark.parametrize(
    "words", [["--help"], ["up", "-h"], ["ps", "-h"], ["logs", "-h"], ["validate", "-h"], ["completion", "-h"]]
)
def test_every_help_has_examples(words: list[str]) -> None:
    """A line to copy for every command."""
    done = CliRunner().invoke(dynamo, words)
    assert done.exit_code == 0
    assert "Examples:" in done.output
    assert "dynamo" in done.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    """A script for each shell."""
    done = CliRunner().invoke(dynamo, ["completion", shell])
    assert done.exit_code == 0
    assert "_DYNAMO_COMPLETE" in done.output


def test_an_unknown_command_is_guessed(place: Workplace) -> None:
    """Did you mean; exit code 2."""
    done = place.run("validat")
    assert done.returncode == 2
    assert "Did you mean validate?" in done.stderr


def test_version_and_run_are_there(place: Workplace) -> None:
    """`dynamo version` prints one line, `dynamo run --help` is dynamo-run's."""
    assert place.run("version").stdout == place.run("--version").stdout != ""
    done = place.run("run", "--help")
    assert done.returncode == 0
    assert "out=" in done.stdout


def test_a_reader_that_leaves_is_no_error(place: Workplace) -> None:
    """`dynamo … | head` gives no traceback."""
    done = subprocess.run(
        ["sh", "-c", f"{' '.join(place.command())} up --help | head -1"],
        capture_output=True, text=True, env=place.environment, timeout=30, check=True,
    )  # fmt: skip
    assert done.stderr == ""
