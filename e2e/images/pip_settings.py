"""How a build reaches the package index of this machine: pip's own settings, as a file for one build's eyes."""

from __future__ import annotations

import ast
import re
import sys

from e2e.kind.steps import run

CERTIFICATES = "/etc/ssl/certs"
_LINE = re.compile(r"(?P<level>\S+)\.(?P<key>[a-z-]+)=(?P<value>'.*'|\".*\")")
_WANTED = {"index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries", "cert"}


def of_this_machine() -> str:
    """A pip.conf with what this machine's files and PIP_* variables say about the index."""
    return as_file(run([sys.executable, "-m", "pip", "config", "list"], seconds=60))


def as_file(listed: str) -> str:
    """A pip.conf out of what `pip config list` prints, variables last; folders of this machine are left out."""
    found: dict[str, str] = {}
    lines = sorted((match for line in listed.splitlines() if (match := _LINE.fullmatch(line))), key=_rank)
    for match in lines:
        value = str(ast.literal_eval(match["value"]))
        if match["key"] in _WANTED and (match["key"] != "cert" or value.startswith(CERTIFICATES)):
            found[match["key"]] = value.replace("\n", "\n    ")
    return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in sorted(found.items()))


def hosts(settings: str) -> set[str]:
    """The hosts that a pip.conf names, without the public index, which packages speak of; no image may tell of them."""
    return set(re.findall(r"https?://(?:[^/@\s]*@)?([^/:\s]+)", settings)) - {"pypi.org"}


def _rank(match: re.Match[str]) -> int:
    """Later wins: files, what they say for `install` alone, variables."""
    return {"global": 0, ":env:": 2}.get(match["level"], 1)
