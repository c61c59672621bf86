"""The operator under test as a process, and what its own `/metrics` say."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml
from bench.operator.plane import ROOT, Plane
from bench.processes import BenchError, free_port

COMMAND = [sys.executable, "-m", "dynamo.operator"]
IMAGE = "bench/none:1"


@dataclass
class Operator:
    """One running replica."""

    role: str
    port: int
    begun: float
    output: Path
    start_cpu: float = 0.0
    """CPU seconds until it had looked around: what an interpreter and its modules cost."""

    async def metrics(self) -> dict[str, float]:
        """Every line of /metrics; empty while it isn't up."""
        try:
            async with (
                aiohttp.ClientSession(trust_env=False) as session,
                session.get(f"http://127.0.0.1:{self.port}/metrics") as answer,
            ):
                text = await answer.text()
        except (aiohttp.ClientError, OSError):
            return {}
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}


def start(plane: Plane, role: str = "operator", *, elected: bool = False) -> Operator:
    """Starts a replica with the rights that the chart gives."""
    settings = {
        "images": {"frontend": IMAGE, "workers": {"default": IMAGE}, "pullPolicy": "IfNotPresent"},
        "etcd": {"endpoints": ["http://etcd.invalid:2379"]},
        "nats": {"url": "nats://nats.invalid:4222"},
        "leaderElection": {"enabled": elected},
    }
    config = plane.folder / f"{role}.yaml"
    config.write_text(yaml.safe_dump(settings))
    port = free_port()
    env = {
        **{k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")},
        "KUBECONFIG": str(plane.kubeconfig("operator")),
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("operator", "sdk")),
        "POD_NAMESPACE": "dynamo-system",
        "POD_NAME": role,
        "DYN_LOG": "info",
    }
    output = plane.start(role, [*COMMAND, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)], env)
    return Operator(role, port, time.time(), output)


def reconciles(metrics: dict[str, float]) -> int:
    """How many reconciles have ended."""
    return int(sum(v for k, v in metrics.items() if k.startswith("controller_runtime_reconcile_total")))


async def until_reconciled(operator: Operator, number: int, seconds: float) -> float:
    """Waits until so many reconciles have ended and none is due; the seconds since the process began."""
    end = time.time() + seconds
    while True:
        found = await operator.metrics()
        idle = found.get('workqueue_depth{name="dynamopipeline"}', 1.0) == 0.0
        if idle and reconciles(found) >= number:
            return time.time() - operator.begun
        if time.time() > end:
            raise BenchError(f"only {reconciles(found)} reconciles after {seconds:.0f} s; see {operator.output}")
        await asyncio.sleep(0.1)
