"""The node image: Debian's packages below, kind's own files (out of its module) and Kubernetes above."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from e2e.kind import archive, component_images, debian
from e2e.kind.archive import Image
from e2e.kind.binaries import digest_of, module_folder, version_of
from e2e.kind.places import HERE, Places
from e2e.kind.steps import StepError, step

FILES = HERE / "files"
CONFIG = {
    "Env": ["container=docker"],
    "StopSignal": "SIGRTMIN+3",
    "Entrypoint": ["/usr/local/bin/entrypoint", "/sbin/init"],
}
ENABLED_UNITS = ("kubelet", "containerd", "undo-mount-hacks")


def name() -> str:
    """The image's name with its tag; the tag names Kubernetes' version, as kind's own images do."""
    return f"kindest/node:{version_of('k8s.io/kubernetes')}"


def archive_of_node(places: Places) -> Path:
    """A docker-archive of the node image, made again when anything that goes into it has changed."""
    root = debian.root_filesystem(places)
    makers = [Path(module.__file__ or "") for module in (archive, component_images)]
    sources = [Path(__file__), *makers, *FILES.iterdir(), *(HERE / "go").glob("*/*")]
    out = places.cache / f"node-{root.name}-{digest_of(sources)}.tar"
    if out.exists():
        return out
    for old in places.cache.glob("node-*.tar"):
        old.unlink()
    with step(f"node image {name()}"):
        work = places.cache / "node.making"
        shutil.rmtree(work, ignore_errors=True)
        try:
            return _assemble(places, root, work, out)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _assemble(places: Places, root: Path, work: Path, out: Path) -> Path:
    upper = work / "upper"
    _kind_files(module_folder("sigs.k8s.io/kind") / "images/base/files", upper)
    _binaries(places, upper)
    _units(upper)
    storage = storage_manifest((module_folder("sigs.k8s.io/kind") / "pkg/build/nodeimage/const_storage.go").read_text())
    _write(upper / "kind/manifests/default-storage.yaml", storage)
    _write(upper / "kind/manifests/default-cni.yaml", (FILES / "cni.yaml").read_text())
    _write(upper / "kind/version", version_of("k8s.io/kubernetes"))
    (upper / "etc/containerd/cri-base.json").write_text(component_images.base_spec(root))
    images = component_images.make_all(places, root, storage, work)
    component_images.preload(images, upper / "var/lib/containerd", work)
    layers = [archive.layer_of(root, work / "lower.tar"), archive.layer_of(upper, work / "upper.tar")]
    return archive.write(Image([name()], layers, CONFIG), out)


def _kind_files(source: Path, upper: Path) -> None:
    for file in source.rglob("*"):
        inside = file.relative_to(source)
        if file.is_dir() or inside.name in {"README.txt", "clean-install"}:
            continue
        target = upper / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        target.chmod(0o755 if "bin" in inside.parts else 0o644)
    config = upper / "etc/containerd/config.toml"
    told = config.read_text().replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true")
    if "restrict_oom_score_adj = true" not in told:
        raise StepError("kind's containerd configuration lacks restrict_oom_score_adj: see e2e/kind/node_image.py")
    config.write_text(told)


def _binaries(places: Places, upper: Path) -> None:
    for binary in ("kubeadm", "kubelet", "kubectl"):
        _install(places.bin / binary, upper / "usr/bin" / binary)
    _install(FILES / "crictl.sh", upper / "usr/local/bin/crictl")
    (upper / "usr/local/bin/containerd").symlink_to("/usr/bin/containerd")
    (upper / "opt/cni").mkdir(parents=True)
    (upper / "opt/cni/bin").symlink_to("/usr/lib/cni")
    for folder in ("etc/cni/net.d", "etc/kubernetes/manifests", "kind/manifests"):
        (upper / folder).mkdir(parents=True)


def _units(upper: Path) -> None:
    system = upper / "etc/systemd/system"
    wanted = system / "multi-user.target.wants"
    wanted.mkdir(parents=True)
    for unit in ENABLED_UNITS:
        (wanted / f"{unit}.service").symlink_to(f"/etc/systemd/system/{unit}.service")
    (system / "systemd-binfmt.service").symlink_to("/dev/null")
    _write(upper / "etc/systemd/journald.conf.d/kind.conf", "[Journal]\nReadKMsg=no\n")


def storage_manifest(source: str) -> str:
    """kind's manifest of the default storage class, out of its Go source."""
    constants = dict(re.findall(r'const (\w+) = "(.*?)"', source))
    manifest = re.search(r"defaultStorageManifest = `(.*)`", source, re.DOTALL)
    if not manifest:
        raise StepError("kind's source no longer holds defaultStorageManifest: see e2e/kind/node_image.py")
    return re.sub(r"` \+ (\w+) \+ `", lambda name: constants[name[1]], manifest[1])


def _install(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def default_of_kind() -> str:
    """The node image that this version of kind takes from a registry."""
    source = (module_folder("sigs.k8s.io/kind") / "pkg/apis/config/defaults/image.go").read_text()
    found = re.search(r'const Image = "([^"]+)"', source)
    if not found:
        raise StepError("kind's source no longer names its default image: see e2e/kind/node_image.py")
    return found[1]
