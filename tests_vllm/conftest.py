"""One vLLM for all tests of this folder: it takes half a minute to start. See CONTRIBUTING.md, `make test-vllm`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.fixtures_nats import NatsServer
from tests.worker import test_engine_contract as contract
from tests_vllm.tiny_model import write

Body = contract.Body
ARGUMENTS: Final = json.dumps({
    "enforce-eager": True, "dtype": "float32", "block-size": 32, "max-num-seqs": 16, "max_num_batched_tokens": 128,
})  # fmt: skip


@pytest.fixture(autouse=True, scope="session")
def little_cache() -> Iterator[None]:
    """A gigabyte for the KV cache, where vLLM would take a part of the machine's memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model."""
    return write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def known(tiny: Path) -> None:
    """The contract's own way to make an engine can make this one."""
    contract.MODELS["vllm"] = str(tiny)
    contract.ARGUMENTS["vllm"] = ARGUMENTS


@pytest.fixture(scope="session")
def run(known: None) -> Iterator[Callable[[Body], None]]:
    """Runs a coroutine function with the engine that all tests share."""
    made: list[contract.Rig] = []

    async def once(body: Body) -> None:
        if not made:
            rig = contract.Rig("vllm")
            await rig.engine.start()
            made.append(rig)
        await body(made[0])

    with asyncio.Runner() as runner:
        yield lambda body: runner.run(once(body))
        for rig in made:
            runner.run(rig.engine.stop())


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server that all tests of this process share."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server
    server.kill()
