"""The options that every command of a cluster has, what Tab offers for them, and lengths of time among them.

`SPAN` reads `90s`, `10m`, `1h30m`, or seconds."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from dynamo.cli.cluster import kubeconfig as kubeconfigs

if TYPE_CHECKING:
    from dynamo.cli.cluster.client import Cluster


Command = TypeVar("Command", bound=Callable[..., Any])
_TAB_SECONDS = 3.0

EXIT_CODES = "Exit codes: 0 well, 1 failed, 2 usage, 130 interrupted."


def cluster_options(
    namespace_help: str = "Namespace. Default: the context's.", *, short: bool = True
) -> Callable[[Command], Command]:
    """Give a command `target`, made from --kubeconfig, --context and --namespace; `short`: -n means the last."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_target(
            *args: Any, kubeconfig: str | None, context: str | None, namespace: str | None, **kwargs: Any
        ) -> Any:
            return command(*args, target=kubeconfigs.Target(kubeconfig, context, namespace), **kwargs)

        decorated: Any = with_target
        for option in reversed(_options(namespace_help, short)):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def _options(namespace_help: str, short: bool) -> list[Callable[[Any], Any]]:
    names = ("-n", "--namespace") if short else ("--namespace",)
    return [
        click.option(*names, shell_complete=complete_namespace, help=namespace_help),
        click.option(
            "--context", shell_complete=complete_context, help="Context of the kubeconfig. Default: the one in use."
        ),
        click.option(
            "--kubeconfig", type=click.Path(dir_okay=False),
            help="File with clusters and credentials. Default: KUBECONFIG, else ~/.kube/config.",
        ),
    ]  # fmt: skip


def complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer contexts of the kubeconfig."""
    return _starting(incomplete, lambda: iter(_contexts(ctx)))


def complete_namespace(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer namespaces of the cluster."""
    return _starting(incomplete, lambda: _names(_connected(ctx), "/api/v1/namespaces"))


def complete_pipeline(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer pipelines of the namespace that the words so far mean."""

    def names() -> Iterator[str]:
        from dynamo.operator.kube.resources import PIPELINES

        cluster = _connected(ctx)
        return _names(cluster, PIPELINES.path(cluster.namespace))

    return _starting(incomplete, names)


def _starting(incomplete: str, names: Callable[[], Iterator[str]]) -> list[str]:
    """Return what begins so; Tab never speaks of errors: where something is wrong, it has nothing to offer."""
    try:
        return sorted(name for name in names() if name.startswith(incomplete))
    except Exception:
        return []


def _contexts(ctx: click.Context) -> list[str]:
    paths = kubeconfigs.files(ctx.params.get("kubeconfig"), os.environ)
    return [context.name for context in kubeconfigs.read(paths).contexts]


def _connected(ctx: click.Context) -> Cluster:
    from dynamo.cli.cluster.client import connect

    given = ctx.params
    return connect(kubeconfigs.Target(given.get("kubeconfig"), given.get("context"), given.get("namespace")))


def _names(cluster: Cluster, path: str) -> Iterator[str]:
    import json

    answer = json.loads(cluster.raw("GET", path, {"limit": "500"}, read_seconds=_TAB_SECONDS))
    return (item["metadata"]["name"] for item in answer["items"])


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WHOLE: Final = re.compile(r"(?:\d{1,6}(?:\.\d+)?[smhd])+|\d{1,9}(?:\.\d+)?")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def seconds_of(text: str) -> float | None:
    """Read a length of time; None for what is none."""
    if not _WHOLE.fullmatch(text):
        return None
    parts = _PART.findall(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float(text)


class Span(click.ParamType[float]):
    """Seconds, out of a text."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(value) if isinstance(value, int | float) else seconds_of(str(value))
        if seconds is None:
            self.fail(f"{value!r} is no duration: write 90s, 10m or 1h", param, ctx)
        return seconds


SPAN: Final = Span()
