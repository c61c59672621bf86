"""What is wrong with a bundle, its parts or a registry: one sentence with the next step."""

from __future__ import annotations

import click


class BundleError(click.ClickException):
    """One sentence for the user; exit code 1. Names and answers of others stand in it, so no control character does."""

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message))
