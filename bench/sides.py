"""The two server sets that are compared: a frontend, two mock workers, and what they need.

Each side has an etcd of its own, so that its cost can be told apart; ours has a nats-server too. All engines have
the same timing, block size and limits, both frontends the same model files, and both log warnings only.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peer import peer_environment, peer_python
from bench.processes import Servers, free_port, program, rss_mb, wait_for
from bench.workloads import INFINITELY_FAST, REAL_SPEED, Speed, Tokenizer

ROOT = Path(__file__).resolve().parents[1]
MODEL = "bench"
WORKERS = 2
BLOCK_SIZE = 64
BLOCKS = 16_384
MAX_SEQUENCES = 256
MAX_BATCHED_TOKENS = 8192
LOG_LEVEL = os.environ.get("BENCH_LOG", "warn")


@dataclass(frozen=True, slots=True)
class Plan:
    """How to start one side."""

    model: Path
    speed: Speed
    tokenizer: Tokenizer
    frontend_options: tuple[str, ...] = ()
    workers: int = WORKERS

    @property
    def ratio(self) -> float:
        """The engines' speed-up."""
        return INFINITELY_FAST if self.speed == "fast" else REAL_SPEED


@dataclass(frozen=True, slots=True)
class Side:
    """A running server set."""

    servers: Servers
    url: str
    rss_empty: float
    rss_loaded: float


def get(url: str) -> Any:
    """A JSON answer of a server that may not be up yet; None then."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return None


def start_etcd(servers: Servers) -> str:
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = [program("etcd"), "--data-dir", str(servers.folder / "etcd"), "--log-level", "error"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    servers.start("etcd", [*command, "--initial-cluster", f"default={peer}"], os.environ)
    wait_for("etcd", lambda: get(f"{client}/health") is not None, servers)
    return client


def start_nats(servers: Servers) -> str:
    port = free_port()
    output = servers.start("nats", [program("nats-server"), "-a", "127.0.0.1", "-p", str(port)], os.environ)
    wait_for("nats-server", lambda: b"Server is ready" in output.read_bytes(), servers)
    return f"nats://127.0.0.1:{port}"


def _serve(
    servers: Servers, frontend: Sequence[str], worker: Sequence[str], env: dict[str, str],
    ready: Callable[[str], bool], count: int = WORKERS,
) -> Side:  # fmt: skip
    """Start the frontend, then the workers; memory is read before and after the model was loaded."""
    url = f"http://127.0.0.1:{free_port()}"
    servers.start("frontend", [*frontend, "--http-host", "127.0.0.1", "--http-port", url.rpartition(":")[2]], env)
    wait_for("the frontend", lambda: get(f"{url}/live") is not None, servers)
    empty = rss_mb(servers.pids("frontend"))
    for _ in range(count):
        servers.start("worker", worker, env)
    wait_for(f"{count} workers behind {url}", lambda: ready(url), servers)
    return Side(servers, url, empty, rss_mb(servers.pids("frontend")))


def started(servers: Servers) -> int:
    """How many of our workers have said that every frontend can route to them."""
    outputs = servers.folder.glob("worker-*.log")
    return sum(line.startswith(b"ready ") for output in outputs for line in output.read_bytes().splitlines())


def has_model(url: str) -> bool:
    listed = get(f"{url}/v1/models")
    return bool(listed) and any(entry["id"] == MODEL for entry in listed["data"])


def peer_variables(servers: Servers) -> dict[str, str]:
    """The environment of the peer's processes, with an etcd started for them."""
    return {
        **peer_environment(),
        "ETCD_ENDPOINTS": start_etcd(servers),
        "HOME": str(servers.folder),
        "HF_HUB_OFFLINE": "1",
        "DYN_LOG": LOG_LEVEL,
        # Loopback, as far as it can be told: its ZMQ publishers bind every address all the same.
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "DYN_EVENT_PLANE_HOST": "127.0.0.1",
    }


