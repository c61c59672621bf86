"""MkDocs' hooks: files outside docs/ that pages link to, and diagrams drawn without asking a foreign host."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final

from docs.site import links
from mkdocs.structure.files import File

ROOT: Final = Path(__file__).parents[2]
MERMAID: Final = "assets/vendor/mermaid.min.js"
_DIAGRAM: Final = 'class="mermaid"'


def on_pre_build(config: Any) -> None:
    """Name the sources of the README's comparison that should be read again."""
    for line in links.stale((ROOT / "README.md").read_text(), date.today()):
        logging.getLogger("mkdocs.hooks").info("README: %s: read it again", line)


def on_files(files: Any, config: Any) -> Any:
    """Add what pages link to outside docs/, what those pages link to in turn, and mermaid."""
    vendored = Path(os.environ["MERMAID"])
    files.append(File.generated(config, MERMAID, abs_src_path=str(vendored.resolve())))
    waiting = [links.source(file.src_uri) for file in files if file.is_documentation_page()]
    waiting += [links.source(uri) for uri in _named(config.nav)]
    known: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in known or path.startswith("..") or not (ROOT / path).is_file():
            continue
        known.add(path)
        if not path.startswith(links.DOCS):
            files.append(File.generated(config, links.address(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            waiting += links.targets(path, (ROOT / path).read_text())
    return files


def _named(nav: Any) -> Iterator[str]:
    """Yield the pages of a navigation, however deep."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _named(entry)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to files of the repository to their places in the site."""
    return links.rewritten(links.source(page.file.src_uri), markdown, lambda path: (ROOT / path).is_file())


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Load mermaid before the theme does, which would ask a foreign host for it."""
    if _DIAGRAM not in output:
        return output
    up = "../" * page.file.dest_uri.count("/")
    return output.replace("</head>", f'<script src="{up}{MERMAID}"></script></head>', 1)
