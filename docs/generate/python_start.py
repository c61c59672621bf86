"""The names of the Python API that a new user needs: arguments, results, errors, and an example that a test runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Name(NamedTuple):
    """A function or class, by its package and name."""

    path: str
    args: Mapping[str, str]
    returns: str
    raises: Mapping[str, str]
    example: str


_IN_MEMORY: Final = """
import asyncio

from dynamo.runtime import DistributedRuntime


async def shout(request, context):
    for word in request.split():
        yield word.upper()


async def main():
    async with await DistributedRuntime.in_memory() as runtime:
        endpoint = runtime.endpoint("demo.backend.generate")
        serving = asyncio.ensure_future(endpoint.serve_endpoint(shout))
        client = await endpoint.client()
        await client.wait_for_instances(timeout=5)
        {call}
        await runtime.shutdown()
        await serving


asyncio.run(main())
"""


def _called(call: str, imports: str = "DistributedRuntime") -> str:
    text = _IN_MEMORY.replace("{call}", call.replace("\n", "\n        "))
    return text.replace("import DistributedRuntime", f"import {imports}").strip()


_REQUEST: Final = {
    "request": "What MessagePack holds: None, numbers, texts, bytes, lists, dictionaries.",
    "annotated": "True: items are `Annotated` (`item.data()`); False: items as the handler yields them.",
    "context": "Context of a request that this one belongs to, so that both stop together.",
}
_STREAM: Final = "An asynchronous iterator of items, awaited or not. Leaving the loop cancels the request."
_FAILS: Final = {
    "NoInstances": "Nobody serves the endpoint.",
    "DynamoException": "Raised while iterating: what the handler raised, or that the worker was lost.",
}
_WORKER: Final = """import asyncio

from dynamo.runtime import dynamo_worker


async def generate(request):
    for word in request.split():
        yield word.upper()


@dynamo_worker()
async def worker(runtime):
    await runtime.endpoint("demo.backend.generate").serve_endpoint(generate)


if __name__ == "__main__":
    asyncio.run(worker())"""
_MODEL: Final = """import asyncio

from dynamo.llm import ModelInput, ModelType, register_model
from dynamo.runtime import dynamo_worker


async def generate(request):
    yield {"token_ids": request["token_ids"][-4:]}
    yield {"token_ids": [], "finish_reason": "stop"}


@dynamo_worker()
async def worker(runtime):
    endpoint = runtime.endpoint("demo.backend.generate")
    await register_model(ModelInput.Tokens, ModelType.Chat | ModelType.Completions, endpoint, "", "my-model")
    await endpoint.serve_endpoint(generate)


if __name__ == "__main__":
    asyncio.run(worker())"""

NAMES: Final = (
    Name(
        "dynamo.runtime.dynamo_worker",
        {"static": "Find workers over NATS without etcd.", "enable_nats": "Accepted and ignored."},
        "A decorator for a coroutine function that takes a runtime; call the result without arguments.",
        {"InvalidArgument": "The decorator was written without parentheses, or with an unnamed argument."},
        _WORKER,
    ),
    Name(
        "dynamo.runtime.dynamo_endpoint",
        {"request_model": "pydantic model of the request.", "response_model": "Model of the items; not enforced."},
        "A decorator for a generator, which then gets a parsed request.",
        {"InvalidArgument": "At the caller: the request doesn't fit the model."},
        """from pydantic import BaseModel

from dynamo.runtime import dynamo_endpoint


class Question(BaseModel):
    text: str


