"""`KserveGrpcService` in this process, asked by Triton's client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tests.llm.opened_first import with_one
from tests.waiting import until
from tritonclient.utils import InferenceServerException

from dynamo.llm import HttpError, KserveGrpcService, PythonAsyncEngine
from dynamo.runtime import InvalidArgument


async def generate(request: dict[str, Any]) -> AsyncIterator[Any]:
    if request["prompt"] == "no":
        raise HttpError(403, "not that")
    for word in request["prompt"].split():
        yield {"choices": [{"index": 0, "text": word}]}
    yield {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}


@asynccontextmanager
async def service() -> AsyncIterator[KserveGrpcService]:
    made = KserveGrpcService(0, "127.0.0.1", metrics_port=0)
    made.add_completions_model("m", "checksum", PythonAsyncEngine(generate, asyncio.get_running_loop()))
    running = made.run()
    await until("it serves", lambda: made.url or running.done(), 30)
    yield made
    made.shutdown()
    await running


async def said(client: Any, text: str, **options: Any) -> str:
    tensor = triton.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    answer = await client.infer("m", [tensor], **options)
    return str(answer.as_numpy("text_output")[0].decode())


@with_one(service)
async def test_a_function_is_asked(service: KserveGrpcService) -> None:
    """Over gRPC as over HTTP; its own refusal is a code; models go while it runs."""
    async with triton.InferenceServerClient(service.address) as client:
        assert await said(client, "hello world") == "helloworld"
        with pytest.raises(InferenceServerException, match="not that") as refused:
            await said(client, "no")
        assert refused.value.status() == "StatusCode.PERMISSION_DENIED"
        async with httpx.AsyncClient(timeout=20) as http:
            done = await http.post(f"{service.url}/v1/completions", json={"model": "m", "prompt": "a b"})
        assert done.json()["choices"][0]["text"] == "ab"
        service.remove_completions_model("m")
        end = asyncio.get_running_loop().time() + 20
        while await client.is_model_ready("m"):
            assert asyncio.get_running_loop().time() < end, "the model is still there"


def test_tensors_are_refused() -> None:
    """With what to do instead; there are none to list."""
    service = KserveGrpcService()
    assert service.list_tensor_models() == []
    with pytest.raises(InvalidArgument, match="add_completions_model takes text"):
        service.add_tensor_model("t", "checksum", None, runtime_config=None)
    with pytest.raises(InvalidArgument, match="'t' is not served"):
        service.remove_tensor_model("t")
