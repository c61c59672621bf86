"""The rows of a test, and command lines as processes."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
from docs.generate.compatibility.printed import ROWS
from docs.generate.compatibility.printed_row import Row
from tests.processes import RUN, Process, answered

from dynamo.runtime import DistributedRuntime, EtcdConfig, NatsConfig, RuntimeConfig


class Rows:
    """Those that name one test; `left` are those that it has not taken."""

    def __init__(self, test: str) -> None:
        self._mine = {row.name: row for row in ROWS if row.test == test}
        self.left = set(self._mine)

    def __getitem__(self, name: str) -> Row:
        self.left.discard(name)
        return self._mine[name]

    def shows(self, *names: str) -> None:
        """Rows that are no lines to start, which the test does by itself."""
        for name in names:
            self[name]

    def all(self) -> list[Row]:
        """All of them, taken."""
        self.left.clear()
        return list(self._mine.values())


def command(row: Row, own: Mapping[str, str], *more: str) -> list[str]:
    """The process's command: the row's words, then ours."""
    return [*RUN, *row.words(**own), *more]


def run_all(
    lines: Sequence[tuple[Sequence[str], str]], env: Mapping[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    """Run each line (the words after `dynamo-run`, and what is typed), one after the other."""
    return [answered([*RUN, *words], typed, env) for words, typed in lines]


@contextmanager
def serving(argv: list[str], log: Path, env: dict[str, str]) -> Iterator[openai.OpenAI]:
    """A frontend on a free port, and a client of it."""
    with Process(log.stem, [*argv, "--http-port", "0"], log.parent, env) as server, client_of(server) as client:
        yield client


def client_of(server: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.ready_line()['url']}/v1", api_key="none", max_retries=0, timeout=60)


def chat(client: openai.OpenAI, model: str, text: str, **more: object) -> str:
    """The answer to a chat of one message."""
    made = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], extra_body={"temperature": 0, **more}
    )
    return str(made.choices[0].message.content)


async def answers(env: Mapping[str, str], path: str, request: Any) -> list[Any]:
    """What all instances of an endpoint answer to a program of ours."""
    config = RuntimeConfig(EtcdConfig((env["ETCD_ENDPOINTS"],)), NatsConfig((env["NATS_SERVER"],)))
    async with await DistributedRuntime.create(config) as runtime:
        client = await runtime.endpoint(path).client()
        async with asyncio.timeout(60):
            streams = [
                await client.direct(request, instance, annotated=False)
                for instance in await client.wait_for_instances()
            ]
            return [item for stream in streams async for item in stream]
