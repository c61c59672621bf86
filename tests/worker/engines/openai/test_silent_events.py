"""A server that was to publish KV events and doesn't: routing by caches is blind then, and its user is told."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq.asyncio
from tests.waiting import until
from tests.worker.chain_model import write_checkout
from tests.worker.engine_rigs import Recorder
from tests.worker.engines.openai.scripted_server import ScriptedServer

from dynamo.llm import open_model
from dynamo.llm.protocols import PreprocessedRequest, StopConditions
from dynamo.worker.engines import create_engine
from dynamo.worker.settings import WorkerSettings

_ANSWER: Final = b'data: {"choices": [{"token_ids": [7], "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'


async def ask(engine: Any, length: int) -> None:
    """Wait for the end of an answer to a prompt of so many tokens, whatever it is."""
    sink, conditions = Recorder(), StopConditions(max_tokens=1)
    engine.submit(PreprocessedRequest(model="m", token_ids=[1] * length, stop_conditions=conditions), sink)
    await sink.end()


async def test_events_that_never_come_are_remarked(tmp_path: Path) -> None:
    """After twenty prompts the address is named, and the address that vLLM needs; nothing once an event came."""
    path = str(write_checkout(tmp_path / "model"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with ScriptedServer() as server:
        given = json.dumps({"url": server.url, "api": "vllm", "kv_events": f"tcp://127.0.0.1:{port}"})
        settings = WorkerSettings(engine="openai", engine_args=given, model_path=path, kv_cache_block_size=16)
        engine: Any = create_engine(settings, open_model(path))
        await engine.start()
        engine.on_kv(lambda step: None)
        publisher = zmq.asyncio.Context.instance().socket(zmq.PUB)
        try:
            server.replies["/v1/completions"] = 400, b"it is refused"
            await ask(engine, 16)
            server.replies["/v1/completions"] = 200, _ANSWER
            for length in (15, *[16] * 20):
                assert engine.remarks() == []
                await ask(engine, length)
            (remark,) = engine.remarks()
            assert f"no KV event came from tcp://127.0.0.1:{port} with 20 prompts" in remark
            assert "tcp://*:PORT" in remark
            publisher.bind(f"tcp://*:{port}")

            async def heard() -> bool:
                batch = msgspec.msgpack.encode([0.0, [["AllBlocksCleared"]]])
                await publisher.send_multipart([b"", (0).to_bytes(8, "big"), batch])
                return not engine.remarks()

            await until("an event is heard", heard)
        finally:
            publisher.close(linger=0)
            await engine.stop()
