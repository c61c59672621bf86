"""Builds Kubernetes, kind and the tools around them from Go modules, into the cache's bin folder.

Versions and checksums stand in go/*/go.mod and go.sum. A module is built again when these change. Products are moved
into place when all of a module is built, so that a build that was killed leaves nothing half.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from e2e.kind.debian import redis_server, registry_server
from e2e.kind.places import HERE, Places
from e2e.kind.steps import StepError, run, step

GO = HERE / "go"
BUILD_SECONDS = 1800
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
NODE_PACKAGES = (
    *(f"k8s.io/kubernetes/cmd/{name}" for name in (*COMPONENTS, "kubeadm", "kubelet", "kubectl")),
    "go.etcd.io/etcd/server/v3",
    "sigs.k8s.io/kind",
)
# A build of its own: it wants github.com/Sirupsen/logrus, which clashes with the others' lower-case one.
PROVISIONER = "github.com/rancher/local-path-provisioner"
PLATFORM_ETCD = "platform-etcd"
"""What we call the platform's etcd, of the version that the chart names: Kubernetes has one of its own."""
_PRODUCTS = {("node", "server"): "etcd", ("etcd", "server"): PLATFORM_ETCD}
# Each with the dependencies that its authors chose; {version} in the flags is the module's.
TOOLS = (
    "helm.sh/helm/v3/cmd/helm@v3.19.2",
    "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0",
    "github.com/zegl/kube-score/cmd/kube-score@v1.20.0",
)
# Without it helm calls itself v3.19, which pyhelm3 can't read.
TOOL_FLAGS = {"helm": ("-X helm.sh/helm/v3/internal/version.version={version}",)}
GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
ARGO_CD = "github.com/argoproj/argo-cd/v3@v3.1.9"
GATEWAY_API = "sigs.k8s.io/gateway-api@v1.3.0"
# What Argo CD's image has beside it, and the library of our kubectl.
KUSTOMIZE = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"
COSIGN = "github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3"
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
BENCH_TOOLS = ("sigs.k8s.io/kwok/cmd/kwok@v0.7.0",)


def version_of(module: str, folder: str = "node") -> str:
    """The version that go.mod requires of a module, as `v1.2.3`."""
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", (GO / folder / "go.mod").read_text(), re.M)
    if not found:
        raise StepError(f"e2e/kind/go/{folder}/go.mod does not require {module}")
    return found[1]


def module_folder(module: str) -> Path:
    """Where the source of a module that go/node requires lies, downloaded if need be."""
    run(["go", "mod", "download", module], seconds=300, cwd=GO / "node")
    return Path(json.loads(run(["go", "mod", "download", "-json", module], seconds=300, cwd=GO / "node"))["Dir"])


def require_go() -> None:
    """Raise StepError if nothing can be built."""
    if shutil.which("go") is None:
        raise StepError("Go is missing (1.26 or later): it builds Kubernetes and kind; install it and put it on PATH")


def build_all(places: Places, tools: Iterable[str] = TOOLS) -> None:
    """Everything that the cluster, its node image and the tests need; what is there already is left."""
    places.bin.mkdir(parents=True, exist_ok=True)
    _build_module(places, "node", (NODE_PACKAGES, (PROVISIONER,)), _kubernetes_flags())
    build_platform_etcd(places)
    _build_module(places, "coredns", ((".",),), "-s -w")
    _build_module(places, "pause", ((".",),), "-s -w")
    for tool in tools:
        _install_tool(places, tool)


def build_platform_etcd(places: Places) -> Path:
    """The etcd that the chart's image holds."""
    places.bin.mkdir(parents=True, exist_ok=True)
    _build_module(places, "etcd", (("go.etcd.io/etcd/server/v3",),), "-s -w")
    return places.bin / PLATFORM_ETCD


def build_kstatus(places: Places) -> Path:
    """A program that prints what kstatus makes of files; wants Go 1.26, as kstatus does."""
    places.bin.mkdir(parents=True, exist_ok=True)
    _build_module(places, "kstatus", ((".",),), "-s -w")
    return places.bin / "kstatus"


