"""vLLM as a maker of vectors (`runner: pooling`): each input is a request of its own to its engine, which batches them.

Used by `engine.py`. What pools, normalises and cuts is vLLM's; docs/how-to/serve/engines/vllm.md has the arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.runtime.errors import EngineError, InvalidArgument

TASK: Final = "embed"
Push = Callable[[int, bytes], None]


async def dimensions_of(llm: Any, config: Any) -> int | None:
    """Return numbers in a vector, where vLLM has loaded the model to make some; None: it makes text.

    Raises `InvalidArgument` where the model makes neither.
    """
    if config.model_config.runner_type != "pooling":
        return None
    tasks = sorted(map(str, await llm.get_supported_tasks()))
    if TASK not in tasks:
        raise InvalidArgument(
            f"vLLM has loaded a model that makes no vectors of texts (it does {', '.join(tasks)}); give the argument"
            " 'convert': 'embed' where it can be made to"
        )
    return int(config.model_config.embedding_size)


async def embed(llm: Any, params: Any, request: EmbeddingRequest, name: str, push: Push, most: int) -> None:
    """Push the vector of every input, `most` of them under way at once; ends them all where one fails."""
    inputs = iter(enumerate(request.token_ids))
    pullers = min(most, len(request.token_ids))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(pullers):
                group.create_task(_some(llm, params, inputs, name, push))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _some(llm: Any, params: Any, inputs: Iterator[tuple[int, list[int]]], name: str, push: Push) -> None:
    for index, ids in inputs:
        prompt = {"type": "token", "prompt_token_ids": ids}
        vector = None
        async for output in llm.encode(prompt, params.clone(), f"{name}-{index}"):
            if output.error is not None:
                raise EngineError(f"vLLM: {getattr(output.error, 'message', output.error)}")
            if output.finished:
                vector = output.outputs.data.float().contiguous().numpy().astype("<f4", copy=False).tobytes()
        if vector is None:
            raise EngineError(f"vLLM gave no vector for input {index}")
        push(index, vector)
