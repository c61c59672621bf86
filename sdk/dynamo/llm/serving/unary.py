"""Models whose program answers at once, and a client that reads an answer whole: names of 1.x."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamo.llm.protocols import output_dict
from dynamo.llm.serving.model_types import ModelInput, ModelType, WorkerType
from dynamo.llm.serving.registration import register_model
from dynamo.runtime.client import Client
from dynamo.runtime.context import Context
from dynamo.runtime.errors import StreamIncomplete
from dynamo.runtime.runtime import DistributedRuntime


@dataclass(frozen=True)
class UnaryChatModel:
    """A chat model whose handler returns the whole answer as one dict of tokens.

    It is served at `<service_name>.app.generate`, and called `public_model_name` (default: `service_name`).
    """

    model_path: str
    service_name: str
    public_model_name: str | None = None
    chat_template: Path | None = None

    async def serve(self, runtime: DistributedRuntime, handler: Callable[..., Awaitable[Any]]) -> None:
        """Register it and serve `handler(request, *, context)` until the shutdown; raises as `register_model`."""
        endpoint = runtime.endpoint(f"{self.service_name}.app.generate")
        await register_model(
            ModelInput.Tokens, ModelType.Chat, endpoint, self.model_path, self.public_model_name or self.service_name,
            custom_template_path=self.chat_template, worker_type=WorkerType.Aggregated, ignore_weights=True,
        )  # fmt: skip
        await endpoint.serve_endpoint(handler)


class LLMUnaryClient:
    """Asks an endpoint of tokens and gives its answer as one dict: all `token_ids`, and what the last piece said."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @classmethod
    async def connect(cls, runtime: DistributedRuntime, endpoint_name: str) -> LLMUnaryClient:
        """Connect to an endpoint that somebody serves; waits until it is so."""
        client = await runtime.endpoint(endpoint_name).client()
        await client.wait_for_instances()
        return cls(client)

    async def complete(self, request: Mapping[str, Any], *, context: Context | None = None) -> dict[str, Any]:
        """Return the whole answer.

        `StreamIncomplete` where it ends without a finish reason, `ValueError` for `n` above 1.
        """
        if (request.get("sampling_options") or {}).get("n") not in (None, 1):
            raise ValueError("LLMUnaryClient asks for one answer: leave n out, or ask several times")
        tokens: list[int] = []
        last: dict[str, Any] = {}
        async for item in self._client.round_robin(dict(request), context=context, annotated=False):
            last = output_dict(item)
            tokens += last.get("token_ids") or []
        if last.get("finish_reason") is None:
            raise StreamIncomplete(f"{self._client.path} ended its answer without a finish_reason")
        return {**last, "token_ids": tokens}


def with_engine_data(completion: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an answer with more `engine_data`; `ValueError` where some of it is there already."""
    known = completion.get("engine_data") or {}
    if both := sorted(set(known) & set(values)):
        raise ValueError(f"engine_data has {', '.join(both)} already")
    return {**completion, **({"engine_data": {**known, **values}} if values else {})}
