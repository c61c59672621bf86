"""The functions of NVIDIA Dynamo's native module that are in no other package here."""

from __future__ import annotations

import logging
from typing import Final

_LEVELS: Final = {"trace": logging.DEBUG, "warn": logging.WARNING}


def get_tool_parser_names() -> list[str]:
    """Return names for `--dyn-tool-call-parser`."""
    from dynamo.llm.parsers.parser_names import tool_parser_names

    return tool_parser_names()


def get_reasoning_parser_names() -> list[str]:
    """Return names for `--dyn-reasoning-parser`."""
    from dynamo.llm.parsers.parser_names import reasoning_parser_names

    return reasoning_parser_names()


def log_message(level: str, message: str, module: str, file: str, line: int) -> None:
    """Log a line as of another place in the code; `level` is error, warn, info, debug or trace."""
    logger = logging.getLogger(module)
    number = _LEVELS.get(level.lower()) or logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    if logger.isEnabledFor(number):
        logger.handle(logger.makeRecord(module, number, file, line, message, (), None))
