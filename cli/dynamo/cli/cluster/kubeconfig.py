"""What a kubeconfig says about contexts and namespaces, read without the Kubernetes client.

The client itself reads the credentials; this is for Tab, and for errors that name the choices. `Target` is here for
the commands that look at this machine as well: where no Kubernetes client is installed, they must still work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True)
class Target:
    """Place that the user named: cluster, context, namespace."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None


class Context(NamedTuple):
    """A cluster, a user, and the namespace that commands go to."""

    name: str
    namespace: str
    cluster: str


class Kubeconfig(NamedTuple):
    """Every context of all files, and the one in use (empty: none)."""

    contexts: tuple[Context, ...]
    current: str

    def context(self, name: str | None) -> Context | None:
        """Return the context of this name, or the one in use."""
        wanted = name or self.current
        return next((c for c in self.contexts if c.name == wanted), None)


def files(kubeconfig: str | None, environment: Mapping[str, str]) -> list[Path]:
    """Return where a kubeconfig is looked for: the flag, else KUBECONFIG (several, joined by `:`), else the home's."""
    if kubeconfig:
        return [Path(kubeconfig)]
    listed = [part for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return [Path(part).expanduser() for part in listed] or [Path("~/.kube/config").expanduser()]


def merge(documents: Iterable[Any]) -> Kubeconfig:
    """Merge as kubectl does: the first file that says something wins. What has another form is passed over."""
    contexts: dict[str, Context] = {}
    current = ""
    for document in documents:
        mapping = document if isinstance(document, dict) else {}
        current = current or str(mapping.get("current-context") or "")
        for entry in mapping.get("contexts") or []:
            context = _context(entry)
            if context is not None:
                contexts.setdefault(context.name, context)
    return Kubeconfig(tuple(contexts.values()), current)


def _context(entry: Any) -> Context | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("context"), dict):
        return None
    inner = entry["context"]
    namespace = str(inner.get("namespace") or DEFAULT_NAMESPACE)
    return Context(str(entry.get("name", "")), namespace, str(inner.get("cluster", "")))


def read(paths: Iterable[Path]) -> Kubeconfig:
    """Read the files that are there; raises `OSError` or `yaml.YAMLError` for one that can't be read."""
    import yaml

    return merge([yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths if path.is_file()])
