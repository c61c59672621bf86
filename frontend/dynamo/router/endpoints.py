"""The endpoints of the standalone router, over `dynamo.llm.KvRouter`: names and payloads are NVIDIA Dynamo's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from dynamo.llm.kv_router.router import KvRouter
from dynamo.runtime.context import Context
from dynamo.runtime.errors import InvalidArgument


class RouterEndpoints:
    """One async generator for each endpoint."""

    def __init__(self, router: KvRouter) -> None:
        self._router = router

    async def generate(self, request: Any, context: Context) -> AsyncIterator[Any]:
        """Send a `PreprocessedRequest` to the best worker; yields its outputs.

        The stop of one is the stop of the other.
        """
        body = dict(_object(request))
        if body.get("routing") is None and body.get("dp_rank") is not None:
            body["routing"] = {"dp_rank": body["dp_rank"]}  # where older callers say it
        async for item in await self._router.generate_from_request(body, context=context):
            yield item

    async def best_worker_id(self, request: Any) -> AsyncIterator[int]:
        """Take token ids, alone or as `token_ids` of an object; yields the worker that they would go to.

        Nothing is counted.
        """
        body = _object(request)
        worker, _, _ = await self._router.best_worker(
            body.get("token_ids", ()),
            body.get("router_config_override"),
            block_mm_infos=body.get("block_mm_infos"),
            lora_name=body.get("lora_name"),
            cache_namespace=body.get("cache_namespace"),
        )
        yield worker

    async def get_overlap_scores(self, request: Any) -> AsyncIterator[dict[str, Any]]:
        """Take token ids in the same forms; yields how many blocks of them each worker holds."""
        body = _object(request)
        yield await self._router.get_overlap_scores(
            body.get("token_ids", ()),
            body.get("router_config_override"),
            body.get("block_mm_infos"),
            body.get("lora_name"),
            cache_namespace=body.get("cache_namespace"),
        )


def _object(request: Any) -> Mapping[str, Any]:
    if isinstance(request, list):
        return {"token_ids": request}
    if not isinstance(request, Mapping) or "token_ids" not in request:
        raise InvalidArgument("a request is an object with token_ids")
    return request
