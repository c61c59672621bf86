"""Where everything lies: one folder outside the repository for what is kept, one under /run for what is running.

| variable | default | what |
|---|---|---|
| DYNAMO_E2E_CACHE | ~/.cache/dynamo-pipelines | binaries, node image, images of ours, the daemon's data |
| DYNAMO_E2E_BIN | $DYNAMO_E2E_CACHE/bin | the binaries alone |
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent


@dataclass(frozen=True)
class Places:
    """Paths and names of one cluster."""

    cache: Path
    bin: Path
    name: str
    """Of the cluster and of the network namespace; another cache has another, so that both can be up at once."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Places:
        """As the variables above say."""
        user = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/root")) / ".cache")
        cache = Path(environ.get("DYNAMO_E2E_CACHE") or user / "dynamo-pipelines").absolute()
        binaries = Path(environ.get("DYNAMO_E2E_BIN") or cache / "bin").absolute()
        return cls(cache, binaries, _name(cache, user / "dynamo-pipelines"))

    @property
    def run(self) -> Path:
        """Sockets, pid files and logs of what is running; short, since a socket's path has at most 107 characters."""
        return Path("/run") / self.name

    @property
    def lock(self) -> Path:
        """Held by whoever builds or uses the cluster of this cache."""
        return self.cache / "e2e.lock"

    @property
    def kubeconfig(self) -> Path:
        """The cluster's administrator."""
        return self.cache / "kubeconfig"

    @property
    def kept(self) -> Path:
        """There while `make e2e-up` keeps a cluster; a cluster without it was left by a run that was killed."""
        return self.cache / "kept"

    @property
    def loaded(self) -> Path:
        """Names of the archives that the present cluster's nodes hold; a name changes with the archive's content."""
        return self.cache / "loaded"

    @property
    def arrival(self) -> Path:
        """Locked while a cluster is being made beside the tests."""
        return self.cache / "arrival"

    @property
    def netns(self) -> Path:
        """The network namespace of the private daemon."""
        return Path("/run/netns") / self.name

    def enter(self) -> list[str]:
        """Words before a command that must run in that namespace; not `ip netns exec`, which hides the cgroups."""
        return ["nsenter", f"--net={self.netns}"]


def _name(cache: Path, usual: Path) -> str:
    mark = hashlib.sha256(str(cache).encode()).hexdigest()[:6]
    return "dynamo-e2e" if cache == usual.absolute() else f"dynamo-e2e-{mark}"
