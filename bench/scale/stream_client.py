"""The client of `bench.scale.streams`: opens streams one by one, holds them, and checks that each was whole.

It reads one JSON task from standard input, prints `open` once every stream has given a token, and one JSON line of
figures when all have ended.
"""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import dataclass
from typing import Any

from bench.client import Connection, Task, Times, as_process
from bench.figures import percentile

_LOOK_SECONDS = 0.1
_OTHER_FILES = 64


@dataclass(slots=True)
class Held:
    """Streams that are opened at a pace."""

    task: Task
    per_second: float


class Counted(Times):
    """What was seen of the streams, and when the first of them ended."""

    ended = float("inf")


async def measure(given: dict[str, Any]) -> dict[str, Any]:
    """Open, hold until the last has ended; the figures."""
    held = Held(Task(**given["task"]), given["per_second"])
    allow_files(held.task.at_once)
    times = Counted()
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(_stream(held, number, began, times)) for number in range(held.task.at_once)]
        group.create_task(_say_open(streams, times))
    gaps, faults = sorted(times.gaps), len(times.faults)
    return {
        "whole": len(streams) - faults, "faults": faults, "first_faults": times.faults[:3],
        "first_end": times.ended - began, "tokens": len(streams) * held.task.tokens_out,
        "itl_p50_s": percentile(gaps, 50), "itl_p99_s": percentile(gaps, 99), "itl_most_s": percentile(gaps, 100),
    }  # fmt: skip


def allow_files(streams: int) -> None:
    """Let this process open a socket for each; raises `OSError` with what to do where it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = streams + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise OSError(f"{wanted} open files are needed and {hard} allowed: ulimit -n {wanted}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _stream(held: Held, number: int, began: float, times: Counted) -> None:
    """Take one stream from its connection to its end; a failure is noted, and ends no other."""
    task, loop = held.task, asyncio.get_running_loop()
    await asyncio.sleep(max(0.0, began + number / held.per_second - time.perf_counter()))
    connection: Connection | None = None
    try:
        _, connection = await loop.create_connection(lambda: Connection(task), *task.address)
        await connection.ask(task.request(task.prompts[number]), times)
    except (OSError, TimeoutError) as error:
        times.faults.append(f"stream {number}: {error!r}")
    finally:
        times.ended = min(times.ended, time.perf_counter())
        if connection is not None:
            connection.close()


async def _say_open(streams: list[asyncio.Task[None]], times: Counted) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if len(times.first) >= len(streams) - len(times.faults) or all(stream.done() for stream in streams):
            break
    print("open", flush=True)


if __name__ == "__main__":
    as_process(measure)
