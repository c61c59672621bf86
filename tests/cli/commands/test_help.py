"""Every command's help in 80 columns, `-V` everywhere, and what a typo meant."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dynamo.cli.help_text import WIDTH, folded
from dynamo.cli.main import _COMMANDS, dynamo
from dynamo.cli.run.main import command
from dynamo.operator.main import main as operator


@pytest.mark.parametrize("name", ["", *sorted(_COMMANDS.keys() - {"run"})])
def test_help_fits_and_names_the_version(name: str) -> None:
    """With 80 columns no line is longer; the version is the program's."""
    words = [name] if name else []
    runner = CliRunner(env={"COLUMNS": "80"})
    done = runner.invoke(dynamo, [*words, "--help"])
    assert done.exit_code == 0, done.output
    assert [line for line in done.output.splitlines() if len(line) > 80] == []
    versions = {runner.invoke(dynamo, asked).output for asked in ([*words, "-V"], ["version"])}
    assert len(versions) == 1, versions


def test_the_operator_names_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The same one, though it has a parser of its own."""
    with pytest.raises(SystemExit) as ended:
        operator(["-V"])
    assert (ended.value.code, capsys.readouterr().out) == (0, CliRunner().invoke(dynamo, ["-V"]).output)


def test_help_of_run_fits() -> None:
    """The same of dynamo-run, whose parser is another one."""
    done = CliRunner(env={"COLUMNS": "80"}).invoke(command(), ["--help"])
    assert [line for line in done.output.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(("typed", "meant"), [("vlidate", "validate"), ("hlep", "--help"), ("srve", "dynamo up FILE")])
def test_a_typo_is_understood(typed: str, meant: str) -> None:
    """Also of names that other programs have."""
    done = CliRunner().invoke(dynamo, [typed])
    assert (done.exit_code, meant in done.output) == (2, True), done.output


def test_columns_stay_columns() -> None:
    """An explanation goes on in its own column, or below a command that leaves it no room."""
    assert folded("  a command   " + "word " * 20, 40).splitlines()[1].startswith(" " * 14 + "word")
    below = folded("  a command that is far too long for two columns   what it does", 50).splitlines()
    assert below == ["  a command that is far too long for two columns", "        what it does"]


@given(st.text(st.sampled_from("ab  -"), max_size=300))
def test_no_word_is_lost(text: str) -> None:
    """Whatever is folded has the same words, and no line with room for a break is too long."""
    result = folded(text)
    assert result.split() == text.split()
    assert all(len(line) <= WIDTH or " " not in line.strip() for line in result.splitlines())
