"""Logging: filters, formats, colours."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.logs import LONGEST_MESSAGE, TRACE, configure_logging, levels, parse_filter, without_secrets
from dynamo.runtime.process.printable import one_line, visible, visible_json

NAMES = ("", "dynamo", "dynamo.llm", "dynamo.llm.models.file_cache")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in NAMES}
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(env: dict[str, str] | None = None, stream: io.StringIO | None = None, verbosity: int = 0) -> str:
    out = stream if stream is not None else io.StringIO()
    configure_logging(verbosity, env=env or {}, stream=out)
    log = logging.getLogger("dynamo.llm.models.file_cache")
    log.debug("fine %d", 1)
    log.info("hello")
    log.warning("careful")
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("broken")
    logging.getLogger("other").info("noise")
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("debug", {"": logging.DEBUG}),
        ("info,dynamo.llm=debug", {"": logging.INFO, "dynamo.llm": logging.DEBUG}),
        (" warn , dynamo::llm=TRACE,", {"": logging.WARNING, "dynamo.llm": TRACE}),
        ("off", {"": logging.CRITICAL + 10}),
    ],
)
def test_filters(text: str, expected: dict[str, int]) -> None:
    """NVIDIA Dynamo's filter syntax."""
    assert parse_filter(text) == expected


@pytest.mark.parametrize("text", ["loud", "dynamo.llm=loud", "dynamo=", "="])
def test_a_malformed_filter(text: str) -> None:
    """One sentence that names the variable and the levels."""
    with pytest.raises(InvalidArgument, match=r"DYN_LOG: .* is no level; use one of trace, debug"):
        parse_filter(text)


@pytest.mark.parametrize(
    ("verbosity", "env", "expected"),
    [
        (0, "", {"": logging.WARNING, "dynamo": logging.INFO}),
        (1, "", {"": logging.INFO, "dynamo": logging.DEBUG}),
        (2, "", {"": logging.DEBUG, "dynamo": TRACE}),
        (9, "", {"": logging.DEBUG, "dynamo": TRACE}),
        (0, "error", {"": logging.ERROR, "dynamo": logging.ERROR}),
        (1, "error", {"": logging.INFO, "dynamo": logging.DEBUG}),
        (1, "dynamo.llm=error", {"": logging.INFO, "dynamo": logging.DEBUG, "dynamo.llm": logging.ERROR}),
    ],
)
def test_flag_beats_environment(verbosity: int, env: str, expected: dict[str, int]) -> None:
    """`-v` sets the general levels, whatever `DYN_LOG` says of them; what it names stays."""
    assert levels(verbosity, {"DYN_LOG": env}) == expected


def test_readable_by_default() -> None:
    """A line has time, module and message; the level where it is not INFO; no colour off a terminal."""
    lines = written().splitlines()
    assert lines[0].endswith(" llm.models.file_cache: hello")
    assert lines[1].endswith(" WARNING llm.models.file_cache: careful")
    assert "fine" not in written()
    assert "noise" not in written()
    assert lines[-1] == "  ValueError: boom"  # no line but a record's own begins at the left: see the forgeries below


def test_json_lines() -> None:
    """`DYN_LOGGING_JSONL=1`: every line is one JSON object, exceptions included."""
    records = [json.loads(line) for line in written({"DYN_LOGGING_JSONL": "1"}).splitlines()]
    assert [r["message"] for r in records] == ["hello", "careful", "broken"]
    assert records[0]["level"] == "INFO"
    assert records[0]["target"] == "dynamo.llm.models.file_cache"
    assert records[0]["time"].endswith("Z")
    assert "ValueError: boom" in records[2]["exception"]


CONTROLS = [
    "\n00:58:00 ERROR runtime.auth: user admin signed in", "\r00:58:00 ERROR x: y", "\x1b[31m", "\x9b31m",
    "\x07\x08\x7f", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\u200f", "\ufeff",
    "\U000e0041", "\ud800",
]  # fmt: skip


def shown(message: str, env: dict[str, str], error: Exception | None = None) -> str:
    out = io.StringIO()
    configure_logging(env=env, stream=out)
    logging.getLogger("dynamo.x").info("got %s", message, exc_info=error)
    return out.getvalue()


@pytest.mark.parametrize("env", [{}, {"DYN_LOGGING_JSONL": "1"}], ids=["readable", "json"])
@pytest.mark.parametrize("control", CONTROLS)
def test_nobody_writes_a_line_of_his_own(control: str, env: dict[str, str]) -> None:
    """A message is one line without control characters, and so is each line of a traceback, which is indented."""
    text = shown(f"a{control}b", env)
    assert len(text.splitlines()) == 1
    assert visible(text[:-1]) == text[:-1]
    if env:
        assert json.loads(text)["message"] == f"got a{control}b"
        return
    first, *rest = shown("m", env, ValueError(f"a{control}b")).splitlines()
    assert first.endswith("x: got m")
    assert rest
    assert all(line.startswith("  ") for line in rest)


@pytest.mark.parametrize("env", [{}, {"DYN_LOGGING_JSONL": "1"}], ids=["readable", "json"])
@pytest.mark.parametrize("piece", ["a", "\x1b", "é", "\U0001f600", "\n"])
def test_a_message_is_cut(piece: str, env: dict[str, str]) -> None:
    """At 8 KB of what is written, with the size of all of it; a traceback likewise, at both ends of it."""
    text = shown(piece * 5_000_000, env)
    assert len(text) < 80_000
    assert "characters)" in text
    if not env:
        assert len(text.encode()) < LONGEST_MESSAGE + 200
    assert len(shown("m", env, ValueError(piece * 5_000_000))) < 400_000


@given(st.text(max_size=300), st.integers(0, 200))
def test_what_is_shown_is_printable(text: str, most: int) -> None:
    """Whatever a stranger writes: no control character is left, the bound holds, ordinary text is as it was."""
    line = one_line(text, most)
    assert visible(line) == line
    assert len(line.splitlines()) <= 1
    assert len(line.encode()) <= most + 60
    assert json.loads(visible_json(json.dumps(text, ensure_ascii=False))) == text
    assert visible("Grüße 你好 👩‍👩‍👧 a\tb", tabs=True) == "Grüße 你好 👩‍👩‍👧 a\tb"


def test_colours_on_a_terminal_only() -> None:
    """Colour on a terminal, unless `NO_COLOR` is set."""
    assert "\x1b[33mWARNING" in written(stream=Terminal())
    assert "\x1b" not in written({"NO_COLOR": "1"}, Terminal())
    assert "\x1b" not in written()


def test_verbosity() -> None:
    """`-v` shows debug lines of ours, `DYN_LOG` of single modules."""
    assert "fine 1" in written(verbosity=1)
    assert "fine 1" in written({"DYN_LOG": "info,dynamo.llm=debug"})


def test_configuring_twice_writes_once() -> None:
    """A second call replaces the first."""
    out = io.StringIO()
    configure_logging(env={}, stream=io.StringIO())
    configure_logging(env={}, stream=out)
    logging.getLogger("dynamo").info("once")
    assert out.getvalue().count("once") == 1


def test_urls_lose_their_secrets() -> None:
    """What stands before the host in a URL never reaches a log."""
    assert without_secrets("waiting for nats://u:p@h:4222, nats://x") == "waiting for nats://h:4222, nats://x"
