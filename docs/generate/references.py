"""Writes the pages of docs/reference/: `make generate`, held by tests/docs/test_references.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from docs.generate import commands_page, configuration_page, python_page
from docs.generate.api import errors_page, http_page, metrics_page
from docs.generate.cluster import helm_page, pipeline_page, status_page
from docs.generate.compatibility import pages as compatibility
from docs.generate.markdown import write
from docs.generate.support import page as support_page

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "cli.md": commands_page.render,
    "configuration.md": configuration_page.render,
    "python.md": python_page.render,
    "dynamopipeline.md": pipeline_page.render,
    "status.md": status_page.render,
    "http-api.md": http_page.render,
    "errors.md": errors_page.render,
    "metrics.md": metrics_page.render,
    "helm-values.md": helm_page.render,
    "support-matrix.md": support_page.render,
    **compatibility.PAGES,
}


def main(argv: list[str]) -> None:
    """Write the pages into the folder that is named."""
    write(Path(argv[0]), ((name, render()) for name, render in PAGES.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