def our_variables(servers: Servers) -> dict[str, str]:
    """The environment of our processes, with an etcd and a nats-server started for them."""
    env = {
        k: v for k, v in os.environ.items() if k == "DYN_DIRECT_FRAMES" or not k.startswith(("DYN_", "ETCD_", "NATS_"))
    }
    # The repository's root is on our own path only: servers run as they are installed.
    env["PYTHONPATH"] = os.pathsep.join(p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p != str(ROOT))
    return env | {"ETCD_ENDPOINTS": start_etcd(servers), "NATS_SERVER": start_nats(servers), "DYN_LOG": LOG_LEVEL}


def start_peer(servers: Servers, plan: Plan) -> Side:
    """ai-dynamo: TCP request plane, etcd discovery, its defaults but for what `Plan` says."""
    python = str(peer_python())
    env = peer_variables(servers)
    frontend = [python, "-m", "dynamo.frontend", "--router-mode", "round-robin", "--tokenizer", plan.tokenizer]
    worker = [python, "-m", "dynamo.mocker", "--model-path", str(plan.model), "--model-name", MODEL]
    worker += ["--speedup-ratio", f"{plan.ratio:g}" if plan.ratio < 1e5 else str(int(plan.ratio))]
    worker += ["--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(BLOCKS)]
    worker += ["--max-num-seqs", str(MAX_SEQUENCES), "--max-num-batched-tokens", str(MAX_BATCHED_TOKENS)]

    def ready(url: str) -> bool:
        health = get(f"{url}/health") or {}
        serving = [i for i in health.get("instances", ()) if i["endpoint"] == "generate"]
        return len(serving) >= plan.workers and has_model(url)

    return _serve(servers, frontend, worker, env, ready, plan.workers)


def start_ours(servers: Servers, plan: Plan) -> Side:
    """This project: one frontend process, two worker processes, etcd and NATS."""
    engine = {
        "speedup_ratio": plan.ratio,
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks": BLOCKS,
        "max_num_seqs": MAX_SEQUENCES,
        "max_num_batched_tokens": MAX_BATCHED_TOKENS,
    }
    options = ("--tokenizer", plan.tokenizer, *plan.frontend_options)
    worker = ["--engine", "mocker", "--engine-args", json.dumps(engine), "--kv-cache-block-size", str(BLOCK_SIZE)]
    return _start(servers, plan.model, options, worker, {}, plan.workers)


def start_slots(servers: Servers, model: Path, slots: int, speed: float, options: Sequence[str]) -> Side:
    """This project with engines that run so many sequences each, at this multiple of real speed."""
    engine = {"speedup_ratio": speed, "block_size": BLOCK_SIZE, "num_gpu_blocks": BLOCKS, "max_num_seqs": slots}
    worker = ["--engine", "mocker", "--engine-args", json.dumps(engine), "--kv-cache-block-size", str(BLOCK_SIZE)]
    return _start(servers, model, options, worker, {})


def start_echo(servers: Servers, model: Path, delay_ms: int) -> Side:
    """This project with engines that echo their prompt, a token a step."""
    return _start(servers, model, (), ["--engine", "echo_core"], {"DYN_TOKEN_ECHO_DELAY_MS": str(delay_ms)})


def _start(
    servers: Servers, model: Path, frontend_options: Sequence[str], worker_options: Sequence[str],
    extra: dict[str, str], count: int = WORKERS,
) -> Side:  # fmt: skip
    env = our_variables(servers) | extra
    frontend = [sys.executable, "-m", "dynamo.frontend", "--router-mode", "round-robin", *frontend_options]
    worker = [sys.executable, "-m", "dynamo.worker", *worker_options]
    worker += ["--model-path", str(model), "--model-name", MODEL, "--system-port", "-1"]

    def ready(url: str) -> bool:
        return started(servers) >= count and has_model(url)

    return _serve(servers, frontend, worker, env, ready, count)


STARTERS: dict[str, Callable[[Servers, Plan], Side]] = {"ours": start_ours, "peer": start_peer}
