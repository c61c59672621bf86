"""Flags of older ages: put into today's words, told, or refused with what to do instead."""

from __future__ import annotations

import dataclasses

import click
import pytest
from click.testing import CliRunner

from dynamo.runtime.process.legacy_flags import LegacyFlag, modern, needless, refused, renamed
from dynamo.runtime.process.settings import command, setting

FORMERS = (
    renamed("--store-kv", "--discovery-backend", "{}"),
    renamed("--load-aware", "--credit", "0", "--no-events", switch=True),
    needless("--planes --plane", "there is one", plain=["nats"]),
    needless("--no-strip", "nothing is stripped", switch=True),
    refused("--mode", "choose a or b", keeps=["a", "b"], plain=["none"]),
    refused("--grpc", "only HTTP is served", switch=True),
)


@pytest.mark.parametrize(
    ("words", "now", "texts"),
    [
        ("--port 1 x", "--port 1 x", []),
        ("--store-kv mem", "--discovery-backend mem", ["--store-kv is now --discovery-backend mem"]),
        ("--store-kv=mem y", "--discovery-backend mem y", ["--store-kv is now --discovery-backend mem"]),
        ("--load-aware y", "--credit 0 --no-events y", ["--load-aware is now --credit 0 --no-events"]),
        ("--plane tcp y", "y", ["--plane tcp changes nothing: there is one"]),
        ("--planes=nats y", "y", []),
        ("--no-strip y", "y", ["--no-strip changes nothing: nothing is stripped"]),
        ("--mode a", "--mode=a", []),
        ("--mode none", "", []),
        ("--port 1 -- --grpc", "--port 1 -- --grpc", []),
    ],
)
def test_older_words_become_todays(words: str, now: str, texts: list[str]) -> None:
    """The rest of the line stays as it is; what stands behind -- is nobody's."""
    assert modern(words.split(), FORMERS) == (now.split(), texts)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--grpc", "--grpc is not there: only HTTP is served"),
        ("--mode=c", "--mode c is not there: choose a or b"),
        ("--store-kv", "requires an argument"),
        ("--load-aware=false", "--load-aware takes no value"),
        ("--no-strip=", "--no-strip takes no value"),
    ],
)
def test_what_lost_its_meaning_is_refused(words: str, says: str) -> None:
    """One sentence with what to do instead."""
    with pytest.raises(click.UsageError) as caught:
        modern(words.split(), FORMERS)
    assert says in caught.value.message


def test_a_flag_has_one_state() -> None:
    """The words of the table in docs/reference/compatibility/index.md."""
    states = [former.state for former in FORMERS]
    assert states == ["renamed"] * 2 + ["accepted, changes nothing"] * 2 + ["refused"] * 2
    assert LegacyFlag(("--x",), "y").state == "accepted, changes nothing"


@dataclasses.dataclass(frozen=True)
class Example:
    """Two settings."""

    http_port: int = setting(1, "Port.")
    discovery_backend: str = setting("etcd", "Where.")


def test_a_command_tells_and_goes_on() -> None:
    """Notices are on standard error, help is in groups, and values arrive."""
    seen: list[Example] = []
    made = command(Example, seen.append, name="x", help="H", former=FORMERS, groups={"Listening": ("http_",)})
    done = CliRunner().invoke(made, ["--store-kv", "mem"])
    assert done.exit_code == 0, done.output
    assert done.stderr == "note: --store-kv is now --discovery-backend mem\n"
    assert seen == [Example(1, "mem")]
    output = CliRunner().invoke(made, ["--help"]).output
    assert (
        output.index("Listening:")
        < output.index("--http-port")
        < output.index("Options:")
        < output.index("--discovery")
    )
    assert CliRunner().invoke(made, ["--grpc"]).exit_code == 2
