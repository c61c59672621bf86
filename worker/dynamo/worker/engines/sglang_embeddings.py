"""SGLang as a maker of vectors (`is_embedding`, or a model for them): each input is a request of its own to its engine,
which batches them. Used by `sglang.py`, in SGLang's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from dynamo.llm.embeddings import EmbeddingRequest, packed
from dynamo.worker.engines.sglang_requests import Job, error_of

MOST: Final = 64
"""Inputs of one request that are under way at once."""
Push = Callable[[int, bytes], None]


class Vectors(NamedTuple):
    """What an engine's vectors are."""

    dimensions: int
    cut: bool
    """They may be cut."""


def vectors_of(config: Any) -> Vectors | None:
    """What SGLang's `ModelConfig` says of a model; None: it makes text."""
    return None if config.is_generation else Vectors(int(config.hidden_size), bool(config.is_matryoshka))


async def embed(manager: Any, request: EmbeddingRequest, job: Job, push: Push) -> None:
    """Push the vector of every input, asked of SGLang's `TokenizerManager`; ends them all where one fails."""
    inputs = iter(enumerate(request.token_ids))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(MOST, len(request.token_ids))):
                group.create_task(_some(manager, request.dimensions, inputs, job, push))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _some(
    manager: Any, dimensions: int | None, inputs: Iterator[tuple[int, list[int]]], job: Job, push: Push
) -> None:
    from sglang.srt.managers.io_struct import EmbeddingReqInput

    for index, ids in inputs:
        if not job.wanted:
            return
        call = f"{job.name}-{index}"
        job.calls.add(call)
        try:
            asked = EmbeddingReqInput(input_ids=ids, rid=call, dimensions=dimensions)
            output = await anext(manager.generate_request(asked, None))
        finally:
            job.calls.discard(call)
        reason = output["meta_info"].get("finish_reason") or {}
        if reason.get("type") == "abort":
            raise error_of(reason)
        push(index, packed(output["embedding"]))
