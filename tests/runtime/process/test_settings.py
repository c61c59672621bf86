"""Flags, variables and defaults of the deployables from one dataclass."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dynamo.runtime.process.settings import (
    build,
    changed,
    command,
    group,
    like,
    options,
    options_among,
    out_of_range,
    parse,
    setting,
    values_for,
    values_in,
)


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


@dataclasses.dataclass(frozen=True)
class Queue:
    """A concern: one option by its field's name, one by a name of its own."""

    depth: int = setting(3, "How many may wait.", env="EXAMPLE_DEPTH")
    seconds: float | None = setting(None, "How long.", env="EXAMPLE_SECONDS", name="queue_timeout_secs")


@dataclasses.dataclass(frozen=True)
class Grouped:
    """A program with that concern between two options of its own."""

    first: str = setting("a", "The first.")
    queue: Queue = group(Queue)
    last: bool = setting(False, "The last.")
    plain: int = 0


def test_a_groups_flags_stand_in_its_place() -> None:
    """In the order of the fields, under their own names."""
    assert [option.name for option in options(Grouped)] == ["first", "depth", "queue_timeout_secs", "last"]
    assert list(values_in(Grouped())) == ["first", "depth", "queue_timeout_secs", "last"]


def test_a_group_is_read_from_flags_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if its fields were the program's."""
    monkeypatch.setenv("EXAMPLE_DEPTH", "7")
    settings = parse(Grouped, ["--queue-timeout-secs", "2.5", "--last"])
    assert settings == Grouped(queue=Queue(7, 2.5), last=True)


def test_changes_find_their_group() -> None:
    """By the option's name; what is not named stays, and an unknown name is an error."""
    settings = changed(Grouped(queue=Queue(5)), queue_timeout_secs=1.0, plain=9)
    assert settings == Grouped(queue=Queue(5, 1.0), plain=9)
    assert build(Grouped, depth=1) == Grouped(queue=Queue(1))
    with pytest.raises(TypeError, match="Grouped has no seconds"):
        changed(Grouped(), seconds=1.0)


@pytest.mark.parametrize(
    ("settings", "rule", "sentence"),
    [
        (Queue(), {}, None),
        (Queue(0), {}, None),
        (Queue(-1), {}, "--depth must be 0 or more"),
        (Queue(0), {"least": 1}, "--depth must be at least 1"),
        (Queue(1, 0.0), {"above": True}, "--queue-timeout-secs must be more than 0"),
        (Queue(1, float("nan")), {}, "--queue-timeout-secs must be 0 or more"),
        (Queue(1, float("inf")), {"above": True}, "--queue-timeout-secs must be more than 0"),
    ],
)
def test_ranges_name_the_flag(settings: Queue, rule: dict[str, Any], sentence: str | None) -> None:
    """A field without a value is fine."""
    assert out_of_range(settings, "depth", "seconds", **rule) == sentence


@dataclasses.dataclass(frozen=True)
class Borrowing:
    """A program with options of the other two, under names and defaults of its own."""

    port: int = like(Grouped, "depth", default=8, help="Port.", env="EXAMPLE_PORT", name="example_port")
    seconds: float | None = like(Grouped, "queue_timeout_secs")
    origins: list[str] = like(Example, "origins")  # noqa: RUF009 - `like` makes a factory of it


def test_a_borrowed_option_is_spelled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What isn't said anew is as it is there: variable, default, help."""
    monkeypatch.setenv("EXAMPLE_SECONDS", "1.5")
    monkeypatch.setenv("EXAMPLE_DEPTH", "7")
    assert parse(Borrowing, ["--origins", "a"]) == Borrowing(8, 1.5, ["a"])
    port, seconds, _ = options(Borrowing)
    assert (port.opts, port.default) == (["--example-port"], 8)
    assert "EXAMPLE_PORT" in (port.envvar or ())
    assert "EXAMPLE_SECONDS" in (seconds.envvar or ())


def test_borrowed_options_are_handed_on() -> None:
    """By their names there, each to its own class; None says nothing, so that the default there holds."""
    borrowed = Borrowing(port=1, origins=["b"])
    assert values_for(Grouped, borrowed) == {"depth": 1}
    assert build(Grouped, **values_for(Grouped, borrowed)) == Grouped(queue=Queue(depth=1))
    assert values_for(Example, borrowed) == {"origins": ["b"]}


def test_nobody_borrows_what_is_not_there() -> None:
    """A slip in a name is an error when the class is made."""
    with pytest.raises(TypeError, match="Queue has no option deep"):
        like(Queue, "deep")


def test_options_are_picked_by_name() -> None:
    """Among values for several programs; None says nothing."""
    assert options_among(Grouped, {"depth": 2, "queue_timeout_secs": None, "plain": 1, "model": "m"}) == {"depth": 2}
