"""A network of the run's own, in which links can be cut: `unshare --net` and iptables, where there are such.

Each process reaches NATS and etcd by addresses of its own (127.0.1.n, 127.0.2.n), so a rule about one address is about
one process's link. Packets are dropped where they arrive: nobody is told, as with a cable that is pulled.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

APART: Final = "CHAOS_NETWORK"
_LIMIT: Final = 20.0
_PREPARE: Final = "ip link set lo up && iptables -w -L -n"


def enter(arguments: Sequence[str]) -> str:
    """Start this program again in a network of its own; returns, with the reason, only where that can't be.

    Returns an empty text where this is that start.
    """
    if APART in os.environ:
        return os.environ[APART]
    reason = "unshare, ip or iptables is not there or not allowed"
    for who in ([], ["--map-root-user"]):
        command = ["unshare", "--net", *who]
        env = {**os.environ, "XTABLES_LOCKFILE": f"/tmp/chaos-xtables-{os.getuid()}"}
        try:
            tried = subprocess.run([*command, "sh", "-c", _PREPARE], capture_output=True, env=env, timeout=_LIMIT)
        except (OSError, subprocess.TimeoutExpired):
            break
        if tried.returncode == 0:
            inner = ["sh", "-c", 'ip link set lo up; exec "$@"', "sh", sys.executable, "-m", "bench.chaos", *arguments]
            os.execvpe(command[0], [*command, *inner], {**env, APART: ""})
        reason = tried.stderr.decode(errors="replace").strip()[-200:] or reason
    return reason


def addresses(number: int) -> tuple[str, str]:
    """NATS' and etcd's address for process `number`."""
    return f"127.0.1.{number}", f"127.0.2.{number}"


def rules(kind: str, nats: str, etcd: str) -> list[list[str]]:
    """What iptables is told for a fault of the kind. Pure."""
    how, _, what = kind.partition(" ")
    links = {"nats": [nats], "etcd": [etcd], "both": [nats, etcd]}[what]
    drop = ["-j", "DROP"]
    if how == "lossy":
        drop = ["-m", "statistic", "--mode", "random", "--probability", "0.2", *drop]
    if how == "reset":
        drop = ["-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"]
    # What the process sends goes to its own address, what it gets comes from there.
    flags = {"mute": ["-d"], "deaf": ["-s"]}.get(how, ["-d", "-s"])
    return [[flag, link, *drop] for link in links for flag in flags]


def change(action: str, rules: Sequence[Sequence[str]]) -> None:
    """Add (`-A`) or take away (`-D`) the rules."""
    for rule in rules:
        command = ["iptables", "-w", action, "INPUT", *rule]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
