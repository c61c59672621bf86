"""Many simulated engines in few processes, the frontends in front of them, and one engine that answers at once.

An instance has a lease in etcd and a connection to NATS of its own, as if it were alone in its process; what many
processes would cost besides isn't here. `dynamo-worker --num-workers` is what starts them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.processes import Servers, free_port, wait_for
from bench.sides import MODEL, get

PROBE: Final = "probe"
"""The model of the engine that answers at once."""
_READY: Final = b"ready "
START_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines that are alike."""

    processes: int
    each: int
    """In one process."""
    engine: Mapping[str, float]

    @property
    def size(self) -> int:
        """How many engines there are in all."""
        return self.processes * self.each

    def command(self, model: Path) -> list[str]:
        """One process of it."""
        worker = [sys.executable, "-m", "dynamo.worker", "--engine", "mocker", "--engine-args", json.dumps(self.engine)]
        worker += ["--num-workers", str(self.each), "--system-port", "-1", "--graceful-shutdown-timeout-secs", "0"]
        return [*worker, "--model-path", str(model), "--model-name", MODEL]


def start_frontend(
    servers: Servers, env: Mapping[str, str], options: Sequence[str] = (), role: str = "frontend"
) -> str:
    """Start one; its address, at which it needn't answer yet."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1"]
    servers.start(role, [*command, "--http-port", url.rpartition(":")[2], *options], env)
    return url


def start_fleet(servers: Servers, fleet: Fleet, model: Path, env: Mapping[str, str], role: str = "worker") -> set[str]:
    """Start it and wait until every frontend can route to all of it; the ids of its instances."""
    outputs = [servers.start(role, fleet.command(model), env) for _ in range(fleet.processes)]
    wait_for(f"{fleet.size} workers", lambda: len(ids(outputs)) >= fleet.size, servers, START_SECONDS)
    return ids(outputs)


def start_probe(servers: Servers, model: Path, env: Mapping[str, str]) -> None:
    """Start an engine that gives its prompt back at once, as the model `PROBE`."""
    command = [sys.executable, "-m", "dynamo.worker", "--engine", "echo_core", "--system-port", "-1"]
    command += ["--endpoint", "dyn://probe.backend.generate", "--model-path", str(model), "--model-name", PROBE]
    output = servers.start("probe", command, {**env, "DYN_TOKEN_ECHO_DELAY_MS": "0"})
    wait_for("the probe's engine", lambda: bool(ids([output])), servers)


def ids(outputs: Sequence[Path]) -> set[str]:
    """Instances that have said that every frontend can route to them."""
    lines = [line for output in outputs for line in output.read_bytes().splitlines() if line.startswith(_READY)]
    return {str(json.loads(line.removeprefix(_READY))["instance"]) for line in lines}


def routable(url: str) -> set[str]:
    """Instances of the fleet to which a frontend could send a request now; none where it doesn't answer."""
    listed = (get(f"{url}/health") or {}).get("instances", ())
    return {str(entry["instance_id"]) for entry in listed if entry["routable"]}
