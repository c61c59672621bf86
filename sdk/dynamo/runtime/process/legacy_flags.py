"""Command lines of several versions: flags that were renamed, need no saying any more, or lost their meaning.

`FlagCommand` is the click command of all programs here. Before click sees the words, `modern` puts today's flags in
the place of older ones; where one changes nothing or has another name, a line on standard error says so, and where
ignoring one would do something else than its user wants, it is refused with what to do instead. The tables
(`FORMER` of each program) are also what docs/reference/compatibility/index.md is made of; `PLANES` is common to all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

RENAMED: Final = "renamed"
NEEDLESS: Final = "accepted, changes nothing"
REFUSED: Final = "refused"


@dataclass(frozen=True)
class LegacyFlag:
    """One flag of NVIDIA Dynamo that is no setting here."""

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
    """NVIDIA Dynamo's variable."""

    @property
    def state(self) -> str:
        """Return the state in the words of docs/reference/compatibility/index.md."""
        return REFUSED if self.refused else RENAMED if self.to else NEEDLESS


def renamed(old: str, *new: str, switch: bool = False, env: str = "", says: str = "") -> LegacyFlag:
    """Make a flag `old` that is today's `new`; `{}` in it is the value."""
    return LegacyFlag((old,), says, new, switch=switch, env=env)


def needless(flags: str, why: str, *, switch: bool = False, plain: Sequence[str] = (), env: str = "") -> LegacyFlag:
    """Make flags (spellings, separated by blanks) that change nothing."""
    return LegacyFlag(tuple(flags.split()), why, switch=switch, plain=tuple(plain), env=env)


def refused(
    flags: str, instead: str, *, switch: bool = False, plain: Sequence[str] = (), keeps: Sequence[str] = (),
    env: str = "",
) -> LegacyFlag:  # fmt: skip
    """Make flags that can't be followed, but for values that are `plain` or that a setting `keeps`."""
    return LegacyFlag(
        tuple(flags.split()), instead, refused=True, switch=switch, plain=tuple(plain), keeps=tuple(keeps), env=env
    )


def modern(words: Sequence[str], legacy_flags: Sequence[LegacyFlag]) -> tuple[list[str], list[str]]:
    """Return `words` with today's flags, and a sentence for each older one.

    Raises `click.UsageError` for refused ones.
    """
    known = {flag: legacy for legacy in legacy_flags for flag in legacy.flags}
    out: list[str] = []
    notices: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        legacy = known.get(flag)
        if word == "--":
            return [*out, word, *rest], notices
        if legacy is None:
            out.append(word)
            continue
        if legacy.switch:
            if equals:  # dropped, `--x=false` would turn on what it turns off
                raise click.UsageError(f"{flag} takes no value: {word}")
        elif not equals:
            if not rest:
                raise click.UsageError(f"Option '{flag}' requires an argument.")
            value = rest.pop(0)
        out += _replaced(legacy, flag, value, notices)
    return out, notices


def _replaced(legacy: LegacyFlag, flag: str, value: str, notices: list[str]) -> list[str]:
    if value in legacy.keeps:
        return [f"{flag}={value}"]
    if value in legacy.plain and not legacy.switch:
        return []
    spelling = f"{flag} {value}".rstrip()
    if legacy.refused:
        raise click.UsageError(f"{spelling} is not there: {legacy.says}")
    if not legacy.to:
        notices.append(f"{spelling} changes nothing: {legacy.says}")
        return []
    new = [word.replace("{}", value) for word in legacy.to]
    notices.append(f"{flag} is now {' '.join(new)}" + (f": {legacy.says}" if legacy.says else ""))
    return new


class FlagCommand(click.Command):
    """A command that understands `former` flags, and shows its options in `groups` (title: beginnings of names)."""

    def __init__(
        self, *arguments: Any, former: Sequence[LegacyFlag] = (), groups: Mapping[str, Sequence[str]] | None = None,
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
        """Return the title under which `--help` shows it."""
        for title, beginnings in self.groups.items():
            if (param.name or "").startswith(tuple(beginnings)):
                return title
        return "Options"


OVER_NATS: Final = "requests, answers and events travel over NATS (NATS_SERVER)"
FOUND_IN_ETCD: Final = (
    "workers are found in etcd (ETCD_ENDPOINTS); `mem` serves one process; in a cluster the operator's own etcd is used"
)

PLANES: Final[tuple[LegacyFlag, ...]] = (
    needless("--request-plane", OVER_NATS, plain=["nats"], env="DYN_REQUEST_PLANE"),
    needless("--response-plane", OVER_NATS, plain=["nats"], env="DYN_RESPONSE_PLANE"),
    needless("--event-plane", OVER_NATS, plain=["nats"], env="DYN_EVENT_PLANE"),
    renamed("--store-kv", "--discovery-backend", "{}", env="DYN_STORE_KV"),
    refused("--discovery-backend", FOUND_IN_ETCD, keeps=["etcd", "mem"], env="DYN_DISCOVERY_BACKEND"),
    refused(
        "--nats-tls-ca-cert-path --nats-tls-client-cert-path --nats-tls-client-key-path",
        "set NATS_TLS_CA, NATS_TLS_CERT and NATS_TLS_KEY, and a tls:// address in NATS_SERVER",
        env="NATS_TLS_CA_CERT_PATH, NATS_TLS_CLIENT_CERT_PATH, NATS_TLS_CLIENT_KEY_PATH",
    ),
    refused("--nats-tls-insecure", "give the authority in NATS_TLS_CA", switch=True, env="NATS_TLS_INSECURE"),
    refused(
        "--tcp-tls-ca-cert-path --tcp-tls-cert-path --tcp-tls-client-ca-cert-path --tcp-tls-client-cert-path "
        "--tcp-tls-client-key-path --tcp-tls-key-path --tcp-tls-handshake-timeout --tcp-tls-server-name",
        "there is no TCP plane to encrypt; NATS_TLS_CA and tls:// in NATS_SERVER encrypt all traffic of requests",
        env="DYN_TCP_TLS_*",
    ),
    refused("--tcp-tls-insecure", "there is no TCP plane", switch=True, env="DYN_TCP_TLS_INSECURE"),
)
"""Common to all programs that talk to others."""
