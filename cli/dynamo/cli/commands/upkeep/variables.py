"""The variables that our programs read, gathered from their settings: what is nearly one of them is misspelt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dynamo.cli.diagnosis.environment import VariableFact, misspelt

_PLAIN: Final = (
    "DYN_CACHE_DIR", "DYN_CONSOLE", "DYN_DIRECT_FRAMES", "DYN_ENDPOINT", "DYN_ENDPOINT_PATH",
    "DYN_FRONTEND_CHILD_PORT", "DYN_FRONTEND_CHILD_SOCKET", "DYN_LOG", "DYN_LOGGING_JSONL", "DYN_NODE_RANK",
    "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", "DYN_SDK_DISABLE_ANSI_LOGGING", "DYN_TOKEN_ECHO_DELAY_MS",
    "DYN_UP_RUN",
)  # fmt: skip
"""Those that are read without a flag."""


def misspelt_in(environment: Mapping[str, str]) -> tuple[VariableFact, ...]:
    """Return the variables that nothing reads, each with the one that was meant."""
    return misspelt(environment, known_variables()) if any(name.startswith("DYN_") for name in environment) else ()


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
