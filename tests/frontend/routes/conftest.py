"""A worker that says what a test wants it to, for the routes of all APIs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dynamo.llm.protocols import delta


@pytest.fixture
def speaker(engines: Any) -> Any:
    """A tokens engine that says its `answer`, byte by byte, and then `stop`."""

    class Speaker(engines):  # type: ignore[misc] # a class of the conftest's choice
        answer = "hello"

        async def speak(self, incoming: Any, payload: dict[str, Any]) -> None:
            limit = payload.get("stop_conditions", {}).get("max_tokens") or 1_000_000
            data = self.answer.encode()
            for token in data[:limit]:
                await asyncio.sleep(0)
                incoming.send(self.say(payload, token, None))
            incoming.finish(delta([], "length" if limit < len(data) else "stop"))

    return Speaker()