@dynamo_endpoint(Question, str)
async def generate(request):
    yield request.text.upper()""",
    ),
    Name(
        "dynamo.runtime.DistributedRuntime.in_memory",
        {"world": "`MemoryWorld` that several runtimes share; a new one if left out.", "config": "Settings."},
        "A runtime without etcd and NATS, for tests; an asynchronous context manager.",
        {},
        _called("print(client.instance_ids())"),
    ),
    Name(
        "dynamo.runtime.DistributedRuntime.endpoint",
        {"path": "`namespace.component.endpoint`, with or without `dyn://`."},
        "The endpoint, to be served or called.",
        {"InvalidArgument": "The path doesn't have three parts."},
        _called("print(endpoint.name)"),
    ),
    Name(
        "dynamo.runtime.Endpoint.serve_endpoint",
        {
            "handler": "Asynchronous generator `handler(request)` or `handler(request, context)`.",
            "graceful_shutdown": "False cuts running streams at the shutdown.",
            "metrics_labels": "Accepted and ignored.",
            "health_check_payload": "Accepted and ignored.",
        },
        "None, once the shutdown has let the streams end.",
        {"CannotConnect": "etcd or NATS can't be reached."},
        _WORKER,
    ),
    Name(
        "dynamo.runtime.Endpoint.client",
        {"router_mode": "How `Client.generate` chooses an instance; round-robin if left out."},
        "A client that knows the instances as they are now.",
        {"CannotConnect": "The instances can't be read."},
        _called('client = await endpoint.client("random")\nprint([item async for item in client.generate("hi")])'),
    ),
    Name(
        "dynamo.runtime.Client.round_robin",
        _REQUEST,
        _STREAM,
        _FAILS,
        _called('async for item in client.round_robin("hello world"):\n    print(item.data())'),
    ),
    Name(
        "dynamo.runtime.Client.direct",
        {**_REQUEST, "instance_id": "Instance that gets the request, as `instance_ids()` lists it."},
        _STREAM,
        _FAILS,
        _called(
            "first = client.instance_ids()[0]\n"
            'print([word async for word in client.direct("hello", first, annotated=False)])'
        ),
    ),
    Name(
        "dynamo.runtime.Client.wait_for_instances",
        {"timeout": "Seconds to wait."},
        "The ids of the instances, as soon as there is one.",
        {"NoInstances": "The time is over."},
        _called("print(await client.wait_for_instances(timeout=5))"),
    ),
    Name(
        "dynamo.runtime.Context.is_stopped",
        {},
        "Whether the request was cancelled: its client left, or its time is over.",
        {},
        """async def generate(request, context):
    for number in range(1000):
        if context.is_stopped():
            return
        yield number""",
    ),
    Name(
        "dynamo.runtime.DynamoException",
        {"message": "Sentence for people."},
        "An error with `code` and `retryable`: whether another instance may do better.",
        {},
        _called(
            'try:\n    print([item async for item in client.direct("hello", 1)])\n'
            "except DynamoException as error:\n    print(error.code, error.retryable)",
            "DistributedRuntime, DynamoException",
        ),
    ),
    Name(
        "dynamo.runtime.InvalidArgument",
        {"message": "Sentence for the caller; an HTTP client gets it with status 400."},
        "An error that says that the request is wrong.",
        {},
        """from dynamo.runtime import InvalidArgument


async def generate(request):
    if not isinstance(request, str):
        raise InvalidArgument("request must be a text")
    yield request.upper()""",
    ),
    Name(
        "dynamo.llm.register_model",
        {
            "model_input": "What the handler gets: `ModelInput.Tokens` or `ModelInput.Text`.",
            "model_type": "Routes to serve: `ModelType.Chat | ModelType.Completions`, `ModelType.Embedding`.",
            "endpoint": "Endpoint that the model is served at, before or after this call.",
            "model_path": 'Folder, GGUF file or model of the Hugging Face Hub; `""`: the built-in byte-level model.',
            "model_name": "Name that clients use; by default the last part of the path.",
            "context_length": "Longest prompt and answer, in tokens; at most the model's own.",
            "kv_cache_block_size": "Tokens in a KV block.",
            "migration_limit": "Times a request may move to another worker.",
            "user_data": "Anything that JSON holds; part of the model's card.",
            "worker_type": "`WorkerType.Aggregated`, `Prefill` or `Decode`.",
        },
        "None, once frontends can find the model.",
        {"InvalidArgument": "An argument isn't understood, or the model can't be read. Nothing is registered then."},
        _MODEL,
    ),
    Name(
        "dynamo.llm.unregister_model",
        {"endpoint": "Endpoint whose model to withdraw.", "lora_name": "Not supported."},
        "None. Running requests continue, and the endpoint stays served.",
        {"InvalidArgument": "A `lora_name` was given."},
        """from dynamo.llm import unregister_model


async def leave(endpoint):
    await unregister_model(endpoint)""",
    ),
    Name(
        "dynamo.llm.HttpError",
        {"code": "HTTP status, 400 to 499 for the client's mistakes.", "message": "Sentence for the client."},
        "An error that a handler raises; the HTTP client gets this status and sentence.",
        {"ValueError": "The code is no status."},
        """from dynamo.llm import HttpError


async def generate(request):
    if "secret" in request["messages"][-1]["content"]:
        raise HttpError(403, "this model doesn't tell secrets")
    yield {"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]}""",
    ),
)
