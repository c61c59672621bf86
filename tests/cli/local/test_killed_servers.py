"""`dynamo up` with two llama-servers behind engine `openai`, one of which is killed under 32 greedy streams."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from tests.cli.local.greedy_streams import Streams, kill
from tests.worker.chain_model import LOOP, write_gguf
from tests.worker.engines.openai import llama_server

if TYPE_CHECKING:
    from conftest import Workplace  # type: ignore[import-not-found]  # pytest finds it, mypy doesn't

pytestmark = [pytest.mark.processes, pytest.mark.servers]
PARTS: Final = ("frontend", "worker-0", "worker-1")
TOKENS: Final = 200
STREAMS: Final = 32
SERVER: Final = Path(llama_server.__file__)
PROMPTS: Final = [f"{number}{LOOP[number % len(LOOP)]}" for number in range(STREAMS)]
WHOLE: Final = [(LOOP * 8)[number + 1 : number + 1 + TOKENS] for number in range(STREAMS)]
"""What the model goes on with, by its construction."""
PIPELINE: Final = """
apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {{name: test}}
spec:
  model: {{{model}}}
  frontend: {{migrationLimit: 3}}
  components:
    - name: worker
      replicas: 2
      engine: openai
      command: [{python}, {server}, {file}, --port, "8000"]
"""


def written(place: Workplace, *, text: bool) -> Path:
    file = write_gguf(place.folder)
    model = f"name: test, source: '{file}'" if not text else "name: test"
    path: Path = place.write(text=PIPELINE.format(model=model, python=sys.executable, server=SERVER, file=file))
    return path


def server_of(place: Workplace, part: str) -> list[int]:
    """The llama-server of a worker."""
    guards = [pid for pid, line in place.processes().items() if f"child_guard.py {place.part_pid(part)} " in line]
    stats = {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in place.processes()}
    return [pid for pid, fields in stats.items() if int(fields[1]) in guards]


async def test_a_killed_servers_streams_go_on(place: Workplace) -> None:
    """By token ids: each of 32 texts is what it is undisturbed; the worker starts its server again by itself."""
    up = place.up(written(place, text=False))
    place.wait_until(lambda: all(place.is_ready(part, 0) for part in PARTS), "all serve", 90)
    url = up.wait_for("url ").split()[1]
    streams = Streams(url, "test", TOKENS)
    assert [stream.text for stream in await streams.all(PROMPTS[:2])] == WHOLE[:2]
    (victim,) = server_of(place, "worker-0")
    answers = await streams.all(PROMPTS, lambda: kill([victim]), after=STREAMS // 4)
    assert [stream.error for stream in answers if stream.error] == []
    assert [stream.text for stream in answers] == WHOLE
    await streams.close()
    place.wait_until(lambda: place.is_ready("worker-0", 1), "it is whole again", 90)


async def test_in_text_a_stream_that_began_ends_with_one_error(place: Workplace) -> None:
    """What a client has of it is the beginning of the right text; what had not begun is whole."""
    up = place.up(written(place, text=True))
    place.wait_until(lambda: all(place.is_ready(part, 0) for part in PARTS), "all serve", 90)
    streams = Streams(up.wait_for("url ").split()[1], "test", TOKENS)
    for restarts in range(1, 4):  # on a busy machine all that began may be over when the signal comes
        (victim,) = server_of(place, "worker-0")
        answers = await streams.all(PROMPTS, functools.partial(kill, [victim]), after=STREAMS // 4)
        broken = [(stream, whole) for stream, whole in zip(answers, WHOLE, strict=True) if stream.error]
        if broken:
            break
        place.wait_until(functools.partial(place.is_ready, "worker-0", restarts), "it is whole again", 90)
    await streams.close()
    assert 0 < len(broken) <= STREAMS // 2
    assert all(stream.text and whole.startswith(stream.text) for stream, whole in broken)
    assert all("engines that take text can't go on" in stream.error for stream, _ in broken)
    assert [s.text for s, whole in zip(answers, WHOLE, strict=True) if not s.error and s.text != whole] == []
