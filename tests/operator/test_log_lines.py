"""What the operator logs: one line for one message, whatever tenants write into their objects."""

from __future__ import annotations

import logging
import sys

from dynamo.operator.main import OneLineFormatter

FORGED = "00:00:00 INFO dynamo.operator: user admin signed in"


def record(message: str, error: BaseException | None = None) -> logging.LogRecord:
    """Make the record of a message."""
    about = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("dynamo.operator", logging.INFO, __file__, 1, "said: %s", (message,), about)


def test_a_message_is_one_line() -> None:
    """Line breaks of any kind and a terminal's commands are written as escapes; other text stays as it is."""
    text = OneLineFormatter("%(message)s").format(record(f"a\n{FORGED}\r\x1b[2J\x85\u2028é"))
    assert text == f"said: a\\x0a{FORGED}\\x0d\\x1b[2J\\x85\\u2028é"


def test_a_traceback_is_indented() -> None:
    """Its lines can be told from messages, though an error's own text has several."""
    try:
        raise ValueError(f"x\n{FORGED}")
    except ValueError:
        error = sys.exc_info()[1]
    lines = OneLineFormatter("%(message)s").format(record("b", error)).split("\n")
    assert lines[0] == "said: b"
    assert all(line.startswith("  ") for line in lines[1:])
