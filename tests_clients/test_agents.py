"""Claude Code, Codex and opencode repair small repositories, while workers of their model are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from tests.environments import environment
from tests.processes import DYNAMO, Process
from tests.waiting import eventually
from tests_clients.agents import AGENTS, broken, repair, repaired
from tests_clients.conftest import HERE, Clients

REPAIRS: Final = int(os.environ.get("REPAIRS", "3"))
"""How many each agent does while workers are killed."""
AT_ONCE: Final = int(os.environ.get("REPAIRS_AT_ONCE", "2"))
KILLS_EVERY: Final = (2.0, 6.0)
"""Seconds between two kills: from, to."""


class Coder:
    """The scripted model, served by two workers that etcd and NATS join to a frontend."""

    def __init__(self, folder: Path) -> None:
        self.env = environment(folder)
        argv = [*DYNAMO, "up", str(HERE / "engines" / "coder.yaml"), "--http-port", "0"]
        self.process = Process("coder", argv, folder, self.env)
        self.url = ""

    def wait(self) -> None:
        """Wait until it serves."""
        eventually("the model is served", lambda: " url " in self.process.text(), 120)
        self.url = str(self.pipeline()["url"]).removesuffix("/v1")

    def pipeline(self) -> dict[str, Any]:
        """What `dynamo ps` says of it."""
        done = subprocess.run([*DYNAMO, "ps", "-o", "json"], env=self.env, check=True, capture_output=True, text=True)
        return dict(json.loads(done.stdout)[0])

    def kill_one(self, chance: random.Random) -> bool:
        """Kill a worker, if both of them are there."""
        parts = [part for part in self.pipeline()["parts"] if part["name"].startswith("worker")]
        if [part["state"] for part in parts] != ["ready", "ready"]:
            return False
        os.kill(chance.choice(parts)["pid"], signal.SIGKILL)
        return True


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coder]:
    """The model, until all agents are done."""
    coder = Coder(tmp_path_factory.mktemp("coder"))
    with coder.process:
        coder.wait()
        yield coder


@pytest.mark.parametrize("agent", AGENTS)
def test_a_repair(agent: str, coder: Coder, tmp_path: Path) -> None:
    """An agent reads, edits and runs the tests by its own tools, and hears that it is done."""
    path = broken(tmp_path / "repository", 7)
    said = repair(Clients(tmp_path, {"SERVER": coder.url}), agent, path)
    assert "Repaired: the tests pass." in said
    assert repaired(path)


@pytest.mark.parametrize("agent", AGENTS)
def test_repairs_while_workers_are_killed(agent: str, coder: Coder, tmp_path: Path) -> None:
    """No agent notices that one of two workers is killed at random moments, again and again."""
    over, kills, chance = threading.Event(), [0], random.Random(REPAIRS)

    def kill() -> None:
        while not over.wait(chance.uniform(*KILLS_EVERY)):
            kills[0] += coder.kill_one(chance)

    def one(number: int) -> str:
        path = broken(tmp_path / str(number) / "repository", number)
        try:
            said = repair(Clients(path.parent.parent, {"SERVER": coder.url}), agent, path)
        except Exception as error:
            return f"{number}: {error}"
        return "" if "Repaired: the tests pass." in said and repaired(path) else f"{number}: {said}"

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            failures = [failure for failure in pool.map(one, range(REPAIRS)) if failure]
    finally:
        over.set()
        killer.join(60)
    sys.stderr.write(f"{agent}: {REPAIRS - len(failures)} of {REPAIRS} repairs, {kills[0]} workers killed\n")
    assert failures == []
    assert kills[0] > 0
