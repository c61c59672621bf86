"""Settings of a process: one dataclass field is one flag, one variable, one default.

A settings class is a frozen dataclass whose fields are made by `setting()`; `command()`
turns it into a click command, so `--help`, the environment names and the defaults can't
drift apart. Precedence: flag, environment, default. A malformed value ends the process
with exit code 2 and the name of the flag or variable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click

from dynamo.runtime.flags import FlagCommand, Former

T = TypeVar("T")


def setting(
    default: Any,
    help: str,  # noqa: A002 - click's own word
    *,
    env: str | Sequence[str] | None = None,
    flags: Sequence[str] = (),
    choices: Sequence[str] = (),
    hidden: bool = False,
) -> Any:
    """A field of a settings class. `flags` adds spellings to the one derived from the field's name.

    Of several `env` the first that is set counts.
    """
    meta = {"help": help, "env": env, "flags": tuple(flags), "choices": tuple(choices), "hidden": hidden}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


def _plain_type(annotation: Any) -> tuple[Any, bool]:
    """`(type, many)`: `int | None` is int, `list[str]` is str and repeatable."""
    if get_origin(annotation) in (list, tuple):
        return get_args(annotation)[0], True
    options = [arg for arg in get_args(annotation) if arg is not type(None)]
    return (options[0] if options else annotation), False


def _option(field: dataclasses.Field[Any], annotation: Any) -> click.Option:
    meta = field.metadata
    kind, many = _plain_type(annotation)
    name = "--" + field.name.replace("_", "-")
    if kind is bool:
        name = f"{name}/--no-{name.removeprefix('--')}"
    default = field.default_factory() if callable(field.default_factory) else field.default
    return click.Option(
        [field.name, name, *meta["flags"]],
        type=click.Choice(meta["choices"]) if meta["choices"] else kind,
        default=default,
        envvar=meta["env"],
        show_envvar=meta["env"] is not None,
        show_default=default not in (None, "", [], ()),
        multiple=many,
        hidden=meta["hidden"],
        help=meta["help"],
    )


def options(settings: type[Any]) -> list[click.Parameter]:
    """The click options of a settings class, in the order of its fields."""
    hints = get_type_hints(settings)
    return [_option(f, hints[f.name]) for f in dataclasses.fields(settings) if "help" in f.metadata]


def command(
    settings: type[T],
    run: Callable[[T], Any],
    *,
    name: str,
    help: str,  # noqa: A002
    epilog: str = "",
    former: Sequence[Former] = (),
    groups: Mapping[str, Sequence[str]] | None = None,
) -> FlagCommand:
    """A click command that builds `settings` from flags and environment and calls `run` with it.

    `former` flags of older ages are understood; `groups` order its `--help`.
    """

    def callback(**values: Any) -> Any:
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return run(settings(**plain))

    return FlagCommand(
        name, params=[*options(settings), version_option()], callback=callback, help=help, epilog=epilog,
        former=former, groups=groups,
        context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110},
    )  # fmt: skip


def version_option() -> click.Option:
    """`--version`, as all programs have it."""

    def tell(context: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            from importlib.metadata import PackageNotFoundError, version

            try:
                click.echo(version("dynamo-pipelines"))
            except PackageNotFoundError:
                click.echo("unknown (not installed as a package)")
            context.exit()

    return click.Option(
        ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=tell, help="Print the version."
    )


def parse(settings: type[T], argv: Sequence[str]) -> T:
    """Build `settings` from `argv` without running anything; raises `click.UsageError`."""
    found: list[T] = []
    command(settings, found.append, name="parse", help="").main(list(argv), standalone_mode=False)
    return found[0]
