"""Writes the pages of docs/reference/ that are made from code: `make generate`, held by tests/docs/test_references.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from docs.generate import errors_page, http_page, pipeline_page, status_page
from docs.generate.markdown import write

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "dynamopipeline.md": pipeline_page.render,
    "status.md": status_page.render,
    "http-api.md": http_page.render,
    "errors.md": errors_page.render,
}


def main(argv: list[str]) -> None:
    """Write the pages into the folder that is named."""
    write(Path(argv[0]), ((name, render()) for name, render in PAGES.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
