"""Streams from an OpenAI-compatible server, timed: so many at once, or so many a second."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import click
import httpx2

from dynamo.cli.load_test.report import Sample

MOST_AT_ONCE: Final = 1024
_MOST_ANSWER_BYTES: Final = 64 << 20
_MOST_EVENT_BYTES: Final = 1 << 20
_CONNECT_SECONDS: Final = 10.0
_SILENCE_SECONDS: Final = 60.0
_WORDS: Final = [
    "river",
    "stone",
    "market",
    "window",
    "garden",
    "letter",
    "engine",
    "mountain",
    "silver",
    "kitchen",
    "planet",
    "harbor",
    "winter",
    "signal",
    "paper",
    "forest",
    "bridge",
    "candle",
    "thunder",
    "meadow",
    "orange",
    "ladder",
    "copper",
    "island",
    "mirror",
    "cotton",
    "rocket",
    "pepper",
    "velvet",
    "anchor",
]


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked, how often, and for how long at most."""

    url: str
    """Ends with /v1."""
    model: str
    chat: bool
    requests: int
    concurrency: int
    rate: float | None
    """Requests that begin a second; None: as soon as another ends."""
    max_seconds: float
    input_words: int
    output_tokens: int
    ignore_eos: bool
    seed: int
    headers: dict[str, str] = field(default_factory=dict)

    def body(self, number: int) -> dict[str, Any]:
        """Return the body of a request; no two have the same prompt, so that no cache has it."""
        words = random.Random(self.seed * 1_000_003 + number).choices(_WORDS, k=self.input_words)
        prompt = f"{number} " + " ".join(words)
        body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        body |= {"model": self.model, "max_tokens": self.output_tokens, "temperature": 0, "stream": True,
                 "stream_options": {"include_usage": True}}  # fmt: skip
        return body | ({"ignore_eos": True} if self.ignore_eos else {})


def api_url(given: str) -> str:
    """Return the base of the API; a server's address gets /v1."""
    split = urlsplit(given if "://" in given else f"http://{given}")
    if split.scheme not in ("http", "https") or not split.hostname:
        raise click.UsageError(f"{given[:80]!r} is no URL of a server; for example http://localhost:8000")
    if split.username or split.password:
        raise click.UsageError("the URL has a password: say the key by a variable, with --key-env")
    path = split.path.rstrip("/")
    return urlunsplit((split.scheme, split.netloc, path if path.endswith("/v1") else f"{path}/v1", "", ""))


def client_for(url: str, concurrency: int) -> httpx2.AsyncClient:
    """Return a client; to a server of this machine it uses no proxy."""
    host = urlsplit(url).hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    timeout = httpx2.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS, pool=None)
    return httpx2.AsyncClient(limits=limits, timeout=timeout, trust_env=not local, follow_redirects=False)


async def model_of(client: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> str:
    """Return the server's only model; raises `click.ClickException` where it has none or several."""
    try:
        answer = await client.get(f"{url}/models", headers=headers)
        answer.raise_for_status()
        names = [str(entry["id"]) for entry in answer.json()["data"]]
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{url}/models: {reason(error)}; is a server there, and its key given?") from None
    if len(names) != 1:
        raise click.ClickException(f"{url} has the models {', '.join(names[:20]) or 'none'}: name one by --model")
    return names[0]


async def run(client: httpx2.AsyncClient, load: Load, stop: asyncio.Event, done: Callable[[Sample], None]) -> None:
    """Ask until all are answered, the time is over, or `stop`; what is under way then is left and not counted."""
    room = asyncio.Semaphore(load.concurrency if load.rate is None else MOST_AT_ONCE)
    pauses = random.Random(load.seed)

    async def ask(number: int) -> None:
        try:
            done(await timed(client, load, number))
        finally:
            room.release()

    async def begin() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(load.requests):
                await room.acquire()
                group.create_task(ask(number))
                if load.rate is not None:
                    await asyncio.sleep(pauses.expovariate(load.rate))

    work, stopped = asyncio.ensure_future(begin()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((work, stopped), timeout=load.max_seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        for task in (work, stopped):
            task.cancel()
        await asyncio.gather(work, stopped, return_exceptions=True)


async def timed(client: httpx2.AsyncClient, load: Load, number: int) -> Sample:
    """Return what one request took; a failure is a sample, too."""
    began = time.perf_counter()
    path = "chat/completions" if load.chat else "completions"
    reading = _Reading(load.chat)
    try:
        async with client.stream("POST", f"{load.url}/{path}", json=load.body(number), headers=load.headers) as answer:
            if answer.status_code != 200:
                text = (await _beginning(answer)).decode("utf-8", "replace")
                return Sample(began, error=f"{answer.status_code}: {' '.join(text.split())[:200]}")
            async for chunk in answer.aiter_raw(65536):
                reading.feed(chunk)
    except (httpx2.HTTPError, ValueError) as error:
        return Sample(began, error=reason(error))
    last = reading.last or time.perf_counter()
    return Sample(began, reading.first, last, reading.usage or reading.pieces, reading.error)


async def _beginning(answer: httpx2.Response) -> bytes:
    data = b""
    async for chunk in answer.aiter_raw(4096):
        data += chunk
        if len(data) >= 4096:
            break
    return data


class _Reading:
    """What a stream has said so far."""

    def __init__(self, chat: bool) -> None:
        self._chat, self._rest, self._bytes = chat, b"", 0
        self.first: float | None = None
        self.last = 0.0
        self.pieces = self.usage = 0
        self.error = ""

    def feed(self, chunk: bytes) -> None:
        """Take some bytes; `ValueError` for more than any answer has, or for no JSON."""
        self._bytes += len(chunk)
        *events, self._rest = (self._rest + chunk).split(b"\n")
        if self._bytes > _MOST_ANSWER_BYTES or len(self._rest) > _MOST_EVENT_BYTES:
            raise ValueError("the answer is larger than a measurement takes")
        for line in events:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                self._take(json.loads(data))

    def _take(self, event: Any) -> None:
        if not isinstance(event, dict):
            raise ValueError("an event is no object")
        if event.get("error"):
            self.error = f"in the stream: {str(event['error'])[:160]}"
        usage = event.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self.usage = usage["completion_tokens"]
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {} if self._chat else choice
            if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls", "text")):
                self.last = time.perf_counter()
                self.first = self.first or self.last
                self.pieces += 1


def reason(error: Exception) -> str:
    """Return why a request failed, in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}".rstrip(": ")
