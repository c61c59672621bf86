"""Which frontends `dynamo top` and `dynamo explain` ask: one by its URL, this machine's, or a cluster's pipeline's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from dynamo.cli.commands.cluster_options import cluster_options, complete_pipeline
from dynamo.cli.local.state import RunState, running, state_home

if TYPE_CHECKING:
    from dynamo.cli.cluster.kubeconfig import Target
    from dynamo.cli.monitor.frontend import Frontend

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class FrontendGroup:
    """All frontends of a pipeline, one at least."""

    pipeline: str
    frontends: list[Frontend]


def pipeline_options(command: Command) -> Command:
    """Give a command `pipeline` and `target`, for a pipeline of a cluster."""
    option = click.option(
        "-p", "--pipeline", metavar="NAME", shell_complete=complete_pipeline, help="Pipeline of a cluster."
    )
    return option(cluster_options(short=False)(command))  # -n is an interval here


@contextlib.contextmanager
def frontend_groups(url: str | None, key: str, pipeline: str | None, target: Target) -> Iterator[list[FrontendGroup]]:
    """Yield whom to ask; raises where there are none."""
    if pipeline is not None:
        if url is not None:
            raise click.UsageError("either a URL or --pipeline")
        with _of_cluster(pipeline, target) as group:
            yield [group]
        return
    groups = _of_machine(key) if url is None else [FrontendGroup("", [_frontend(url, key)])]
    with contextlib.ExitStack() as open_frontends:
        for frontend in (frontend for group in groups for frontend in group.frontends):
            open_frontends.callback(frontend.close)
        yield groups


@contextlib.contextmanager
def _of_cluster(name: str, target: Target) -> Iterator[FrontendGroup]:
    """Yield all frontends that are ready, each behind a port of this machine: their system ports need no key."""
    from dynamo.cli.cluster.client import connect
    from dynamo.cli.cluster.pipelines.port_forward import all_frontends
    from dynamo.cli.monitor.frontend import Frontend

    with all_frontends(connect(target), name) as urls, contextlib.ExitStack() as open_frontends:
        frontends = [Frontend(url) for url in urls]
        for frontend in frontends:
            open_frontends.callback(frontend.close)
        yield FrontendGroup(name, frontends)


def runs_that_serve() -> list[RunState]:
    """Return what is up on this machine and answers; raises where nothing does."""
    up = [run for run, alive in running(state_home(os.environ)) if alive]
    serving = [run for run in up if run.url]
    if up and not serving:
        raise click.ClickException(f"{up[0].pipeline} is still starting: `dynamo ps` shows how far it is")
    if not serving:
        raise click.ClickException(
            "nothing serves on this machine: start a pipeline with `dynamo up FILE`, or name a frontend by its URL"
        )
    return serving


def _of_machine(key: str) -> list[FrontendGroup]:
    return [FrontendGroup(run.pipeline, [_frontend(url, key) for url in urls_of(run)]) for run in runs_that_serve()]


def urls_of(run: RunState) -> list[str]:
    """Return the addresses of all frontends of a run, the first one's first. Pure."""
    address = urlsplit(run.url)
    ports = [part.ports["http"] for part in run.parts if part.kind == "frontend" and "http" in part.ports]
    host = f"[{address.hostname}]" if ":" in (address.hostname or "") else address.hostname
    return list(dict.fromkeys([run.url, *(f"{address.scheme}://{host}:{port}" for port in ports)]))


def _frontend(url: str, key: str) -> Frontend:
    from dynamo.cli.load_test.client import api_url
    from dynamo.cli.monitor.frontend import Frontend

    return Frontend(api_url(url).removesuffix("/v1"), key)
