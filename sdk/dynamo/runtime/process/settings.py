"""Settings of a process: one dataclass field is one flag, one variable, one default.

A settings class is a frozen dataclass whose fields are made by `setting()`; `command()`
turns it into a click command, so `--help`, the environment names and the defaults can't
drift apart. Precedence: flag, environment, default. A malformed value ends the process
with exit code 2 and the name of the flag or variable.

One concern is one settings class of its own, and a field of each program's settings that has it (`group()`): its
flags come in the place of that field, and the group is handed whole to its consumer.

A program that has single options of another one's says which (`like()`) and how they differ; `values_for()` hands
them on.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import click

from dynamo.runtime.process.legacy_flags import FlagCommand, LegacyFlag

T = TypeVar("T")
_GROUP: Final = "group"
_LIKE: Final = "like"
_SPELLED: Final = "spelled"


def setting(
    default: Any,
    help: str,  # noqa: A002 - click's own word
    *,
    env: str | Sequence[str] | None = None,
    flags: Sequence[str] = (),
    choices: Sequence[str] = (),
    hidden: bool = False,
    name: str = "",
    aliases: Sequence[str] = (),
) -> Any:
    """Make a field of a settings class. `flags` adds spellings to the one derived from the field's name, or `name`.

    Of several `env` the first that is set counts. `aliases` are flags and variables of NVIDIA Dynamo's that mean the
    same: they are accepted, and only docs/reference/compatibility/index.md names them.
    """
    spelled = {
        "help": help, "env": env, "flags": flags, "choices": choices, "hidden": hidden, "aliases": aliases,
    }  # fmt: skip
    variables = () if env is None else (env,) if isinstance(env, str) else tuple(env)
    meta = {
        _SPELLED: spelled,
        "help": help, "choices": tuple(choices), "hidden": hidden, "name": name, "aliases": frozenset(aliases),
        "flags": (*flags, *(alias for alias in aliases if alias.startswith("-"))),
        "env": (*variables, *(alias for alias in aliases if not alias.startswith("-"))) or None,
    }  # fmt: skip
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


def group(settings: type[Any]) -> Any:
    """Make a field that contains the settings of one concern."""
    return dataclasses.field(default_factory=settings, metadata={_GROUP: settings})


def like(settings: type[Any], option: str, **differences: Any) -> Any:
    """Make a field that is an option of another settings class; `differences` are arguments of `setting`."""
    spelled = next((field for field in _options_of(settings) if _name(field) == option), None)
    if spelled is None:
        raise TypeError(f"{settings.__name__} has no option {option}")
    made = setting(**{"default": _default(spelled), **spelled.metadata[_SPELLED], **differences})
    made.metadata = MappingProxyType({**made.metadata, _LIKE: (settings, option)})
    return made


def values_for(kind: type[Any], settings: Any) -> dict[str, Any]:
    """Return the values of the fields that are `like` options of `kind`, by their names there; None says nothing."""
    values = {}
    for field in dataclasses.fields(settings):
        origin, option = field.metadata.get(_LIKE, (None, ""))
        value = getattr(settings, field.name)
        if origin is kind and value is not None:
            values[option] = value
    return values


def options_among(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values whose name is that of an option of `kind`; None says nothing."""
    names = {_name(field) for field in _options_of(kind)}
    return {name: value for name, value in values.items() if name in names and value is not None}


class Setting(NamedTuple):
    """One option of a settings class, or of a group in it."""

    name: str
    """`http_port` for `--http-port`."""
    field: dataclasses.Field[Any]
    type: Any


def settings_in(kind: type[Any]) -> Iterator[Setting]:
    """Yield the options of a settings class in the order of its fields, those of a group in its place."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if _GROUP in field.metadata:
            yield from settings_in(field.metadata[_GROUP])
        elif "help" in field.metadata:
            yield Setting(_name(field), field, hints[field.name])


def _options_of(kind: type[Any]) -> Iterator[dataclasses.Field[Any]]:
    """Yield the fields that are options, without their types, which take long to read."""
    for field in dataclasses.fields(kind):
        if _GROUP in field.metadata:
            yield from _options_of(field.metadata[_GROUP])
        elif "help" in field.metadata:
            yield field


def values_in(settings: Any) -> dict[str, Any]:
    """Return the values of all options by their names."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        if _GROUP in field.metadata:
            values |= values_in(getattr(settings, field.name))
        elif "help" in field.metadata:
            values[_name(field)] = getattr(settings, field.name)
    return values


