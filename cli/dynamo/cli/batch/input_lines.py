"""What a line of a batch file asks. Pure, but for reading the file line by line.

Two forms, which may be mixed: NVIDIA Dynamo's `{"text": PROMPT}`, and OpenAI's batch file,
`{"custom_id": ID, "method": "POST", "url": PATH, "body": {...}}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

URLS: Final = ("/v1/chat/completions", "/v1/completions")
LONGEST: Final = 64 * 1024 * 1024
"""Bytes that a line may have."""
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line with `text`: one turn of a chat."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A line of OpenAI's form: a request as it is."""

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bad:
    """A line that asks nothing that could be answered."""

    number: int
    reason: str
    custom_id: str | None = None
    """Set where it is of OpenAI's form."""


Entry = Prompt | Asked | Bad


def read_entry(number: int, line: bytes) -> Entry:
    """Return what line `number` (from 1) asks."""
    if len(line) > LONGEST:
        return Bad(number, f"the line is longer than {LONGEST >> 20} MiB")
    try:
        entry = json.loads(line)
    except ValueError as error:  # UnicodeDecodeError is one, too
        return Bad(number, f"no JSON: {error}")
    except RecursionError:
        return Bad(number, "no JSON that can be read: it is nested too deeply")
    if not isinstance(entry, dict):
        return Bad(number, "no JSON object")
    if "custom_id" in entry or "url" in entry or "body" in entry:
        return _asked(number, entry)
    if "text" not in entry:
        return Bad(number, 'neither "text" nor "custom_id", "method", "url" and "body"')
    if not isinstance(entry["text"], str):
        return Bad(number, '"text" must be a string')
    return Prompt(number, entry["text"])


def _asked(number: int, entry: dict[str, Any]) -> Entry:
    name = entry.get("custom_id")
    if not isinstance(name, str) or not name:
        return Bad(number, '"custom_id" must be a string that is not empty', "")
    if entry.get("method") != "POST":
        return Bad(number, '"method" must be "POST"', name)
    if entry.get("url") not in URLS:
        return Bad(number, f'"url" must be one of {", ".join(URLS)}', name)
    if not isinstance(entry.get("body"), dict):
        return Bad(number, '"body" must be an object', name)
    return Asked(number, name, entry["url"], entry["body"])


class Reader:
    """The entries of a file, in order; blank lines are none. A `custom_id` counts the first time only."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._names: set[str] = set()

    def __iter__(self) -> Iterator[Entry]:
        for number, line in lines(self._file):
            entry = read_entry(number, line)
            if isinstance(entry, Asked):
                if entry.custom_id in self._names:
                    entry = Bad(number, f"custom_id {entry.custom_id!r} is there twice", entry.custom_id)
                else:
                    self._names.add(entry.custom_id)
            yield entry


def lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers.

    Of one that is too long, a little more than is allowed.
    """
    number = 0
    while line := file.readline(LONGEST + 2):
        number += 1
        rest = line
        while not rest.endswith(b"\n") and (rest := file.readline(LONGEST)):
            pass
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.strip():
            yield number, line
