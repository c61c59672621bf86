"""Early 2025 (0.1, 0.2): an OpenAI service around a Python object, without a worker. Port as the only argument."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from dynamo.llm import HttpAsyncEngine, HttpError, HttpService


class Parrot:
    """Says what it is told, word by word."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def generate(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        text = request["messages"][-1]["content"]

        async def words() -> AsyncIterator[dict[str, Any]]:
            if text == "refuse":
                raise HttpError(code=418, message="a parrot is no teapot")
            for word in text.split():
                yield self.chunk({"content": f"{word} ", "role": "assistant"})
            yield self.chunk({}, "stop")

        return words()

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {
            "id": "1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self.model_name,
            "choices": [choice],
        }


async def main() -> None:
    engine = HttpAsyncEngine(Parrot("parrot").generate, asyncio.get_running_loop())
    service = HttpService(port=int(sys.argv[1]))
    service.add_chat_completions_model("parrot", engine)
    service.enable_endpoint("chat", True)
    shutdown_signal = service.run()
    assert service.list_chat_completions_models() == ["parrot"]
    await shutdown_signal


if __name__ == "__main__":
    asyncio.run(main())