def changed(settings: T, **changes: Any) -> T:
    """Return the settings with other values of these options, whichever group has them."""
    own: dict[str, Any] = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        kind = field.metadata.get(_GROUP)
        if kind is None:
            name = _name(field)
            if name in changes:
                own[field.name] = changes.pop(name)
        elif theirs := {
            option.name: changes.pop(option.name) for option in settings_in(kind) if option.name in changes
        }:
            own[field.name] = changed(getattr(settings, field.name), **theirs)
    if changes:
        raise TypeError(f"{type(settings).__name__} has no {', '.join(changes)}")
    return dataclasses.replace(settings, **own)  # type: ignore[type-var]


def build(settings: type[T], **values: Any) -> T:
    """Make settings of the values of options by their names; the others have their defaults."""
    return changed(settings(), **values)


def flag(name: str) -> str:
    """Return `http_port` as it is typed."""
    return "--" + name.replace("_", "-")


def out_of_range(settings: Any, *fields: str, least: int = 0, above: bool = False) -> str | None:
    """Return one sentence about the first of these fields that is below `least`, or not above it; None: all are fine.

    A field without a value is fine; what is not finite is not.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name) if field.name in fields else None
        if value is None or ((value > least if above else value >= least) and value < float("inf")):
            continue
        rule = f"more than {least}" if above else f"at least {least}" if least else "0 or more"
        return f"{flag(_name(field))} must be {rule}"
    return None


def _name(field: dataclasses.Field[Any]) -> str:
    return field.metadata.get("name") or field.name


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


def _plain_type(annotation: Any) -> tuple[Any, bool]:
    """Return `(type, many)`: `int | None` is int, `list[str]` is str and repeatable."""
    if get_origin(annotation) in (list, tuple):
        return get_args(annotation)[0], True
    options = [arg for arg in get_args(annotation) if arg is not type(None)]
    return (options[0] if options else annotation), False


class SettingOption(click.Option):
    """An option of a settings class; `--help` leaves its aliases out."""

    def __init__(self, *arguments: Any, aliases: frozenset[str] = frozenset(), **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.aliases = aliases

    def documented(self) -> SettingOption:
        """Return the option without its aliases."""
        option = copy.copy(self)
        option.opts = [name for name in self.opts if name not in self.aliases]
        option.secondary_opts = [name for name in self.secondary_opts if name not in self.aliases]
        option.envvar = [name for name in self.envvar or () if name not in self.aliases] or None
        option.aliases = frozenset()
        return option

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return what `--help` has of it."""
        return self.documented().get_help_record(ctx) if self.aliases else super().get_help_record(ctx)


def _option(setting: Setting) -> SettingOption:
    field, meta = setting.field, setting.field.metadata
    kind, many = _plain_type(setting.type)
    name = flag(setting.name)
    if kind is bool:
        name = f"{name}/--no-{name.removeprefix('--')}"
    default = _default(field)
    return SettingOption(
        [setting.name, name, *meta["flags"]],
        aliases=meta["aliases"],
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
    """Return the click options of a settings class, in the order of its fields."""
    return [_option(option) for option in settings_in(settings)]


def command(
    settings: type[T],
    run: Callable[[T], Any],
    *,
    name: str,
    help: str,  # noqa: A002
    epilog: str = "",
    former: Sequence[LegacyFlag] = (),
    groups: Mapping[str, Sequence[str]] | None = None,
) -> FlagCommand:
    """Make a click command that builds `settings` from flags and environment and calls `run` with it.

    `former` flags of older versions are understood; `groups` order its `--help`.
    """

    def callback(**values: Any) -> Any:
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return run(build(settings, **plain))

    return FlagCommand(
        name, params=[*options(settings), version_option()], callback=callback, help=help, epilog=epilog,
        former=former, groups=groups,
        context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110},
    )  # fmt: skip


def version_option() -> click.Option:
    """Make `-V` and `--version`, as all programs have it."""

    def tell(context: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            click.echo(installed_version())
            context.exit()

    return click.Option(
        ["-V", "--version"], is_flag=True, is_eager=True, expose_value=False, callback=tell, help="Print the version."
    )


def installed_version() -> str:
    """Return the distribution's version."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("dynamo-pipelines")
    except PackageNotFoundError:
        return "unknown (not installed as a package)"


def parse(settings: type[T], argv: Sequence[str]) -> T:
    """Build `settings` from `argv` without running anything; raises `click.UsageError`."""
    results: list[T] = []
    command(settings, results.append, name="parse", help="").main(list(argv), standalone_mode=False)
    return results[0]
