"""What a person would look at after a failure: events, pods, pipelines and logs, of the namespaces of the scenario."""

from __future__ import annotations

from collections.abc import Iterable

from e2e.cluster.cluster import Cluster, RefusedError
from e2e.namespace.namespace import Namespace

LOG_LINES = 60
OPERATOR_LINES = 200
OPERATOR = "app.kubernetes.io/component=operator"


def of(cluster: Cluster, namespaces: Iterable[Namespace], platform: str) -> str:
    """All of it as one text; a part that can't be read says why."""
    parts = [part for namespace in namespaces for part in _namespace(namespace)]
    return "\n".join([*parts, *_operator(Namespace(cluster, platform))])


def _namespace(namespace: Namespace) -> list[str]:
    commands = (
        ("get", "dynamopipelines", "-o", "yaml", "--show-managed-fields=false"),
        ("get", "all,pvc", "-o", "wide"),
        ("get", "events", "--sort-by=.lastTimestamp"),
    )
    return [*(_said(namespace, *command) for command in commands), *_logs(namespace, "", LOG_LINES)]


def _operator(platform: Namespace) -> list[str]:
    commands = (
        ("get", "nodes", "-o", "wide"),
        ("get", "pods", "-o", "wide"),
        ("get", "events", "--sort-by=.lastTimestamp"),
    )
    return [*(_said(platform, *command) for command in commands), *_logs(platform, OPERATOR, OPERATOR_LINES)]


def _logs(namespace: Namespace, selector: str, lines: int) -> list[str]:
    said = []
    for pod in namespace.list("v1/Pod", selector):
        words = ["logs", pod["metadata"]["name"], "--all-containers", "--prefix", f"--tail={lines}"]
        restarted = any(status["restartCount"] for status in pod["status"].get("containerStatuses", []))
        said += [_said(namespace, *words, "--previous")] if restarted else []
        said.append(_said(namespace, *words))
    return said


def _said(namespace: Namespace, *words: str) -> str:
    try:
        said = namespace.kubectl(*words, seconds=20)
    except RefusedError as error:
        said = str(error)
    return f"--- kubectl -n {namespace.name} {' '.join(words)}\n{said.rstrip()}"
