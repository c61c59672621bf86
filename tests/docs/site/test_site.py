"""What the site is made of: its navigation has every page once, and links lead to where the site has their files."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from docs.site import links

ROOT = Path(__file__).parents[3]
NAV = re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2], re.MULTILINE)


def test_navigation_has_every_page_once() -> None:
    """A new page needs its line; a page that goes loses it."""
    pages = {links.address(str(page.relative_to(ROOT))) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages - {*NAV}) == []
    assert len(NAV) == len({*NAV})
    assert [uri for uri in NAV if not (ROOT / links.source(uri)).is_file()] == []


@pytest.mark.parametrize(
    ("path", "text", "led"),
    [
        ("docs/a/b.md", "[x](../c.md#d)", "[x](../c.md#d)"),
        ("docs/a/b.md", "[x](../../SECURITY.md)", "[x](../repository/SECURITY.md)"),
        ("docs/index.md", "[x](../examples/m.yaml)", "[x](repository/examples/m.yaml)"),
        ("SECURITY.md", "[x](docs/c.md)", "[x](../c.md)"),
        ("bench/RESULTS.md", "[x](../SECURITY.md)", "[x](../SECURITY.md)"),
        ("docs/c.md", '[x](../SECURITY.md "t") [y](https://a.b/c.md) [z](#here)',
         '[x](repository/SECURITY.md "t") [y](https://a.b/c.md) [z](#here)'),
        ("docs/c.md", "```sh\n[x](../SECURITY.md)\n```\n", "```sh\n[x](../SECURITY.md)\n```\n"),
        ("docs/c.md", "[x](../absent.md)", "[x](../absent.md)"),
    ],
)  # fmt: skip
def test_a_link_leads_to_its_file_s_place(path: str, text: str, led: str) -> None:
    """Files outside docs/ lie below repository/; what isn't a file, a foreign address or code stays."""
    files = {"docs/c.md", "docs/index.md", "SECURITY.md", "examples/m.yaml", "bench/RESULTS.md"}
    assert links.rewritten(path, text, files.__contains__) == led


def test_targets_are_paths_of_the_repository() -> None:
    """As they are written; code and foreign addresses are none."""
    text = "[a](../x.md#y) [b](https://c.d/e) [c](z.yaml)\n```\n[d](no.md)\n```\n"
    assert list(links.targets("docs/a/b.md", text)) == ["docs/x.md", "docs/a/z.yaml"]


def test_old_sources_of_the_comparison_are_named() -> None:
    """By the month in a link's title; the README's own links have one."""
    text = '[a]: https://old.example "README, 2026-01"\n[b]: https://new.example "v2, 2026-10"\n'
    assert links.stale(text, date(2026, 11, 23)) == ["https://old.example was read in 2026-01"]
    assert len(links.stale((ROOT / "README.md").read_text(), date(2100, 1, 1))) >= 8
