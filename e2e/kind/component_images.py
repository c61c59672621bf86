"""The images that a node brings along: Kubernetes' components, etcd, CoreDNS, pause, storage, network.

They carry the names that kubeadm and kind's manifests expect, and go unpacked into the node's containerd store.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from e2e.kind import archive
from e2e.kind.archive import Image
from e2e.kind.binaries import COMPONENTS, version_of
from e2e.kind.places import Places
from e2e.kind.steps import StepError, run

REGISTRY = "registry.k8s.io"
# What kube-proxy calls, and the shared libraries of these and of iptables' extensions: without libxt_statistic's libm
# a Service with two endpoints fails silently.
PROXY_COMMANDS = ("usr/sbin/xtables-nft-multi", "usr/sbin/nft")
PROXY_EXTENSIONS = "usr/lib/x86_64-linux-gnu/xtables"
START_SECONDS = 20


def base_spec(root: Path) -> str:
    """containerd's default runtime spec with kind's hook, as kind's Dockerfile makes it."""
    spec = json.loads(run(["chroot", root, "ctr", "oci", "spec"], seconds=30))
    spec.setdefault("hooks", {}).setdefault("createContainer", []).append({"path": "/kind/bin/mount-product-files.sh"})
    spec["process"].pop("rlimits", None)
    return json.dumps(spec)


def make_all(places: Places, root: Path, storage: str, work: Path) -> list[Path]:
    """Archives of all component images; `storage` is the manifest that names the provisioner's two."""
    version = version_of("k8s.io/kubernetes")
    return [
        *(_single(places, work, binary, f"{REGISTRY}/{binary}:{version}") for binary in COMPONENTS[:3]),
        _single(places, work, "etcd", f"{REGISTRY}/etcd:{version_of('go.etcd.io/etcd/server/v3').removeprefix('v')}-0"),
        _single(places, work, "local-path-provisioner", _named(storage, "local-path-provisioner"), folders=("tmp",)),
        _single(
            places,
            work,
            "coredns",
            f"{REGISTRY}/coredns/coredns:{version_of('github.com/coredns/coredns', 'coredns')}",
            entrypoint=True,
        ),
        _single(places, work, "pause", f"{REGISTRY}/pause:3.10", f"{REGISTRY}/pause:3.10.1", entrypoint=True),
        _shell(root, work, "helper", _named(storage, "local-path-helper")),
        _shell(root, work, "routes", "localhost/kind-routes:1", places.bin / "kubectl"),
        _proxy(places, root, work, f"{REGISTRY}/kube-proxy:{version}"),
    ]


def _named(manifest: str, part: str) -> str:
    found = re.search(rf"image: (docker\.io\S*{part}\S*)|- (docker\.io\S*{part}\S*)", manifest)
    if not found:
        raise StepError(f"kind's storage manifest names no image {part}: see e2e/kind/component_images.py")
    return found[1] or found[2]


def _single(
    places: Places, work: Path, binary: str, *names: str, entrypoint: bool = False, folders: tuple[str, ...] = ()
) -> Path:
    """An image of one static binary."""
    folder = work / binary
    _copy(places.bin / binary, folder / "usr/local/bin" / binary)
    for name in folders:
        (folder / name).mkdir()
    config: dict[str, object] = {"WorkingDir": "/", "Entrypoint": [f"/usr/local/bin/{binary}"]} if entrypoint else {}
    return _image(work, binary, names, config)


def _shell(root: Path, work: Path, title: str, name: str, *binaries: Path) -> Path:
    """An image of busybox and some binaries."""
    folder = work / title
    (folder / "tmp").mkdir(parents=True)
    _copy(root / "bin/busybox", folder / "bin/busybox")
    for applet in run([root / "bin/busybox", "--list"], seconds=10).split():
        if applet != "busybox":
            (folder / "bin" / applet).symlink_to("busybox")
    for binary in binaries:
        _copy(binary, folder / "usr/bin" / binary.name)
    return _image(work, title, [name], {})


def _proxy(places: Places, root: Path, work: Path, name: str) -> Path:
    """kube-proxy with nftables' iptables and the libraries that these load."""
    folder = work / "kube-proxy"
    folder.mkdir()
    wanted = [*PROXY_COMMANDS, PROXY_EXTENSIONS, *_libraries(root)]
    shells = ["bin", "sbin", "lib", "lib64"]
    tar = work / "kube-proxy-files.tar"
    run(["tar", "-C", root, "-cf", tar, *shells, *wanted], seconds=60)
    run(["tar", "-C", folder, "-xf", tar], seconds=60)
    for family in ("iptables", "ip6tables"):
        for command in ("", "-save", "-restore"):
            link = folder / f"usr/sbin/{family}{command}"
            link.unlink(missing_ok=True)
            link.symlink_to("xtables-nft-multi")
    _copy(places.bin / "kube-proxy", folder / "usr/local/bin/kube-proxy")
    return _image(work, "kube-proxy", [name], {})


def _libraries(root: Path) -> list[str]:
    """Paths below root, links and what they point to, of every library that these commands and extensions load."""
    inside = [f"/{path}" for path in PROXY_COMMANDS]
    inside += [f"/{path.relative_to(root)}" for path in (root / PROXY_EXTENSIONS).glob("*.so")]
    found = set(re.findall(r"\s(/lib\S+)", run(["chroot", root, "ldd", *inside], seconds=60)))
    real = run(["chroot", root, "readlink", "-f", *sorted(found)], seconds=30).split()
    return sorted({f"usr{path}" if path.startswith("/lib") else path.lstrip("/") for path in [*found, *real]})


def _image(work: Path, title: str, names: Iterable[str], config: dict[str, object]) -> Path:
    layer = archive.layer_of(work / title, work / f"{title}-layer.tar")
    made = archive.write(Image(list(names), [layer], config), work / f"{title}.tar")
    layer.unlink()
    shutil.rmtree(work / title)
    return made


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def preload(images: Iterable[Path], store: Path, work: Path) -> None:
    """Import images, not unpacked, into a containerd store; pinned, so that no kubelet collects them."""
    store.mkdir(parents=True)
    socket = work / "containerd.sock"
    config = work / "containerd.toml"
    config.write_text(
        f'version = 2\nroot = "{store}"\nstate = "{work / "containerd"}"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]\n'
        f'[grpc]\n  address = "{socket}"\n'
    )
    with (work / "containerd.log").open("w") as log:
        daemon = subprocess.Popen(["containerd", "-c", config], stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for_socket(daemon, socket, work / "containerd.log")
        ctr: list[str | Path] = ["ctr", "-a", socket, "-n", "k8s.io", "images"]
        for image in images:
            run([*ctr, "import", "--no-unpack", image], seconds=120)
        for name in run([*ctr, "ls", "-q"], seconds=30).split():
            run([*ctr, "label", name, "io.cri-containerd.pinned=pinned"], seconds=30)
    finally:
        daemon.terminate()
        daemon.wait(30)


def _wait_for_socket(daemon: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not socket.exists():
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise StepError(f"containerd does not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)
