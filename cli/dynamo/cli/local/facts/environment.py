"""Collects facts of the variables and folders that `dynamo up` is started with, for `diagnosis/environment.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dynamo.cli.diagnosis.environment import EnvironmentFacts, misspelt
from dynamo.cli.diagnosis.file_fields import UpFact
from dynamo.cli.local.ports import is_free
from dynamo.cli.local.state import running, state_home

if TYPE_CHECKING:
    from dynamo.operator.api.v1alpha1 import DynamoPipeline

_OURS: Final = "DYN_"
_OF_OTHERS: Final = ("DYN_TRTLLM_", "DYN_VLLM_", "DYN_SGLANG_")
"""Variables of programs that NVIDIA Dynamo has for each engine: taken by them, and by no settings class."""
_PLAIN: Final = (
    "DYN_CACHE_DIR", "DYN_CONSOLE", "DYN_DIRECT_FRAMES", "DYN_ENDPOINT", "DYN_ENDPOINT_PATH", "DYN_FRONTEND_CHILD_PORT",
    "DYN_FRONTEND_CHILD_SOCKET", "DYN_LOG", "DYN_LOGGING_JSONL", "DYN_NODE_RANK",
    "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", "DYN_SDK_DISABLE_ANSI_LOGGING", "DYN_TOKEN_ECHO_DELAY_MS",
    "DYN_UP_RUN",
)  # fmt: skip
"""Those that are read without a flag."""


def collect(environment: Mapping[str, str], folder: Path, *, of_file: bool) -> EnvironmentFacts:
    """Return what the rules look at; with a file, its folder is where workers would run."""
    names = [name for name in environment if name.startswith(_OURS) and not name.startswith(_OF_OTHERS)]
    host = environment.get("DYN_HTTP_HOST", "")
    shadow = folder / "dynamo"
    return EnvironmentFacts(
        misspelt(names, known_variables()) if names else (), host, _host_error(host),
        str(shadow) if of_file and (shadow / "__init__.py").is_file() else "",
    )  # fmt: skip


def notes(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield what `dynamo up` says of variables that nothing reads."""
    for variable in collect(environment, Path(), of_file=False).misspelt:
        yield f"nothing reads the variable {variable.name}: did you mean {variable.meant}?"


def known_variables() -> frozenset[str]:
    """Return the names that our programs read."""
    return frozenset(_PLAIN) | frozenset(_of_settings()) | frozenset(_of_commands())


def _of_settings() -> Iterator[str]:
    from dynamo.cli.run.settings import RunSettings
    from dynamo.frontend.settings import FrontendSettings
    from dynamo.router.settings import RouterSettings
    from dynamo.runtime.process.settings import settings_in
    from dynamo.worker.settings import WorkerSettings

    for kind in (FrontendSettings, WorkerSettings, RunSettings, RouterSettings):
        for setting in settings_in(kind):
            yield from setting.field.metadata.get("env") or ()


def _of_commands() -> Iterator[str]:
    """Yield the variables of `dynamo up`, and those of NVIDIA Dynamo's that are passed over or refused by name."""
    from dynamo.cli.commands.up import up
    from dynamo.frontend.legacy_flags import FORMER
    from dynamo.router.legacy_flags import FORMER as OF_ROUTER
    from dynamo.worker.programs.entry import FORMER as OF_WORKERS

    for parameter in up.params:
        if isinstance(parameter.envvar, str):
            yield parameter.envvar
    for flag in (*FORMER, *OF_ROUTER, *(flag for flags in OF_WORKERS.values() for flag in flags)):
        yield from (name.strip() for name in flag.env.split(",") if name.strip())


def _host_error(host: str) -> str:
    """Return why nobody can listen there; empty where somebody can, or none is named."""
    if not host:
        return ""
    try:
        is_free(0, host)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def wanted(pipelines: Sequence[DynamoPipeline], file: str) -> tuple[UpFact, ...]:
    """Return the pipelines of a file as they would be up."""
    from dynamo.operator.plan.plan import Environment, plan

    here = Environment(("",), "", local=True)
    return tuple(UpFact(p.name, file, plan(p, here).model, "") for p in pipelines)


def are_up(environment: Mapping[str, str]) -> tuple[UpFact, ...]:
    """Return the pipelines that are up on this machine."""
    up = (state for state, alive in running(state_home(environment)) if alive)
    return tuple(UpFact(state.pipeline, state.file, state.model, state.url) for state in up)
