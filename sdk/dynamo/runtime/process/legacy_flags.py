"""Command lines of several ages: flags that were renamed, need no saying any more, or lost their meaning.

`FlagCommand` is the click command of all programs here. Before click sees the words, `modern` puts today's flags in
the place of older ones; where one changes nothing or has another name, a line on standard error says so, and where
ignoring one would do something else than its user wants, it is refused with what to do instead. The tables
(`FORMER` of each program) are also what docs/compatibility.md is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

RENAMED: Final = "renamed"
NEEDLESS: Final = "accepted, changes nothing"
REFUSED: Final = "refused"


@dataclass(frozen=True)
class Former:
    """One flag of the original that is no setting here."""

    flags: tuple[str, ...]
    """Its spellings."""
    says: str
    """Why it changes nothing, or what to use instead; for a renamed one empty."""
    to: tuple[str, ...] = ()
    """Words to put in its place; in them `{}` is its value."""
    refused: bool = False
    switch: bool = False
    """It takes no value."""
    plain: tuple[str, ...] = ()
    """Values that mean what is done anyway: nothing is said of them."""
    keeps: tuple[str, ...] = ()
    """Values that a setting of the same name takes."""
    env: str = ""
    """The original's variable."""

    @property
    def state(self) -> str:
        """In the words of docs/compatibility.md."""
        return REFUSED if self.refused else RENAMED if self.to else NEEDLESS


def renamed(old: str, *new: str, switch: bool = False, env: str = "", says: str = "") -> Former:
    """`old` is today's `new`; `{}` in it is the value."""
    return Former((old,), says, new, switch=switch, env=env)


def needless(flags: str, why: str, *, switch: bool = False, plain: Sequence[str] = (), env: str = "") -> Former:
    """`flags` (spellings, separated by blanks) change nothing."""
    return Former(tuple(flags.split()), why, switch=switch, plain=tuple(plain), env=env)


def refused(
    flags: str, instead: str, *, switch: bool = False, plain: Sequence[str] = (), keeps: Sequence[str] = (),
    env: str = "",
) -> Former:  # fmt: skip
    """`flags` can't be followed, but for values that are `plain` or that a setting `keeps`."""
    return Former(
        tuple(flags.split()), instead, refused=True, switch=switch, plain=tuple(plain), keeps=tuple(keeps), env=env
    )


def modern(words: Sequence[str], formers: Sequence[Former]) -> tuple[list[str], list[str]]:
    """`words` with today's flags, and a sentence for each older one; raises `click.UsageError` for refused ones."""
    known = {flag: former for former in formers for flag in former.flags}
    out: list[str] = []
    notices: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        former = known.get(flag)
        if word == "--":
            return [*out, word, *rest], notices
        if former is None:
            out.append(word)
            continue
        if former.switch:
            if equals:  # dropped, `--x=false` would turn on what it turns off
                raise click.UsageError(f"{flag} takes no value: {word}")
        elif not equals:
            if not rest:
                raise click.UsageError(f"Option '{flag}' requires an argument.")
            value = rest.pop(0)
        out += _replaced(former, flag, value, notices)
    return out, notices


def _replaced(former: Former, flag: str, value: str, notices: list[str]) -> list[str]:
    if value in former.keeps:
        return [f"{flag}={value}"]
    if value in former.plain and not former.switch:
        return []
    said = f"{flag} {value}".rstrip()
    if former.refused:
        raise click.UsageError(f"{said} is not there: {former.says}")
    if not former.to:
        notices.append(f"{said} changes nothing: {former.says}")
        return []
    new = [word.replace("{}", value) for word in former.to]
    notices.append(f"{flag} is now {' '.join(new)}" + (f": {former.says}" if former.says else ""))
    return new


class FlagCommand(click.Command):
    """A command that understands `former` flags, and shows its options in `groups` (title: beginnings of names)."""

    def __init__(
        self, *arguments: Any, former: Sequence[Former] = (), groups: Mapping[str, Sequence[str]] | None = None,
        **named: Any,
    ) -> None:  # fmt: skip
        super().__init__(*arguments, **named)
        self.former, self.groups = tuple(former), dict(groups or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words, notices = modern(args, self.former)
        if not ctx.resilient_parsing:
            for sentence in notices:
                click.echo(f"note: {sentence}", err=True)
        return super().parse_args(ctx, words)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in (*self.groups, "Options")}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections[self.group_of(param)].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def group_of(self, param: click.Parameter) -> str:
        """The title under which `--help` shows it."""
        for title, beginnings in self.groups.items():
            if (param.name or "").startswith(tuple(beginnings)):
                return title
        return "Options"
