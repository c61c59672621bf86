"""Two nodes that are one vLLM: leader and follower as processes of their own, each with one half of the model."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.waiting import eventually
from tests.worker.chain_model import LOOP, write_checkout
from tests.worker.engine_rigs import VLLM
from tests_vllm.programs import PATIENCE, RUN, WORKER, client, gone, running

pytestmark = [pytest.mark.servers, pytest.mark.processes]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def test_two_nodes_are_one_engine(tmp_path: Path, etcd_server: EtcdServer, nats_server: NatsServer) -> None:
    """By multiprocessing: the answer is the model's; a follower that is killed ends the leader, with the reason."""
    env = {"ETCD_ENDPOINTS": etcd_server.url, "NATS_SERVER": nats_server.url, "VLLM_HOST_IP": "127.0.0.1"}
    model = write_checkout(tmp_path / "chain")
    flags = [
        "--engine", "vllm", "--model-path", str(model), "--endpoint", "dyn://two.backend.generate",
        "--tensor-parallel-size", "2", "--num-nodes", "2", "--leader-addr", f"127.0.0.1:{free_port()}",
        "--engine-args", json.dumps(json.loads(VLLM)),
    ]  # fmt: skip
    frontend = ["in=http", "out=dyn://two.backend.generate", "--http-port", "0"]
    with (
        running(tmp_path, RUN, frontend, **env) as front,
        running(tmp_path, WORKER, [*flags, "--node-rank", "1"], "follower", **env) as follower,
        running(tmp_path, WORKER, [*flags, "--node-rank", "0"], "leader", **env) as leader,
    ):
        asker = client(front.ready()["url"])
        leader.ready()
        follower.ready()
        eventually("the model is served", lambda: asker.models.list().data, PATIENCE)
        answer = asker.completions.create(model="chain", prompt=LOOP[:3], max_tokens=8, temperature=0)
        assert answer.choices[0].text == LOOP[3:11]
        children = [*leader.children(), *follower.children()]
        follower.popen.kill()
        assert leader.popen.wait(120) == 1
        assert "node 1 of the group" in leader.log.read_text().splitlines()[-1]
        eventually("nothing stays", lambda: gone(children))
