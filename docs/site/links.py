"""Links of a page as the site needs them: a file outside docs/ that a page links to becomes part of the site. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from datetime import date
from typing import Final

DOCS: Final = "docs/"
OUTSIDE: Final = "repository/"
"""Where the site has what lies outside docs/."""
_FENCE: Final = re.compile(r"^( *`{3,}).*?^\1 *$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?(?: \"[^\"]*\")?\))")
_FOREIGN: Final = re.compile(r"[a-z]+:")
_SOURCE: Final = re.compile(r"^\[\w+\]: (\S+) \".*?(\d{4})-(\d\d)\"$", re.MULTILINE)
MOST_DAYS: Final = 180
"""After so many days a source of the comparison is read again."""


def source(uri: str) -> str:
    """Return the repository's path of a page that the site calls `uri`."""
    return uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else DOCS + uri


def address(path: str) -> str:
    """Return what the site calls a file of the repository."""
    return path.removeprefix(DOCS) if path.startswith(DOCS) else OUTSIDE + path


def targets(path: str, text: str) -> Iterator[str]:
    """Yield the repository's paths that a page links to, as they are written: nobody knows yet whether they exist."""
    for link in _LINK.finditer(_FENCE.sub("", text)):
        if not _FOREIGN.match(link[2]):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))


def rewritten(path: str, text: str, exists: Callable[[str], bool]) -> str:
    """Return the page with every link to a file of the repository led to that file's place in the site."""
    here = posixpath.dirname(address(path)) or "."

    def lead(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        if _FOREIGN.match(link[2]) or not exists(target):
            return link[0]
        return f"{link[1]}{posixpath.relpath(address(target), here)}{link[3]}"

    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(lead, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(lead, text[end:])])


def stale(text: str, today: date) -> list[str]:
    """Return the sources of a comparison that were read too long ago; their titles have the month."""
    sources = ((url, date(int(year), int(month), 1)) for url, year, month in _SOURCE.findall(text))
    return [f"{url} was read in {read:%Y-%m}" for url, read in sources if (today - read).days > MOST_DAYS]
