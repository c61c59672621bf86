"""Argo CD as running programs: `ArgoCd`, installed as its users install it, and what it says of an application."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml
from e2e.apiserver.client import Object
from e2e.apiserver.operators import ACCOUNTS, REPOSITORY, SECRETS
from e2e.apiserver.plane import Plane, free_ports
from e2e.gitops.repository import Repository
from e2e.kind.binaries import ARGO_CD, folder_of

from dynamo.operator.kube.resources import Resource

GITOPS = REPOSITORY / "gitops"
HOME = "argocd"
CONTROLLER = "argocd-application-controller"
SETS_CONTROLLER = "argocd-applicationset-controller"
REPOSITORIES = "argocd-repo-server"
PROBES = ("metrics", "probe", "webhook")
USERS = tuple(f"system:serviceaccount:{HOME}:{name}" for name in (CONTROLLER, SETS_CONTROLLER))
APPLICATIONS = Resource("argoproj.io/v1alpha1", "Application", "applications")
SETS = Resource("argoproj.io/v1alpha1", "ApplicationSet", "applicationsets")
PROJECTS = Resource("argoproj.io/v1alpha1", "AppProject", "appprojects")
CASCADE = "resources-finalizer.argocd.argoproj.io"
RESYNC_SECONDS = 10
"""So often it looks into git and compares; by default every three minutes."""
# docs/how-to/operate/argo-cd.md: our component in the kustomization that installs Argo CD. Its processes run here.
KUSTOMIZATION = """
namespace: argocd
resources: [namespace.yaml, install.yaml]
components: [health]
patches:
  - target: {kind: Deployment}
    patch: '[{"op": "add", "path": "/spec/replicas", "value": 0}]'
  - target: {kind: StatefulSet}
    patch: '[{"op": "add", "path": "/spec/replicas", "value": 0}]'
