"""`dynamo.runtime.logging`, as programs of the original import it; `dynamo.runtime.logs` does the work."""

from __future__ import annotations

import os
from typing import Final

from dynamo.runtime.logs import LEVELS, configure_logging

_TRUE: Final = ("1", "true", "yes", "on")


def configure_dynamo_logging(service_name: str | None = None, worker_id: int | None = None) -> None:
    """Log to standard error as `DYN_LOG` and `DYN_LOGGING_JSONL` say. The arguments change nothing."""
    configure_logging()


configure_logger = configure_dynamo_logging
"""What 0.1 to 0.3 called it."""


def log_level_mapping(level: str) -> int:
    """The number of a level of `DYN_LOG`; that of `info` for an unknown one."""
    return LEVELS.get(level.strip().lower(), LEVELS["info"])


def get_bool_env_var(name: str, default: str = "false") -> bool:
    """Whether a variable says 1, true, yes or on."""
    return os.getenv(name, default).strip().lower() in _TRUE