def build_otelcol(places: Places) -> Path:
    """OpenTelemetry's Collector, with what the tests need of it."""
    places.bin.mkdir(parents=True, exist_ok=True)
    _build_module(places, "otelcol", ((".",),), "-s -w")
    return places.bin / "otelcol"


def fetch_for_tests(places: Places, *, full: bool) -> None:
    """What tests read of others' sources: `make e2e` runs them in a network without a way out."""
    build_kstatus(places)
    with step("definitions of Argo CD and the Gateway API"):
        folder_of(GATEWAY_API)
        folder = folder_of(ARGO_CD)
    if full:
        with step("what Argo CD's own test of health checks is built of"):
            _go(["test", "-trimpath", "-c", "-o", os.devnull, "./util/lua"], folder)
        _build_argo_cd(places, folder)
        build_otelcol(places)
        for tool in (KUSTOMIZE, COSIGN, ACTIONLINT):
            _install_tool(places, tool)
        redis_server(places)
        registry_server(places)


def folder_of(module: str) -> Path:
    """Where the source of a `module@version` lies that nothing of ours requires, downloaded if need be."""
    return Path(json.loads(run(["go", "mod", "download", "-json", module], seconds=300, cwd=HERE))["Dir"])


def _build_argo_cd(places: Places, folder: Path) -> None:
    """All of Argo CD in one program, in its module's own folder: for others its `replace` lines don't hold."""
    name, version = "argocd", ARGO_CD.partition("@")[2]
    stamp = places.bin / f".{name}-{version}"
    if stamp.exists():
        return
    with step(f"building Argo CD {version}"), tempfile.TemporaryDirectory(dir=places.bin) as made:
        # With the flags of its health test, which shares what is compiled.
        _go(["build", "-trimpath", "-ldflags", "-s -w", "-o", f"{made}/{name}", "./cmd"], folder)
        (Path(made) / name).rename(places.bin / name)
    stamp.touch()


def _kubernetes_flags() -> str:
    """Linker flags by which Kubernetes' binaries know their version: they refuse to work together without."""
    version = version_of("k8s.io/kubernetes")
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return "-s -w " + " ".join(f"-X {package}.{key}={value}" for package in packages for key, value in values.items())


def _build_module(places: Places, name: str, builds: Iterable[tuple[str, ...]], flags: str) -> None:
    stamp = places.bin / f".{name}-{digest_of((GO / name).iterdir())}"
    if stamp.exists():
        return
    with step(f"building {name} from Go modules"), tempfile.TemporaryDirectory(dir=places.bin) as made:
        for packages in builds:
            _go(["build", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o", f"{made}/", *packages], GO / name)
        for product in Path(made).iterdir():
            product.rename(places.bin / _PRODUCTS.get((name, product.name), product.name))
    stamp.touch()


def _install_tool(places: Places, tool: str) -> None:
    path, version = tool.split("@")
    name = re.sub(r"/v\d+$", "", path).rsplit("/", 1)[-1]
    flags = " ".join(["-s -w", *TOOL_FLAGS.get(name, ())]).format(version=version)
    stamp = places.bin / f".{name}-{hashlib.sha256(f'{tool} {flags}'.encode()).hexdigest()[:12]}"
    if stamp.exists():
        return
    with step(f"building {name} {version}"), tempfile.TemporaryDirectory(dir=places.bin) as made:
        _go(["install", "-trimpath", "-ldflags", flags, tool], places.cache, GOBIN=made)
        (Path(made) / name).rename(places.bin / name)
    stamp.touch()


def _go(args: list[str], folder: Path, **env: str) -> None:
    run(["go", *args], seconds=BUILD_SECONDS, cwd=folder, env={**GO_ENVIRONMENT, **env})


def digest_of(files: Iterable[Path]) -> str:
    """Twelve hexadecimal digits that change with the names and contents of these files."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def on_path(places: Places) -> str:
    """A PATH on which our binaries come first."""
    return f"{places.bin}:{os.environ.get('PATH', '')}"
