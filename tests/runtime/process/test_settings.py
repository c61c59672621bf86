"""Flags, variables and defaults of the deployables from one dataclass."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dynamo.runtime.settings import command, parse, setting


@dataclasses.dataclass(frozen=True)
class Example:
    """A settings class with every kind of field."""

    http_port: int = setting(8000, "Port.", env="EX_PORT")
    model_name: str | None = setting(None, "Name.", flags=["-m"])
    mode: str = setting("fast", "Mode.", choices=["fast", "slow"], env="EX_MODE")
    strict: bool = setting(False, "Strict.", env="EX_STRICT")
    origins: list[str] = setting([], "Origins.", env="EX_ORIGINS")  # noqa: RUF009 - `setting` makes a factory of it
    ratio: float = setting(1.5, "Ratio.")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EX_PORT", "EX_MODE", "EX_STRICT", "EX_ORIGINS"):
        monkeypatch.delenv(name, raising=False)


def test_defaults() -> None:
    """Without flags and variables the dataclass's own defaults hold."""
    assert parse(Example, []) == Example()


def test_flags() -> None:
    """Every field is a flag; booleans have a negative form, lists repeat."""
    argv = [
        "--http-port",
        "1",
        "-m",
        "x",
        "--mode",
        "slow",
        "--strict",
        "--origins",
        "a",
        "--origins",
        "b",
        "--ratio",
        "2",
    ]
    assert parse(Example, argv) == Example(1, "x", "slow", True, ["a", "b"], 2.0)
    assert parse(Example, ["--strict", "--no-strict"]).strict is False


def test_environment_and_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable beats the default, a flag beats the variable."""
    monkeypatch.setenv("EX_PORT", "7")
    monkeypatch.setenv("EX_STRICT", "1")
    assert parse(Example, []).http_port == 7
    assert parse(Example, []).strict is True
    assert parse(Example, ["--http-port", "9"]).http_port == 9


@pytest.mark.parametrize(
    ("argv", "env", "named"),
    [
        (["--http-port", "x"], {}, "--http-port"),
        (["--mode", "odd"], {}, "--mode"),
        (["--nothing"], {}, "--nothing"),
        ([], {"EX_PORT": "x"}, "EX_PORT"),
        ([], {"EX_MODE": "odd"}, "EX_MODE"),
    ],
)  # fmt: skip
def test_a_malformed_value_is_a_usage_error(argv: list[str], env: dict[str, str], named: str) -> None:
    """Exit code 2, and the flag or variable is named."""
    made = command(Example, lambda settings: None, name="example", help="An example.")
    result = CliRunner().invoke(made, argv, env=env)
    assert result.exit_code == 2
    assert named in result.output


def test_help_names_variable_and_default() -> None:
    """`--help` shows each flag with its variable and default."""
    made = command(Example, lambda settings: None, name="example", help="An example.")
    text = CliRunner().invoke(made, ["--help"]).output
    assert "EX_PORT" in text
    assert "8000" in text
    assert "--no-strict" in text
    assert "[fast|slow]" in text


def test_the_command_runs_with_the_settings() -> None:
    """The callback gets one settings object."""
    got: list[Any] = []
    made = command(Example, got.append, name="example", help="")
    assert CliRunner().invoke(made, ["--http-port", "3"]).exit_code == 0
    assert got == [Example(http_port=3)]


def test_parse_raises() -> None:
    """`parse` raises instead of ending the process."""
    with pytest.raises(click.UsageError):
        parse(Example, ["--odd"])
