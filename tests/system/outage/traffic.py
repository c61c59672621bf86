"""Streams of echoed prompts, to be counted: each is whole, or tells of one error, or the test fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import until


@dataclass
class Answer:
    """What one client got, while it comes."""

    prompt: str
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    over: bool = False
    """With `[DONE]`."""
    status: int = 0
    gap: float = 0.0
    """Longest time in seconds without an event."""

    @property
    def exact(self) -> bool:
        """Exactly the prompt, which echo_core makes of its tokens (bytes), with the right end and usage."""
        size = len(self.prompt.encode())
        counted = (self.usage.get("prompt_tokens"), self.usage.get("completion_tokens"))
        return self.over and not self.error and (self.text, self.finish, counted) == (self.prompt, "stop", (size, size))

    @property
    def clearly_failed(self) -> bool:
        """One error with words and a code, and what came before is the beginning of the answer."""
        explained = bool(self.error.get("message")) and bool(self.error.get("code"))
        return explained and not self.over and self.prompt.startswith(self.text)


class Traffic:
    """Clients of one frontend. Open it with `traffic`."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self._url, self._client = url, client
        self.answers: list[Answer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.going = True

    def begin(self, count: int, size: int = 200, **headers: str) -> list[Answer]:
        """Start so many streams, each of its own text of about `size` characters."""
        first = len(self.answers)
        made = [Answer(f"stream {first + n} " + "it goes on and on. " * (size // 19)) for n in range(count)]
        self.answers += made
        self._tasks += [asyncio.create_task(self.ask(answer, **headers)) for answer in made]
        return made

    def keep_up(self, count: int, size: int = 100) -> None:
        """So many streams at any time, one after the other, until `going` is False."""

        async def one_after_the_other() -> None:
            while self.going:
                (answer,) = made = [Answer(f"stream {len(self.answers)} " + "and on it goes. " * (size // 16))]
                self.answers += made
                await self.ask(answer)

        self._tasks += [asyncio.create_task(one_after_the_other()) for _ in range(count)]

    async def begun(self, answers: list[Answer], characters: int = 3) -> None:
        """Wait until each of them has shown something."""
        await until("all have begun", lambda: all(len(a.text) >= characters or a.error for a in answers), 30)

    async def come_and_go(self, count: int) -> None:
        """Wait until so many more have begun, of those that `keep_up` begins."""
        wanted = len(self.answers) + count
        await until("streams come and go", lambda: len(self.answers) >= wanted, 60)

    async def ended(self, within: float = 40.0) -> list[Answer]:
        """Wait for all that were begun; one that hangs fails the test."""
        self.going = False
        _, hanging = await asyncio.wait(self._tasks, timeout=within)
        assert not hanging, f"{len(hanging)} of {len(self._tasks)} streams hang"
        for task in self._tasks:
            task.result()
        return self.answers

    async def ask(self, answer: Answer, **headers: str) -> None:
        """One streamed completion into `answer`."""
        body = {"model": "m", "prompt": answer.prompt, "max_tokens": 2000, "stream": True}
        body["stream_options"] = {"include_usage": True}
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._client.stream("POST", f"{self._url}/v1/completions", json=body, headers=names) as opened:
            answer.status = opened.status_code
            if opened.status_code != 200:
                answer.error = json.loads(await opened.aread())["error"]
                return
            last = time.monotonic()
            async for line in opened.aiter_lines():
                if line.startswith("data: "):
                    answer.gap, last = max(answer.gap, time.monotonic() - last), time.monotonic()
                    _take(answer, line.removeprefix("data: "))

    async def where(self) -> int:
        """The instance that one more request goes to."""
        body = {"model": "m", "prompt": "x", "max_tokens": 1, "nvext": {"extra_fields": ["worker_id"]}}
        answer = (await self._client.post(f"{self._url}/v1/completions", json=body)).json()
        return int(answer["nvext"]["worker_id"]["decode_worker_id"])

    async def until_it_goes_to(self, instance: int, within: float = 30.0) -> None:
        """Ask until that instance is among those that answer."""
        async with asyncio.timeout(within):
            while await self.where() != instance:
                pass

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that have these labels."""
        text = (await self._client.get(f"{self._url}/metrics")).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"dynamo_frontend_{name}" and labels.items() <= sample.labels.items()
        )

    async def migrated(self, kind: str = "ongoing_request") -> int:
        return int(await self.metric("model_migration_total", migration_type=kind))


def _take(answer: Answer, data: str) -> None:
    assert not answer.over, "an event after the end"
    assert not answer.error, "an event after the error"
    if data == "[DONE]":
        answer.over = True
        return
    event = json.loads(data)
    answer.error = event.get("error") or {}
    answer.usage = event.get("usage") or answer.usage
    for choice in event.get("choices", ()):
        answer.text += choice["text"]
        answer.finish = choice["finish_reason"] or answer.finish


@contextlib.asynccontextmanager
async def traffic(url: str) -> AsyncIterator[Traffic]:
    """Clients of the frontend at `url`; what they still ask at the end is given up."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        made = Traffic(url, client)
        try:
            yield made
        finally:
            for task in made._tasks:
                task.cancel()
            await asyncio.gather(*made._tasks, return_exceptions=True)
