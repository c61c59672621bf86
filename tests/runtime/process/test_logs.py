"""Logging: filters, formats, colours."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.logs import TRACE, configure_logging, levels, parse_filter, without_secrets

NAMES = ("", "dynamo", "dynamo.llm", "dynamo.llm.files")


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
    log = logging.getLogger("dynamo.llm.files")
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
    """The original's filter syntax."""
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
    assert lines[0].endswith(" llm.files: hello")
    assert lines[1].endswith(" WARNING llm.files: careful")
    assert "fine" not in written()
    assert "noise" not in written()
    assert lines[-1] == "ValueError: boom"


def test_json_lines() -> None:
    """`DYN_LOGGING_JSONL=1`: every line is one JSON object, exceptions included."""
    records = [json.loads(line) for line in written({"DYN_LOGGING_JSONL": "1"}).splitlines()]
    assert [r["message"] for r in records] == ["hello", "careful", "broken"]
    assert records[0]["level"] == "INFO"
    assert records[0]["target"] == "dynamo.llm.files"
    assert records[0]["time"].endswith("Z")
    assert "ValueError: boom" in records[2]["exception"]


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
