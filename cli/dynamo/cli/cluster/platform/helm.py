"""The helm binary through pyhelm3: one release of the platform's chart."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import pyhelm3
import semver
from pyhelm3.command import Command

from dynamo.cli.cluster.client import Live
from dynamo.cli.cluster.errors import ClusterError
from dynamo.cli.cluster.kubeconfig import Target

Answer = TypeVar("Answer")
Values = dict[str, Any]
NO_HELM: Final = (
    "helm isn't on PATH: install Helm 3 or 4 (https://helm.sh/docs/intro/install; for example brew install helm, "
    "winget install Helm.Helm, snap install helm --classic) and run this again"
)
_LEADING: Final = re.compile(r"^(?:Error|UPGRADE FAILED|INSTALLATION FAILED|failed to \w+): *", re.IGNORECASE)


class Release(NamedTuple):
    """Installation, as helm knows it."""

    revision: int
    status: str
    chart: str
    values: Values
    notes: str
    computed: Mapping[str, Any] = MappingProxyType({})
    """The values with its chart's defaults, as they hold; empty where nobody asked."""

    @property
    def is_stuck(self) -> bool:
        """Tell whether a helm was killed in the middle; helm itself refuses to go on."""
        return self.status.startswith("pending") or self.status == "uninstalling"


class _Command(Command):  # type: ignore[misc]
    """Two things that pyhelm3 can't be told: the cluster's version when rendering, and that `v3.19` is a version."""

    kube_version = ""

    async def run(self, command: list[Any], input: bytes | None = None) -> bytes:  # noqa: A002  # pyhelm3's name
        """Run helm with the cluster's version: without it, a helm older than the cluster refuses the chart."""
        more = ["--kube-version", self.kube_version] if command[0] == "template" and self.kube_version else []
        return bytes(await super().run([*command, *more], input))

    def client_version(self) -> semver.Version:
        import subprocess

        done = subprocess.run(
            [self._executable, "version", "--template", "{{ .Version }}"], capture_output=True, text=True, check=False
        )
        return version_of(done.stdout)


def version_of(text: str) -> semver.Version:
    """Read the version out of what helm says; 3.0.0 where it says nothing that can be understood."""
    match = re.match(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?", text.strip())
    numbers = [int(number or 0) for number in match.groups()] if match else [3, 0, 0]
    return semver.Version(*numbers)


class Helm:
    """One release in one namespace."""

    def __init__(self, target: Target, namespace: str, release: str, seconds: float, kube_version: str = "") -> None:
        executable = shutil.which("helm")
        if executable is None:
            raise ClusterError(NO_HELM)
        logging.getLogger("pyhelm3").setLevel(logging.ERROR)  # it reports every command as a warning
        kubeconfig = Path(target.kubeconfig) if target.kubeconfig else None
        command = _Command(
            executable=executable, kubeconfig=kubeconfig, kubecontext=target.context,
            default_timeout=f"{max(1, int(seconds))}s",
        )  # fmt: skip
        command.kube_version = kube_version
        self._client = pyhelm3.Client(command, executable=executable)
        self._namespace, self._release = namespace, release

    def current(self) -> Release | None:
        """Return the release that is installed; None where there is none."""

        async def ask() -> Release | None:
            try:
                revision = await self._client.get_current_revision(self._release, namespace=self._namespace)
            except pyhelm3.ReleaseNotFoundError:
                return None
            values, computed = await revision.values(), await revision.values(computed=True)
            metadata = await revision.chart_metadata()
            status = str(revision.status.value)
            chart = f"{metadata.name} {metadata.version}"
            return Release(revision.revision, status, chart, values, revision.notes or "", computed)

        return self._run(ask())

    def render(self, chart: Path, values: Mapping[str, Any]) -> list[Live]:
        """Return what would be installed, without asking the cluster."""

        async def ask() -> list[Live]:
            loaded = await self._client.get_chart(chart)
            made = await self._client.template_resources(
                loaded, self._release, dict(values), namespace=self._namespace, no_hooks=True
            )
            return [manifest for manifest in made if manifest]

        return self._run(ask())

    def upgrade(self, chart: Path, values: Mapping[str, Any]) -> Release:
        """Install, or upgrade with exactly these values; doesn't wait for pods."""

        async def ask() -> Release:
            loaded = await self._client.get_chart(chart)
            done = await self._client.install_or_upgrade_release(
                self._release, loaded, dict(values), namespace=self._namespace, reset_values=True
            )
            chart_name = f"{loaded.metadata.name} {loaded.metadata.version}"
            return Release(done.revision, str(done.status.value), chart_name, dict(values), done.notes or "")

        return self._run(ask())

    def recover(self) -> None:
        """Leave the middle in which a killed helm left the release."""
        self._run(self._client.get_proceedable_revision(self._release, namespace=self._namespace))

    def uninstall(self, *, wait: bool) -> None:
        """Delete all objects of the release but what says that it stays."""
        self._run(self._client.uninstall_release(self._release, namespace=self._namespace, wait=wait))

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            return asyncio.run(work)
        except pyhelm3.Error as error:
            raise ClusterError(said(bytes(error.stderr))) from None


def said(stderr: bytes) -> str:
    """Return what helm complained about, without its warnings and its own repetitions."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith(("WARNING:", "I0", "W0", "E0"))]
    text = (
        " ".join(lines).removesuffix("Use --debug flag to render out invalid YAML").strip()
        or "helm failed without a word"
    )
    while (shorter := _LEADING.sub("", text, count=1)) != text:
        text = shorter
    return f"helm: {text}"


def chart_folder(chosen: str | None) -> Path:
    """Return the platform's chart: the one named, else the package's own, else the source tree's."""
    name = "dynamo-platform"
    here = Path(__file__).resolve()
    places = [Path(chosen)] if chosen else [here.parents[1] / "charts" / name, here.parents[5] / "charts" / name]
    for place in places:
        if (place / "Chart.yaml").is_file() or (chosen and place.is_file()):
            return place.resolve()
    looked = ", ".join(str(place) for place in places)
    raise ClusterError(f"there is no chart at {looked}: name its folder or archive with --chart")
