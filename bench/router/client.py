"""The load client of the routing scenarios: conversations over keep-alive connections, one process for every side.

It reads one JSON task from standard input, opens a connection to each frontend for each conversation that is under way
at once, sends the turns of a conversation one after the other, to the frontends in turn, and prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.client import Connection, Task, Times, as_process, summary


@dataclass(slots=True)
class Talk:
    """What to send."""

    urls: list[str]
    model: str
    tokens_out: int
    at_once: int
    conversations: list[list[list[dict[str, Any]]]]

    def task(self, url: str) -> Task:
        """One frontend's."""
        return Task(url, self.model, self.tokens_out, self.at_once, True, True, [], [])

    def request(self, messages: list[dict[str, Any]]) -> bytes:
        """One whole HTTP request."""
        body = {
            "model": self.model, "messages": messages, "max_tokens": self.tokens_out, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        content = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


class Counts:
    """Tokens of all prompts, and how many came from caches."""

    def __init__(self) -> None:
        self.prompt = self.cached = self.untold = 0

    def add(self, connection: Connection) -> None:
        prompt, cached = connection.answer.prompt_tokens()
        self.prompt += prompt
        self.cached += cached or 0
        self.untold += cached is None

    @property
    def ratio(self) -> float | None:
        """None where a server doesn't say what came from its cache."""
        return None if self.untold or not self.prompt else self.cached / self.prompt


async def talk(given: Talk, connections: list[Connection], left: Iterator[Any], times: Times, counts: Counts) -> None:
    """Take conversations until none is left; `connections` has one to each frontend."""
    for number, turns in left:
        for turn, messages in enumerate(turns):
            connection = connections[(number + turn) % len(connections)]
            await connection.ask(given.request(messages), times)
            counts.add(connection)


async def measure(given: Talk) -> dict[str, Any]:
    """All conversations; the figures."""
    tasks = [given.task(url) for url in given.urls]
    sets = [[await connect(task) for task in tasks] for _ in range(given.at_once)]
    times, counts, left = Times(), Counts(), enumerate(given.conversations)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    begin = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for connections in sets:
                group.create_task(talk(given, connections, left, times, counts))
    finally:
        for connections in sets:
            for connection in connections:
                connection.close()
    return {**summary(times, time.perf_counter() - begin, tasks[0]), "hit_ratio": counts.ratio}


async def connect(task: Task) -> Connection:
    """A connection that is open."""
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(lambda: Connection(task), *task.address))[1]


if __name__ == "__main__":
    as_process(lambda given: measure(Talk(**given)))
