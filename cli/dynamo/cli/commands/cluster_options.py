"""The options that every command of a cluster has, and what Tab offers for them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dynamo.cli.cluster import kubeconfig as kubeconfigs

if TYPE_CHECKING:
    from dynamo.cli.cluster.client import Cluster

Command = TypeVar("Command", bound=Callable[..., Any])
_TAB_SECONDS = 3.0

EXIT_CODES = "Exit codes: 0 well, 1 failed, 2 usage, 130 interrupted."


def cluster_options(namespace_help: str = "Namespace. Default: the context's.") -> Callable[[Command], Command]:
    """Gives a command `target`, made from --kubeconfig, --context and --namespace."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_target(
            *args: Any, kubeconfig: str | None, context: str | None, namespace: str | None, **kwargs: Any
        ) -> Any:
            from dynamo.cli.cluster.client import Target

            return command(*args, target=Target(kubeconfig, context, namespace), **kwargs)

        found: Any = with_target
        for option in reversed(_options(namespace_help)):
            found = option(found)
        return found  # type: ignore[no-any-return]

    return decorate


def _options(namespace_help: str) -> list[Callable[[Any], Any]]:
    return [
        click.option("-n", "--namespace", shell_complete=complete_namespace, help=namespace_help),
        click.option(
            "--context", shell_complete=complete_context, help="Context of the kubeconfig. Default: the one in use."
        ),
        click.option(
            "--kubeconfig", type=click.Path(dir_okay=False),
            help="File with clusters and credentials. Default: KUBECONFIG, else ~/.kube/config.",
        ),
    ]  # fmt: skip


def complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Contexts of the kubeconfig."""
    return _starting(incomplete, lambda: iter(_contexts(ctx)))


def complete_namespace(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Namespaces of the cluster."""
    return _starting(incomplete, lambda: _names(_connected(ctx), "/api/v1/namespaces"))


def complete_pipeline(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Pipelines of the namespace that the words so far mean."""

    def found() -> Iterator[str]:
        from dynamo.operator.kinds import PIPELINES

        cluster = _connected(ctx)
        return _names(cluster, PIPELINES.path(cluster.namespace))

    return _starting(incomplete, found)


def _starting(incomplete: str, names: Callable[[], Iterator[str]]) -> list[str]:
    """Tab never speaks of errors: where something is wrong, it has nothing to offer."""
    try:
        return sorted(name for name in names() if name.startswith(incomplete))
    except Exception:
        return []


def _contexts(ctx: click.Context) -> list[str]:
    paths = kubeconfigs.files(ctx.params.get("kubeconfig"), os.environ)
    return [context.name for context in kubeconfigs.read(paths).contexts]


def _connected(ctx: click.Context) -> Cluster:
    from dynamo.cli.cluster.client import Target, connect

    given = ctx.params
    return connect(Target(given.get("kubeconfig"), given.get("context"), given.get("namespace")))


def _names(cluster: Cluster, path: str) -> Iterator[str]:
    import json

    answer = json.loads(cluster.raw("GET", path, {"limit": "500"}, read_seconds=_TAB_SECONDS))
    return (item["metadata"]["name"] for item in answer["items"])
