"""A Docker daemon of our own, in a network namespace with no way out, for machines where no Docker answers.

No network of the machine is touched: daemon, kind and tests run inside the namespace, with addresses out of
198.18.0.0/15. Images are built outside of it and loaded from archives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from e2e.kind.binaries import on_path
from e2e.kind.docker import Docker
from e2e.kind.mounts import unmount_below
from e2e.kind.places import HERE, Places
from e2e.kind.steps import StepError, run, step, succeeds

BRIDGE = "198.19.0.1"
START_SECONDS = 60
STOP_SECONDS = 30
# Docker 20.10's resolver never answers when its upstream does not, and each unknown name then costs pods 4 s.
COREFILE = f".:53 {{\n  bind {BRIDGE}\n  template ANY ANY {{\n    rcode NXDOMAIN\n  }}\n}}\n"


def start(places: Places) -> None:
    """Start the private daemon if it does not run, and the resolver that answers it."""
    docker = docker_of(places)
    places.run.mkdir(parents=True, exist_ok=True)
    _namespace(places)
    if not docker.answers():
        with step("a Docker daemon in a network namespace"):
            process = _spawn(places, "dockerd", _daemon_command(places))
            _wait(docker.answers, places, "dockerd", process)
    if not _alive(places, "dns"):
        (places.run / "Corefile").write_text(COREFILE)
        _spawn(places, "dns", [str(places.bin / "coredns"), "-conf", str(places.run / "Corefile")])
    # Before kind makes one with addresses that may be somebody's.
    if not succeeds([*docker.command, "network", "inspect", "kind"], seconds=20, env=docker.env):
        subnet = ["--subnet", "198.19.1.0/24", "--gateway", "198.19.1.1"]
        masquerade = ["-o", "com.docker.network.bridge.enable_ip_masquerade=true"]
        create = [*docker.command, "network", "create", "-d", "bridge", *subnet, *masquerade, "kind"]
        run(create, seconds=30, env=docker.env)


def docker_of(places: Places) -> Docker:
    """How to reach the private daemon, whether it runs or not."""
    env = {"DOCKER_HOST": f"unix://{places.run}/docker.sock", "PATH": on_path(places)}
    return Docker(env, tuple(places.enter()), private=True)


def stop(places: Places) -> None:
    """End daemon and resolver, and remove mounts, cgroups and the namespace. What was loaded stays on disk."""
    for name in ("dns", "dockerd"):
        _end(places, name)
    unmount_below(places.run)
    unmount_below(places.cache / "docker")
    for hierarchy in Path("/sys/fs/cgroup").glob(f"*/{places.name}"):
        for folder, _, _ in os.walk(hierarchy, topdown=False):
            _try_rmdir(Path(folder))
    if places.netns.exists():
        run(["ip", "netns", "del", places.name], seconds=20)


def _namespace(places: Places) -> None:
    if not places.netns.exists():
        run(["ip", "netns", "add", places.name], seconds=20)
    run([*places.enter(), "ip", "link", "set", "lo", "up"], seconds=20)
    run([*places.enter(), "sysctl", "-qw", "net.ipv4.ip_forward=1"], seconds=20)


def _daemon_command(places: Places) -> list[str]:
    return [
        "dockerd",
        f"--host=unix://{places.run}/docker.sock",
        f"--data-root={places.cache}/docker",
        f"--exec-root={places.run}/exec",
        f"--pidfile={places.run}/docker.pid",
        f"--containerd-namespace={places.name}",
        f"--containerd-plugins-namespace={places.name}-plugins",
        f"--bip={BRIDGE}/24",
        "--default-address-pool=base=198.19.128.0/17,size=24",
        f"--dns={BRIDGE}",
        f"--cgroup-parent=/{places.name}",
        f"--add-runtime=capped={HERE}/files/runc-capped.sh",
        "--default-runtime=capped",
    ]


def _spawn(places: Places, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that outlives us, in the namespace; its pid and its log lie in places.run."""
    with (places.run / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [*places.enter(), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PATH": on_path(places)},
        )
    (places.run / f"{name}.pid").write_text(str(process.pid))
    return process


def _wait(condition: Callable[[], bool], places: Places, name: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        # Not `_alive`: a process that becomes another program has no command line for a moment.
        if time.monotonic() > deadline or process.poll() is not None:
            log = (places.run / f"{name}.log").read_text()[-2000:]
            raise StepError(f"{name} does not start; the end of its log:\n{log}")
        time.sleep(0.2)


def _pid(places: Places, name: str) -> int | None:
    """The pid of a process that we started and that still is what we started: pids are used again."""
    try:
        pid = int((places.run / f"{name}.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if str(places.run).encode() in command else None


def _alive(places: Places, name: str) -> bool:
    return _pid(places, name) is not None


def _end(places: Places, name: str) -> None:
    pid = _pid(places, name)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while _alive(places, name):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.1)
    (places.run / f"{name}.pid").unlink(missing_ok=True)


def _try_rmdir(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
