"""The server sets of the routing scenarios: frontends in kv mode in front of one process with several mock workers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peer import peer_python
from bench.processes import Servers, free_port, wait_for
from bench.router.scenarios import BLOCK_SIZE, Scenario
from bench.sides import (
    MAX_BATCHED_TOKENS,
    MAX_SEQUENCES,
    MODEL,
    get,
    has_model,
    our_variables,
    peer_variables,
    started,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running server set."""

    servers: Servers
    urls: tuple[str, ...]
    frontend: tuple[str, ...]
    env: dict[str, str]
    ready: Callable[[str], bool]
    """Whether a frontend can route to all workers."""

    def start_frontend(self, url: str) -> None:
        """On the address where its clients look for it."""
        command = [*self.frontend, "--http-host", "127.0.0.1", "--http-port", url.rpartition(":")[2]]
        self.servers.start("frontend", command, self.env)

    def await_frontends(self) -> None:
        for url in self.urls:
            wait_for(f"all workers behind {url}", lambda url=url: self.ready(url), self.servers)  # type: ignore[misc]

    def restart(self) -> None:
        """Kill the frontends and start them again; returns when they can route."""
        self.servers.stop("frontend", kill=True)
        for url in self.urls:
            self.start_frontend(url)
        self.await_frontends()


def start_peer(servers: Servers, scenario: Scenario, model: Path, options: Sequence[str]) -> Fleet:
    """ai-dynamo with its kv router, without our options; its frontends tell each other what they send, as ours do."""
    python = str(peer_python())
    frontend = [python, "-m", "dynamo.frontend", "--router-mode", "kv", "--tokenizer", "fastokens"]
    frontend += ["--router-replica-sync"] if scenario.frontends > 1 else []
    worker = [python, "-m", "dynamo.mocker", "--model-path", str(model), "--model-name", MODEL]
    worker += ["--num-workers", str(scenario.workers), "--num-gpu-blocks-override", str(scenario.blocks)]
    worker += ["--block-size", str(BLOCK_SIZE), "--max-num-seqs", str(MAX_SEQUENCES)]
    worker += ["--max-num-batched-tokens", str(MAX_BATCHED_TOKENS)]

    def ready(url: str) -> bool:
        health = get(f"{url}/health") or {}
        serving = [instance for instance in health.get("instances", ()) if instance["endpoint"] == "generate"]
        return len(serving) >= scenario.workers and has_model(url)

    return _start(servers, scenario, frontend, worker, peer_variables(servers), ready)


def start_ours(servers: Servers, scenario: Scenario, model: Path, options: Sequence[str], mode: str = "kv") -> Fleet:
    """This project."""
    engine = {
        "block_size": BLOCK_SIZE, "num_gpu_blocks": scenario.blocks, "max_num_seqs": MAX_SEQUENCES,
        "max_num_batched_tokens": MAX_BATCHED_TOKENS,
    }  # fmt: skip
    frontend = [sys.executable, "-m", "dynamo.frontend", "--router-mode", mode, "--tokenizer", "fastokens", *options]
    worker = [sys.executable, "-m", "dynamo.worker", "--engine", "mocker", "--engine-args", json.dumps(engine)]
    worker += ["--kv-cache-block-size", str(BLOCK_SIZE), "--num-workers", str(scenario.workers)]
    worker += ["--model-path", str(model), "--model-name", MODEL, "--system-port", "-1"]

    def ready(url: str) -> bool:
        return started(servers) >= scenario.workers and has_model(url)

    return _start(servers, scenario, frontend, worker, our_variables(servers), ready)


def _start(
    servers: Servers, scenario: Scenario, frontend: Sequence[str], worker: Sequence[str], env: dict[str, str],
    ready: Callable[[str], bool],
) -> Fleet:  # fmt: skip
    urls = tuple(f"http://127.0.0.1:{free_port()}" for _ in range(scenario.frontends))
    fleet = Fleet(servers, urls, tuple(frontend), env, ready)
    for url in urls:
        fleet.start_frontend(url)
    servers.start("worker", worker, env)
    fleet.await_frontends()
    return fleet


STARTERS: dict[str, Callable[[Servers, Scenario, Path, Sequence[str]], Fleet]] = {
    "ours": start_ours,
    "peer": start_peer,
    "plain": lambda servers, scenario, model, options: start_ours(servers, scenario, model, options, "round-robin"),
}