"""
NAMESPACE = "{apiVersion: v1, kind: Namespace, metadata: {name: argocd}}"
# As its server, which isn't here, makes it at its first start.
PROJECT: Object = {
    "sourceRepos": ["*"],
    "destinations": [{"namespace": "*", "server": "*"}],
    "clusterResourceWhitelist": [{"group": "*", "kind": "*"}],
}


class State(NamedTuple):
    """What it says of an application."""

    revision: str
    sync: str
    health: str


class ArgoCd:
    """Its controllers, its repository server and Redis, as processes with the rights that its manifests give."""

    def __init__(self, plane: Plane, folder: Path) -> None:
        self.plane, self._folder = plane, folder
        self._redis, self._repositories, *self._others = free_ports(7)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def install(self) -> None:
        """Its manifests with our health check."""
        parent = self._folder / "install"
        parent.mkdir()
        (parent / "kustomization.yaml").write_text(KUSTOMIZATION)
        (parent / "namespace.yaml").write_text(NAMESPACE)
        shutil.copyfile(folder_of(ARGO_CD) / "manifests/install.yaml", parent / "install.yaml")
        shutil.copytree(GITOPS / "argocd", parent / "health")
        made = self.plane.kubectl("kustomize", str(parent))
        self.plane.kubectl("apply", "--server-side", "-f", "-", stdin=made)
        for name in ("applications", "applicationsets", "appprojects"):
            self.plane.kubectl("wait", "--for=condition=Established", f"crd/{name}.argoproj.io")
        key = {"stringData": {"server.secretkey": secrets.token_hex(16)}}
        self.plane.admin.merge(SECRETS, HOME, "argocd-secret", key)
        project = {"apiVersion": PROJECTS.api_version, "kind": PROJECTS.kind, "spec": PROJECT}
        self.plane.admin.apply(PROJECTS, {**project, "metadata": {"name": "default", "namespace": HOME}})

    def start(self) -> None:
        """They wait for each other by themselves."""
        for name in ("tls", "ssh", "gpg-home", "gpg", "plugins", "tmp"):
            (self._folder / name).mkdir()
        (self._folder / "ssh/ssh_known_hosts").touch()
        redis, repositories = f"127.0.0.1:{self._redis}", f"127.0.0.1:{self._repositories}"
        first, second, *others = self._others
        probes = [f"--{name}-addr=127.0.0.1:{port}" for name, port in zip(PROBES, others, strict=True)]
        self._run("redis-server", "--bind", "127.0.0.1", "--port", str(self._redis), "--save", "", "--appendonly", "no")
        self._argo(
            REPOSITORIES, "--address=127.0.0.1", f"--port={self._repositories}", f"--metrics-port={first}",
            f"--redis={redis}", "--disable-tls", f"--revision-cache-expiration={RESYNC_SECONDS // 2}s",
        )  # fmt: skip
        self._argo(
            CONTROLLER, f"--metrics-port={second}", f"--redis={redis}", f"--repo-server={repositories}",
            "--repo-server-plaintext", f"--app-resync={RESYNC_SECONDS}", "--app-resync-jitter=0",
            "--persist-resource-health",
        )  # fmt: skip
        self._argo(SETS_CONTROLLER, *probes, f"--argocd-repo-server={repositories}", "--repo-server-plaintext")

    def stop(self) -> None:
        """At once: nothing of it is kept."""
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait(10)

    @contextmanager
    def following(self, name: str, repository: Repository, path: str, namespace: str) -> Iterator[Application]:
        """The sample, changed where it says so; it goes at the end and leaves what it made."""
        sample: Object = yaml.safe_load((GITOPS / "argocd/application.yaml").read_text())
        sample["metadata"]["name"] = name
        sample["spec"]["source"] |= {"repoURL": repository.url, "path": path}
        sample["spec"]["destination"]["namespace"] = namespace
        self.plane.admin.apply(APPLICATIONS, sample)
        try:
            with self.watched(name) as found:
                yield found
        finally:
            self.plane.admin.code("DELETE", APPLICATIONS.path(HOME, name))

    @contextmanager
    def following_folders(self, repository: Repository) -> Iterator[None]:
        """The other sample; its applications go with it."""
        sample: Object = yaml.safe_load((GITOPS / "argocd/applicationset.yaml").read_text())
        for source in (sample["spec"]["generators"][0]["git"], sample["spec"]["template"]["spec"]["source"]):
            source["repoURL"] = repository.url
        self.plane.admin.apply(SETS, sample)
        try:
            yield
        finally:
            self.plane.admin.code("DELETE", SETS.path(HOME, sample["metadata"]["name"]))

    @contextmanager
    def watched(self, name: str) -> Iterator[Application]:
        """An application that is there."""
        said = self._folder / f"{name}.states"
        what = "{.status.sync.revision} {.status.sync.status} {.status.health.status}{'\\n'}"
        admin = self.plane.kubeconfig("watching", self.plane.admin_token)
        command = [
            str(self.plane.binary("kubectl")), f"--kubeconfig={admin}", f"--namespace={HOME}", "get",
            f"applications.argoproj.io/{name}", "--watch", f"--output=jsonpath={what}",
        ]  # fmt: skip
        with said.open("wb") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream)
        try:
            yield Application(self, name, said)
        finally:
            process.kill()
            process.wait(10)

    def writes(self, since: int = 0) -> list[str]:
        """Its mutating requests, but for those about its own objects."""
        found = []
        for one in (write for user in USERS for write in self.plane.writes(user, since)):
            what: Object = one.get("objectRef", {})
            dry = "dryRun=All" in one["requestURI"]
            if not dry and what.get("apiGroup") != "argoproj.io" and what.get("namespace") != HOME:
                found.append(f"{one['verb']} {what.get('resource')}/{what.get('name')}")
        return found

    def demand_life(self) -> None:
        """What has ended says why."""
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} has ended:\n{(self._folder / f'{name}.log').read_text()[-4000:]}"

    def _argo(self, name: str, *flags: str) -> None:
        self._run("argocd", *flags, log=name, ARGOCD_BINARY_NAME=name, KUBECONFIG=str(self._kubeconfig(name)))

    def _kubeconfig(self, name: str) -> Path:
        """Of its ServiceAccount; Argo CD reads its own namespace from it."""
        wanted: Object = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        token = self.plane.admin.ask("POST", ACCOUNTS.path(HOME, name, "token"), wanted)["status"]["token"]
        path = self.plane.kubeconfig(name, token)
        content = yaml.safe_load(path.read_text())
        content["contexts"][0]["context"]["namespace"] = HOME
        path.write_text(yaml.safe_dump(content))
        return path

    def _run(self, program: str, *flags: str, log: str = "", **env: str) -> None:
        places = f"{self.plane.binary('kubectl').parent}:{os.environ.get('PATH', '')}"
        found = shutil.which(program, path=places)
        assert found, f"{program}: `make e2e-full` brings it, or set DYNAMO_E2E_BIN"
        name, at = log or program, self._folder
        own = {
            "PATH": places, "HOME": str(at), "TMPDIR": str(at / "tmp"), "ARGOCD_FAKE_IN_CLUSTER": "true",
            "ARGOCD_TLS_DATA_PATH": str(at / "tls"), "ARGOCD_SSH_DATA_PATH": str(at / "ssh"),
            "ARGOCD_GNUPGHOME": str(at / "gpg-home"), "ARGOCD_GPG_DATA_PATH": str(at / "gpg"),
            "ARGOCD_GPG_ENABLED": "false", "ARGOCD_PLUGINSOCKFILEPATH": str(at / "plugins"),
        }  # fmt: skip
        with (at / f"{name}.log").open("wb") as stream:
            self._processes[name] = subprocess.Popen(
                [found, *flags], stdout=stream, stderr=stream, cwd=at, env=os.environ | own | env
            )


class Application:
    """One that Argo CD follows."""

    def __init__(self, argo: ArgoCd, name: str, said: Path) -> None:
        self.argo, self.name, self._said = argo, name, said

    def live(self) -> Object:
        """As it stands."""
        self.argo.demand_life()
        found = self.argo.plane.admin.get(APPLICATIONS, HOME, self.name)
        assert found is not None
        return found

    def state(self) -> State:
        """Now."""
        status = self.live().get("status", {})
        sync: Object = status.get("sync", {})
        return State(sync.get("revision", ""), sync.get("status", ""), status.get("health", {}).get("status", ""))

    def states(self, since: int = 0) -> list[State]:
        """All that it was, each change and each writing once."""
        lines = [line.split(" ") for line in self._said.read_text().splitlines()]
        return [State(*line) for line in lines[since:] if len(line) == len(State._fields)]

    def message(self) -> str:
        """Of its pipeline's health."""
        resources: list[Object] = self.live().get("status", {}).get("resources", [])
        (found,) = [resource for resource in resources if resource["kind"] == "DynamoPipeline"]
        return str(found.get("health", {}).get("message", ""))

    def complaints(self) -> str:
        """What it says beside its state."""
        conditions: list[Object] = self.live().get("status", {}).get("conditions", [])
        return "\n".join(str(condition["message"]) for condition in conditions)

    def compares_on_the_server(self, *, yes: bool) -> None:
        """By trying what it would apply, instead of by its own arithmetic."""
        annotation = {"argocd.argoproj.io/compare-options": "ServerSideDiff=true" if yes else None}
        patch = {"metadata": {"annotations": annotation}}
        self.argo.plane.admin.merge(APPLICATIONS, HOME, self.name, patch)

    def delete_with_all(self) -> None:
        """As `argocd app delete` does."""
        admin = self.argo.plane.admin
        admin.merge(APPLICATIONS, HOME, self.name, {"metadata": {"finalizers": [CASCADE]}})
        admin.delete(APPLICATIONS, HOME, self.name)
