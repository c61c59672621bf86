"""The guides' engines over two nodes: the frontend in the leader's process, a follower elsewhere."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fixtures_etcd import free_ports
from tests.pages.arguments import told
from tests.pages.printed import Rows, chat, command, serving
from tests.processes import RUN, Process

from dynamo.worker.engines.sglang.arguments import argv

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(200)]


MISSING = re.compile(r"pip install -e .\.\[(sglang|vllm)\]")


def address() -> str:
    """One that no other group has."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def test_two_nodes_answer(rows: Rows, servers: dict[str, str], tmp_path: Path) -> None:
    """A leader with in=http and a follower with in=none find each other, and the leader's server answers."""
    rows.shows("two nodes")
    group = ["out=mocker", "--num-nodes", "2", "--leader-addr", address()]
    follower = [*RUN, "in=none", *group, "--node-rank", "1"]
    leader = [*RUN, "in=http", *group, "--node-rank", "0"]
    with (
        Process("follower", follower, tmp_path, servers) as node,
        serving(leader, tmp_path / "leader.log", servers) as client,
    ):
        node.ready_line()
        assert [model.id for model in client.models.list()] == ["bytes"]
        assert chat(client, "bytes", "hi", max_tokens=8)


def test_two_nodes_ask_for_their_engine(
    rows: Rows, own: dict[str, str], servers: dict[str, str], tmp_path: Path
) -> None:
    """Leader and follower are told apart by the lines of each age, and each asks for its engine's package."""
    pairs = {
        "sglang, leader of 0.1": "sglang, follower of 0.1", "sglang, leader": "sglang, follower of 0.1",
        "vllm, leader": "vllm, follower",
    }  # fmt: skip
    with ExitStack() as stack:
        started: list[Process] = []
        for pair in pairs.items():
            words = {**own, "HOST:PORT": address()}
            for name in pair:
                port = ["--http-port", "0"] if "in=http" in rows[name].what else []
                argv = command(rows[name], words, *port)
                started.append(stack.enter_context(Process(f"{len(started)}", argv, tmp_path, servers)))
        for process in started:
            assert process.popen.wait(90) == 1, process.text()
            assert MISSING.search(process.text().splitlines()[-1])


def test_a_follower_runs_what_launch_server_would(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """What the guides start by hand on the other nodes, ours starts with the same words."""
    file = tmp_path / "more.json"
    file.write_text(json.dumps({"trust_remote_code": True}))
    wanted = rows["sglang, follower"].what.strip("`").split()[3:]
    line = (
        "in=none out=sglang CHECKOUT --tensor-parallel-size 16 --num-nodes 2 --node-rank 1 --leader-addr HOST:PORT "
        "--extra-engine-args"
    )
    made = argv(told([*line.split(), str(file)], own["CHECKOUT"]))
    said = " ".join(made).replace("--tp-size", "--tp") + " "
    for words in " ".join(wanted).split(" --"):
        assert f"--{words.removeprefix('--')} " in said
