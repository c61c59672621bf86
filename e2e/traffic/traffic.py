"""Streams beside a scenario: so many requests a second through the Service, each with a known number of tokens.

`with traffic(namespace, name) as seen: …`; afterwards `seen.failures` says what was refused, broken or short. The SDK
tries nothing again, so that every error is seen.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import httpx
from e2e.cluster.cluster import wait_for
from e2e.namespace.namespace import Namespace
from openai import AsyncOpenAI, OpenAIError

RATE = 20.0
TOKENS = 40
ANSWER_SECONDS = 60.0
OPEN_SECONDS = 30.0
MOST_CAUSES = 6
PRIORITY = -10
"""Of the thread that asks; only root may have it."""


@dataclass
class Seen:
    """What became of the requests so far."""

    sent: int = 0
    complete: int = 0
    failures: list[str] = field(default_factory=list)
    """One line each, with the seconds since the traffic began."""
    longest_gap: float = 0.0
    """Seconds between two pieces of one stream, or before its first."""
    first: list[float] = field(default_factory=list)
    """Seconds to the first piece, of each complete stream."""
    seconds: list[float] = field(default_factory=list)
    """Seconds to its end."""

    def add(self, other: Seen) -> None:
        """What another time brought, as if it were one."""
        self.sent += other.sent
        self.complete += other.complete
        self.failures += other.failures
        self.longest_gap = max(self.longest_gap, other.longest_gap)
        self.first += other.first
        self.seconds += other.seconds

    def __str__(self) -> str:
        return f"{self.complete} of {self.sent} streams complete, longest gap {self.longest_gap:.2f} s"


def outside(namespace: Namespace, service: str) -> str:
    """The http:// URL of a Service of type NodePort: it leads to any of its pods, as users' requests do."""
    found = namespace.get("v1/Service", service)
    assert found is not None
    (port,) = (p["nodePort"] for p in found["spec"]["ports"])
    node = namespace.cluster.list("v1/Node")[0]
    address = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
    return f"http://{address}:{port}"


@contextmanager
def traffic(
    namespace: Namespace, name: str, model: str | None = None, rate: float = RATE, tokens: int = TOKENS
) -> Iterator[Seen]:
    """Requests to a pipeline whose Service is of type NodePort, while the block runs; then the last are waited for."""
    seen, ended = Seen(), threading.Event()
    url = outside(namespace, f"{name}-frontend")
    # Kubernetes calls a pod Ready some time before every node sends its requests there.
    wait_for("the Service leads to a frontend", lambda: _answers(url), OPEN_SECONDS)
    driver = _Driver(url, model or name, tokens, seen)
    thread = threading.Thread(target=lambda: _drive(driver, rate, ended), name="traffic")
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _drive(driver: _Driver, rate: float, ended: threading.Event) -> None:
    """Run it before others: a client that gets no processor for seconds would measure itself."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PRIORITY)
    asyncio.run(driver.run(rate, ended))


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _causes(error: BaseException) -> str:
    """The error with all that it was raised from: "Connection error." alone doesn't say whether one was made."""
    found: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(found) < MOST_CAUSES:
        found.append(repr(cause))
        cause = cause.__cause__ or cause.__context__
    return " from ".join(found)


class _Driver:
    def __init__(self, url: str, model: str, tokens: int, seen: Seen) -> None:
        self._url, self._model, self._tokens, self._seen = url, model, tokens, seen
        self._begun = time.monotonic()

    async def run(self, rate: float, ended: threading.Event) -> None:
        async with (
            AsyncOpenAI(base_url=f"{self._url}/v1", api_key="none", max_retries=0, timeout=ANSWER_SECONDS) as client,
            asyncio.TaskGroup() as group,
        ):
            while not ended.is_set():
                self._seen.sent += 1
                group.create_task(self._one(client))
                await asyncio.sleep(max(0.0, self._begun + self._seen.sent / rate - time.monotonic()))

    async def _one(self, client: AsyncOpenAI) -> None:
        begun = time.monotonic()
        try:
            wrong = await self._streamed(client)
        except OpenAIError as error:
            wrong = _causes(error)
        if wrong:
            now = time.monotonic()
            self._seen.failures.append(f"at {begun - self._begun:.1f} s, after {now - begun:.2f} s: {wrong}")
        else:
            self._seen.complete += 1

    async def _streamed(self, client: AsyncOpenAI) -> str:
        """What is wrong with the stream; empty if nothing is."""
        began = time.monotonic()
        stream = await client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": "Tell me a story."}],
            max_tokens=self._tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        last, reason, counted, first = began, None, None, 0.0
        async for chunk in stream:
            now = time.monotonic()
            first = first or now - began
            self._seen.longest_gap, last = max(self._seen.longest_gap, now - last), now
            reason = chunk.choices[0].finish_reason or reason if chunk.choices else reason
            counted = chunk.usage.completion_tokens if chunk.usage else counted
        right = (reason, counted) == ("length", self._tokens)
        if right:
            self._seen.first.append(first)
            self._seen.seconds.append(time.monotonic() - began)
        return "" if right else f"ended with {reason} after {counted} of {self._tokens} tokens"
