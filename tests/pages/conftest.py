"""What the tests of NVIDIA Dynamo's guides share: their rows, small models, one etcd and one NATS."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.environments import quick_environment
from tests.fixtures_etcd import EtcdServer, free_ports
from tests.pages.printed import Rows
from tests.processes import Process
from tests.waiting import eventually
from tests.worker.chain_model import write_checkout, write_gguf


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    """The rows that name this test; one that it doesn't take fails it."""
    file = request.node.path.relative_to(request.config.rootpath)
    rows = Rows(f"{file}::{request.node.originalname}")
    yield rows
    assert not rows.left, f"the table says that this test shows them: {sorted(rows.left)}"


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands for the words in capitals: a model of known answers as a folder and as a file, its arguments."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "json.json").write_text(json.dumps({"dtype": "half", "trust_remote_code": True}))
    (folder / "yaml.yaml").write_text("backend: pytorch\nkv_cache_config:\n  event_buffer_max_size: 1024\n")
    (folder / "greedy.json").write_text(json.dumps({"temperature": 0, "max_completion_tokens": 16}))
    return {
        "CHECKOUT": str(write_checkout(folder / "chain")), "MODEL.gguf": str(write_gguf(folder)),
        "ARGS.json": str(folder / "json.json"), "ARGS.yaml": str(folder / "yaml.yaml"),
        "GREEDY": str(folder / "greedy.json"),
    }  # fmt: skip


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment that names an etcd, and a NATS as the last guide starts it."""
    folder = tmp_path_factory.mktemp("servers")
    port = free_ports(1)[0]
    binary = str(Path(sys.executable).parent / "nats-server")
    nats = [binary, "-js", "--trace", "--store_dir", str(folder / "jetstream"), "-a", "127.0.0.1", "-p", str(port)]
    etcd = EtcdServer()
    try:
        etcd.start()
        with Process("nats", nats, folder, quick_environment(folder)) as started:
            etcd.wait()
            eventually("NATS serves", lambda: "Server is ready" in started.text())
            yield quick_environment(folder, ETCD_ENDPOINTS=etcd.url, NATS_SERVER=f"nats://127.0.0.1:{port}")
    finally:
        etcd.close()
