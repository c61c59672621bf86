"""`{% generation %}…{% endgeneration %}`: marks the assistant's turns for training; renders its body.

A module of its own since it needs Jinja at import, which `chat_template.py` avoids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import nodes
from jinja2.ext import Extension

if TYPE_CHECKING:
    from jinja2.parser import Parser


class GenerationTag(Extension):
    """Accept the tag that templates of trainable models carry."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
