"""The variables that our programs read, gathered from their settings: what is nearly one of them is misspelt."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import click

from dynamo.cli.diagnosis.environment import VariableFact, misspelt

_PLAIN: Final = (
    "DYN_CACHE_DIR", "DYN_CONSOLE", "DYN_DIRECT_FRAMES", "DYN_ENDPOINT", "DYN_ENDPOINT_PATH",
    "DYN_FRONTEND_CHILD_PORT", "DYN_FRONTEND_CHILD_SOCKET", "DYN_LOG", "DYN_LOGGING_JSONL", "DYN_NODE_RANK",
    "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", "DYN_SDK_DISABLE_ANSI_LOGGING", "DYN_TOKEN_ECHO_DELAY_MS",
    "DYN_UP_RUN",
)  # fmt: skip
"""Those that are read without a flag."""
_FILES: Final = ("DYN_TLS_CERT_PATH", "DYN_TLS_KEY_PATH", "DYN_TLS_CLIENT_CA_CERT_PATH", "DYN_API_KEYS_FILE")
"""Those that name a file, without which no frontend begins."""


def misspelt_in(environment: Mapping[str, str]) -> tuple[VariableFact, ...]:
    """Return the variables that nothing reads, each with the one that was meant."""
    return misspelt(environment, known_variables()) if any(name.startswith("DYN_") for name in environment) else ()


def unreadable() -> tuple[str, ...]:
    """Return why our programs would refuse the variables of this process; each says the first that it can't read."""
    from dynamo.cli.commands.up import up
    from dynamo.frontend.settings import FrontendSettings
    from dynamo.runtime.errors import InvalidArgument
    from dynamo.runtime.process.logs import parse_filter
    from dynamo.runtime.process.settings import parse
    from dynamo.worker.settings import WorkerSettings

    said = [f"{name}: no file that can be read" for name in _FILES if _is_unreadable(os.environ.get(name, ""))]
    programs: tuple[Callable[[], object], ...] = (
        lambda: parse_filter(os.environ.get("DYN_LOG", "")), lambda: up.make_context("up", [os.devnull]),
        lambda: parse(FrontendSettings, []), lambda: parse(WorkerSettings, []),
    )  # fmt: skip
    for program in programs:
        try:
            program()
        except click.UsageError as error:
            said.append(error.format_message())
        except InvalidArgument as error:
            said.append(str(error))
    return tuple(dict.fromkeys(text for text in said if "DYN_" in text))


def _is_unreadable(path: str) -> bool:
    return bool(path) and not (os.path.isfile(path) and os.access(path, os.R_OK))


def known_variables() -> frozenset[str]:
    """Return the names that our programs read."""
    return frozenset((*_PLAIN, *_of_settings(), *_of_others()))


def _of_settings() -> Iterator[str]:
    from dynamo.cli.run.settings import RunSettings
    from dynamo.frontend.settings import FrontendSettings
    from dynamo.router.settings import RouterSettings
    from dynamo.runtime.process.settings import settings_in
    from dynamo.worker.settings import WorkerSettings

    for kind in (FrontendSettings, WorkerSettings, RunSettings, RouterSettings):
        for setting in settings_in(kind):
            yield from setting.field.metadata.get("env") or ()


def _of_others() -> Iterator[str]:
    """Yield NVIDIA Dynamo's variables that are passed over, or refused by name."""
    from dynamo.frontend.legacy_flags import FORMER
    from dynamo.router.legacy_flags import FORMER as OF_ROUTER
    from dynamo.worker.programs.entry import FORMER as OF_WORKERS

    for flag in (*FORMER, *OF_ROUTER, *(flag for flags in OF_WORKERS.values() for flag in flags)):
        yield from (name.strip() for name in flag.env.split(",") if name.strip())
