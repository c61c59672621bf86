"""Many greedy streams at once by the SDK, and the death of the server that computes some of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import openai


class Stream(NamedTuple):
    """What a client got of one stream."""

    text: str
    error: str = ""
    """Of the stream, after what came of its text."""


class Streams:
    """Streams of one model; `began` counts those that have some text."""

    def __init__(self, url: str, model: str, tokens: int) -> None:
        self._client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)
        self._model, self._tokens = model, tokens
        self.began = 0

    async def all(
        self, prompts: Sequence[str], disturb: Callable[[], None] | None = None, after: int = 0
    ) -> list[Stream]:
        """Ask for all at once; `disturb` is called as soon as so many have begun."""
        self.began = 0
        running = [asyncio.ensure_future(self._one(prompt)) for prompt in prompts]
        if disturb is not None:
            async with asyncio.timeout(300):
                while self.began < after:  # noqa: ASYNC110 - the streams count as they go
                    await asyncio.sleep(0.002)
            disturb()
        return await asyncio.gather(*running)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _one(self, prompt: str) -> Stream:
        text, pieces = "", 0
        try:
            parts: Any = await self._client.completions.create(
                model=self._model, prompt=prompt, max_tokens=self._tokens, temperature=0, stream=True,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            async for part in parts:
                text += part.choices[0].text if part.choices else ""
                pieces += 1
                self.began += pieces == 3
        except openai.APIError as error:
            return Stream(text, error.message)
        return Stream(text)


def kill(pids: Sequence[int]) -> None:
    """SIGKILL, for servers with children all of them."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
