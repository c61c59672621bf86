"""`dynamo.runtime.logging`, as programs of NVIDIA Dynamo import it; `dynamo.runtime.process.logs` does the work."""

from __future__ import annotations

import logging
import os
from typing import Any, Final

from dynamo.runtime.process.logs import LEVELS, configure_logging
from dynamo.runtime.unsupported import LEFT_OUT, sentence

_TRUE: Final = ("1", "true", "yes", "on")


def configure_dynamo_logging(service_name: str | None = None, worker_id: int | None = None) -> None:
    """Log to standard error as `DYN_LOG` and `DYN_LOGGING_JSONL` say. The arguments change nothing."""
    configure_logging()
    # A program's own lines are of no module of ours, and count as much here.
    logging.getLogger().setLevel(logging.getLogger("dynamo").level)


configure_logger = configure_dynamo_logging
"""What 0.1 to 0.3 called it."""


def log_level_mapping(level: str) -> int:
    """Return the number of a level of `DYN_LOG`; that of `info` for an unknown one."""
    return LEVELS.get(level.strip().lower(), LEVELS["info"])


def get_bool_env_var(name: str, default: str = "false") -> bool:
    """Tell whether a variable says 1, true, yes or on."""
    return os.getenv(name, default).strip().lower() in _TRUE


def __getattr__(name: str) -> Any:
    if f"logging.{name}" in LEFT_OUT:
        raise ImportError(sentence(f"logging.{name}"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
