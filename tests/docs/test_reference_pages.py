"""What docs/reference is made of: help texts taken apart, signatures as they were written."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import click
import pytest
from docs.generate import commands_page, configuration_page, help_text, python_source
from docs.generate.help_text import Block, Prose, example
from docs.generate.python_page import found
from docs.generate.python_start import NAMES, Name

import dynamo.runtime
from dynamo.runtime.process.legacy_flags import FlagCommand


def test_a_help_text_is_prose_and_blocks() -> None:
    r"""Paragraphs are joined, lines behind `\b` are kept, an unindented line before them is their title."""
    text = "One\ntwo.\n\n\b\nExamples:\n  dynamo ps    what runs\n  dynamo up x\nCodes: 0, 1.\n\nThe end.\n"
    assert list(help_text.parts(text)) == [
        Prose("One two."),
        Block("Examples:", ("dynamo ps    what runs", "dynamo up x")),
        Prose("Codes: 0, 1."),
        Prose("The end."),
    ]


@pytest.mark.parametrize(
    ("line", "command", "remark"),
    [
        ("dynamo ps    what runs", "dynamo ps", "what runs"),
        ("  dynamo ps  # what runs", "dynamo ps", "what runs"),
        ("dynamo up x --http-port 0", "dynamo up x --http-port 0", ""),
    ],
)
def test_an_example_has_a_remark_after_two_blanks(line: str, command: str, remark: str) -> None:
    """One blank belongs to the command."""
    assert example(line) == (command, remark)


def test_blocks_for_a_shell_are_known() -> None:
    """A block of `in=` words is none."""
    assert Block("Examples:", ("DYN_CONSOLE=1 dynamo-worker --engine mocker", "python -m dynamo.mocker")).typed
    assert not Block("in=", ("text   a chat",)).typed


def test_every_flag_of_every_program_is_told() -> None:
    """But hidden ones, --help and --version; `dynamo run` is dynamo-run."""
    programs, text = commands_page.programs(), commands_page.render() + configuration_page.render()
    assert {"dynamo up", "dynamo-run", "dynamo-frontend", "python -m dynamo.vllm", "dynamo-operator"} <= set(programs)
    assert "dynamo run" not in programs
    flags = {
        name
        for command in programs.values() if isinstance(command, click.Command)
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden and option.name not in ("help", "version")
        for name in (*option.opts, *option.secondary_opts) if name not in getattr(option, "aliases", ())
    }  # fmt: skip
    assert len(flags) > 150
    assert sorted(flag for flag in flags if f"`{flag}`" not in text) == []


def test_arguments_are_not_options_in_help() -> None:
    """`[MODEL]` stands in the usage line only."""
    command = FlagCommand("x", params=[click.Argument(["model"], required=False), click.Option(["--flag"], help="It.")])
    shown = command.get_help(click.Context(command))
    assert shown.count("[MODEL]") == 1
    assert "--flag" in shown


CLASS = '''
class Thing:
    """A thing."""

    size: int = 3
    """Of it."""
    _hidden: int = 4
    kind: ClassVar[str] = "x"

    def __init__(self, a: int, /, *rest: str, b: bool = False, **more: Any) -> None:
        self.told = a
        """Said in __init__."""
        self.untold = a

    @overload
    def same(self, x: int) -> int: ...
    def same(self, x: Any) -> Any:
        """Again."""

    @property
    def name(self) -> str: ...
    @name.setter
    def name(self, value: str) -> None: ...
    @classmethod
    def of(cls, text: str) -> "Thing": ...
    @staticmethod
    def plain(x: int) -> int: ...
    def _private(self) -> None: ...
'''


@pytest.fixture
def thing() -> ast.ClassDef:
    node = ast.parse(CLASS).body[0]
    assert isinstance(node, ast.ClassDef)
    return node


def test_a_signature_is_as_it_was_written(thing: ast.ClassDef) -> None:
    """All five kinds of parameters; a method without its first one; one a line where it is long."""
    made = python_source.constructor(thing)
    assert made is not None
    shown = python_source.signature(made, name="Thing", method=True)
    assert shown == "Thing(a: int, /, *rest: str, b: bool = False, **more: Any) -> None"
    assert python_source.signature(made, name="Thing", method=True, width=20).splitlines()[1] == "    a: int,"


def test_members_are_the_public_ones(thing: ast.ClassDef) -> None:
    """Overloads and setters are told once."""
    members = {member.name: member for member in python_source.members(thing)}
    assert list(members) == ["same", "name", "of", "plain"]
    assert python_source.signature(members["plain"], method=True) == "plain(x: int) -> int"
    assert python_source.signature(members["of"], method=True) == "of(text: str) -> 'Thing'"
    assert python_source.is_property(members["name"])
    assert python_source.belongs_to_class(members["of"])


def test_fields_are_the_class_s_and_those_that_init_explains(thing: ast.ClassDef) -> None:
    """With the text below them."""
    results = [(field.name, field.kind, field.default, field.doc) for field in python_source.fields(thing)]
    assert results == [("size", "int", "3", "Of it."), ("told", "", "a", "Said in __init__.")]


@pytest.mark.parametrize("value", [dynamo.runtime.Client, dynamo.runtime.Instance, dynamo.runtime.dynamo_worker, len])
def test_nodes_are_found_where_things_are_defined(value: Any) -> None:
    """Also where they are only imported from; what isn't ours has none."""
    node = python_source.node_of(value)
    assert (node.name if node is not None else None) == (None if value is len else value.__name__)


def test_a_constant_is_told_by_its_assignment() -> None:
    """Not by a representation that may hold addresses."""
    constant = python_source.constant("dynamo.runtime.client", "BUFFER")
    assert constant is not None
    assert (constant.kind, constant.default) == ("Final", "10000")
    assert constant.doc.startswith("Items that a reader may be behind")
    assert python_source.constant("dynamo.runtime.client", "nothing") is None


def title(name: Name) -> str:
    return name.path


@pytest.mark.parametrize("name", NAMES, ids=title)
def test_examples_run(name: Name, capsys: pytest.CaptureFixture[str]) -> None:
    """Each runs as it stands; those that print do."""
    exec(compile(name.example, name.path, "exec"), {"__name__": "example"})
    assert ("print(" in name.example) == bool(capsys.readouterr().out)


@pytest.mark.parametrize("name", NAMES, ids=title)
def test_arguments_are_the_function_s(name: Name) -> None:
    """No argument is told that isn't there; of functions with a single form, all are."""
    function = found(name.path)
    if hasattr(
        function, "__signature__"
    ):  # one of several forms, whose arguments a page has as far as they do something
        assert set(name.args) <= set(inspect.signature(function).parameters)
        return
    parameters = [
        key for key, one in inspect.signature(function).parameters.items() if one.kind.name != "VAR_POSITIONAL"
    ]
    if "kwargs" not in parameters:
        assert sorted(key for key in parameters if key != "self") == sorted(name.args)
