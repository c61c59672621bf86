"""What comes from Debian: tools on this machine, and the root file system of a node."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from e2e.kind.mounts import remove
from e2e.kind.places import Places
from e2e.kind.steps import StepError, run, step

# A command that shows that the package is there, and the package.
NEEDED = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "containerd": "containerd",
    "runc": "runc",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "conntrack": "conntrack",
    "buildah": "buildah",
}
RELEASE = "bookworm"
REGISTRY = "docker-registry"
NODE_PACKAGES = (
    "systemd,systemd-sysv,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,socat,libseccomp2,"
    "ca-certificates,curl,jq,procps,containerd,runc,containernetworking-plugins,busybox-static"
)
# Units that must not start in a container, as kind's own base image removes them.
UNWANTED = (
    "usr/lib/systemd/system/multi-user.target.wants/*",
    "usr/lib/systemd/system/local-fs.target.wants/*",
    "usr/lib/systemd/system/basic.target.wants/*",
    "usr/lib/systemd/system/sockets.target.wants/*udev*",
    "usr/lib/systemd/system/sockets.target.wants/*initctl*",
    "usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
    "etc/systemd/system/*.wants/*",
    "var/cache/apt/*",
    "var/lib/apt/lists/*",
    "var/log/*",
    "usr/share/doc/*",
    "usr/share/man/*",
    "usr/share/locale/*",
    "usr/share/info/*",
)


def missing_packages() -> list[str]:
    """Packages whose commands are not on PATH."""
    return sorted({package for command, package in NEEDED.items() if shutil.which(command) is None})


def install_missing() -> None:
    """Install what a daemon and a node image of our own need, as root on Debian; elsewhere say what is missing."""
    missing = missing_packages()
    names = " ".join(missing)
    if os.geteuid() or (missing and not Path("/etc/debian_version").exists()):
        raise StepError(
            "no Docker answers that has or can pull kind's node image; to run its own, `make e2e` must be root "
            f"on Debian{f' with {names}' if names else ''}. Start Docker, or name a cluster in E2E_KUBECONFIG."
        )
    if missing:
        _install(missing)


def redis_server(places: Places) -> None:
    """Redis on PATH: the machine's own, else Debian's program without its service. Root on Debian, where it is missing.

    In Debian the server is a link to a program of redis-tools, which knows by its name what to be.
    """
    if shutil.which("redis-server", path=f"{places.bin}:{os.environ.get('PATH', '')}"):
        return
    if os.geteuid() or not Path("/etc/debian_version").exists():
        raise StepError("redis-server is missing: Argo CD keeps its cache there; install it and put it on PATH")
    if shutil.which("redis-check-rdb") is None:
        _install(["redis-tools"])
    link = places.bin / "redis-server"
    link.unlink(missing_ok=True)
    link.symlink_to(str(shutil.which("redis-check-rdb")))


def registry_server(places: Places) -> None:
    """A registry's program, docker-registry: the machine's own, else Debian's, unpacked and not installed.

    Root on Debian, where it is missing; installed, its service would listen on port 5000.
    """
    if shutil.which(REGISTRY, path=f"{places.bin}:{os.environ.get('PATH', '')}"):
        return
    if os.geteuid() or not Path("/etc/debian_version").exists():
        raise StepError(f"{REGISTRY} is missing: bundles are pushed to it; install it and put it on PATH")
    with step(f"from Debian: {REGISTRY}"), tempfile.TemporaryDirectory(dir=places.bin) as folder:
        run(["apt-get", "update", "-qq"], seconds=300)
        run(["apt-get", "download", "-qq", REGISTRY], seconds=300, cwd=Path(folder))
        (package,) = Path(folder).glob("*.deb")
        run(["dpkg-deb", "--extract", package, folder], seconds=60)
        (Path(folder) / "usr/bin" / REGISTRY).rename(places.bin / REGISTRY)


def _install(packages: list[str]) -> None:
    with step(f"installing from Debian: {' '.join(packages)}"):
        env = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], seconds=300, env=env)
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], seconds=900, env=env)


def root_filesystem(places: Places) -> Path:
    """A folder with the packages of a node, made once for each list of packages."""
    content = hashlib.sha256(repr((RELEASE, NODE_PACKAGES, UNWANTED)).encode()).hexdigest()[:12]
    root = places.cache / f"rootfs-{content}"
    if root.exists():
        return root
    for old in places.cache.glob("rootfs-*"):
        remove(old)
    making = places.cache / "rootfs.making"
    remove(making)
    try:
        _make_root(making)
        making.rename(root)
    finally:
        remove(making)
    return root


def _make_root(making: Path) -> None:
    with step("root file system of a node from Debian's packages"):
        options = ["--variant=minbase", f"--include={NODE_PACKAGES}"]
        run(["debootstrap", *options, RELEASE, making, *archive_of_this_machine()], seconds=1200)
        for pattern in UNWANTED:
            for path in making.glob(pattern):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def archive_of_this_machine() -> list[str]:
    """The archive that this machine's own packages come from; none: debootstrap's default."""
    uris = run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], seconds=60).split()
    return [uri for uri in uris if "security" not in uri][:1]
