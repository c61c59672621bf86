"""Collects facts of the variables and folders that `dynamo up` is started with, for `diagnosis/environment.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dynamo.cli.diagnosis.environment import EnvironmentFacts
from dynamo.cli.diagnosis.file_fields import UpFact
from dynamo.cli.local.ports import is_free
from dynamo.cli.local.state import running, state_home

if TYPE_CHECKING:
    from dynamo.operator.api.v1alpha1 import DynamoPipeline


_PROXIES: Final = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_EXCEPTED: Final = ("no_proxy", "NO_PROXY")


def collect(environment: Mapping[str, str], folder: Path, *, of_file: bool) -> EnvironmentFacts:
    """Return what the rules look at, but for misspelt variables; with a file, workers run in its folder."""
    host, shadow = environment.get("DYN_HTTP_HOST", ""), folder / "dynamo"
    hides = of_file and (shadow / "__init__.py").is_file()
    excepted = next((name for name in _EXCEPTED if environment.get(name)), "")
    return EnvironmentFacts(
        host=host, host_error=_host_error(host), shadow=str(shadow) if hides else "",
        proxied=_proxied(environment, environment.get(excepted, "")), excepted=excepted,
    )  # fmt: skip


def _proxied(environment: Mapping[str, str], excepted: str) -> str:
    """Return the variable by which a client asks a proxy for 127.0.0.1; empty where none does."""
    names = (entry.strip() for entry in excepted.split(","))
    if any(name == "*" or name.startswith("127.") for name in names):
        return ""
    return next((name for name in _PROXIES if environment.get(name)), "")


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
