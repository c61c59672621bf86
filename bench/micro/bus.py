"""Measures the request plane alone: what one message, one item and one request cost.

Run: python bench/micro/bus.py            (needs nats-server on PATH; two minutes on two cores)
Prints one line per figure. Client and server are processes of their own, both on uvloop, with the
real `nats-server` between; CPU is user plus system time of the process named. Runs are interleaved
and the median of five is shown.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from nats.aio.client import Client as NatsPy

from dynamo.runtime.config import NatsConfig
from dynamo.runtime.context import Context
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.request_plane.caller import Caller
from dynamo.runtime.request_plane.server import Incoming, RequestServer
from dynamo.runtime.transport.memory import MemoryNetwork
from dynamo.runtime.transport.nats import NatsBus

RUNS = 5
PATH = EndpointPath("bench", "backend", "generate")
KEY = InstanceKey(PATH, 7)
MESSAGES = 100_000


class Steps:
    """A handler that sends one item to each of `streams` streams per step."""

    def __init__(self, streams: int, steps: int, pace: float) -> None:
        self._expected = streams
        self._steps = steps
        self._pace = pace
        self._streams: list[Incoming] = []
        self.begun = asyncio.Event()

    def __call__(self, incoming: Incoming) -> None:
        self._streams.append(incoming)
        self.begun.set()
        if len(self._streams) == self._expected:
            self._next(0, self._streams)
            self._streams = []

    def _next(self, step: int, streams: list[Incoming]) -> None:
        for incoming in streams:
            incoming.send([[step], None, None])
        if step + 1 == self._steps:
            for incoming in streams:
                incoming.finish()
        elif self._pace:
            asyncio.get_running_loop().call_later(self._pace, self._next, step + 1, streams)
        else:
            asyncio.get_running_loop().call_soon(self._next, step + 1, streams)


async def streams_of(caller: Caller, streams: int) -> tuple[int, float, float]:
    """Open so many streams and read them to their end: items, CPU seconds, seconds."""
    items, open_streams, done = 0, streams, asyncio.Event()

    def on_item(data: Any, last: bool) -> None:
        nonlocal items
        items += 1

    def on_end(error: Exception | None) -> None:
        nonlocal open_streams
        assert error is None, error
        open_streams -= 1
        if not open_streams:
            done.set()

    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(streams):
        caller.open(KEY, None, context=Context(), on_item=on_item, on_end=on_end)
    await done.wait()
    return items, time.process_time() - cpu, time.perf_counter() - wall


async def in_memory() -> dict[str, float]:
    """Both sides in this process, over the memory bus."""
    network = MemoryNetwork()
    near, far = network.bus(), network.bus()
    await near.connect()
    await far.connect()
    server, caller = RequestServer(far, KEY.id), Caller(near, 9)
    await server.serve(PATH, Steps(64, 2000, 0.0))
    await caller.start([PATH.namespace])
    items, cpu, _ = await streams_of(caller, 64)
    await caller.stop()
    await server.stop()
    return {"memory, 64 streams: both sides, µs per item": cpu / items * 1e6}


async def over_nats(url: str, streams: int, steps: int, pace: float) -> dict[str, float]:
    """The worker is another process."""
    what = f"NATS, {streams} streams, {'a step each 6 ms' if pace else 'as fast as it goes'}"
    argv = [sys.executable, __file__, "worker", url, str(streams), str(steps), str(pace)]
    worker = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    await worker.stdout.readline()
    bus = NatsBus(NatsConfig(servers=(url,)))
    await bus.connect()
    caller = Caller(bus, 9)
    await caller.start([PATH.namespace])
    items, cpu, wall = await streams_of(caller, streams)
    theirs = float(await worker.stdout.readline())
    await worker.wait()
    await caller.stop()
    await bus.close()
    found = {f"{what}: client, µs per item": cpu / items * 1e6, f"{what}: worker, µs per item": theirs / items * 1e6}
    return found if pace else {**found, f"{what}: thousand items per second": items / wall / 1e3}


async def round_trips(url: str) -> dict[str, float]:
    """One request of one item at a time, both sides in this process: open to end."""
    near, far = NatsBus(NatsConfig(servers=(url,))), NatsBus(NatsConfig(servers=(url,)))
    await near.connect()
    await far.connect()
    server, caller = RequestServer(far, KEY.id), Caller(near, 9)
    await server.serve(PATH, lambda incoming: incoming.finish([[1], None, None]))
    await caller.start([PATH.namespace])
    times, cpu = [], time.process_time()
    for _ in range(1000):
        begin = time.perf_counter()
        await streams_of(caller, 1)
        times.append((time.perf_counter() - begin) * 1e6)
    cpu = time.process_time() - cpu
    await caller.stop()
    await server.stop()
    for bus in (near, far):
        await bus.close()
    return {
        "NATS, one request at a time: p50, µs": statistics.median(times),
        "NATS, one request at a time: p99, µs": sorted(times)[990],
        "NATS, one request at a time: CPU of both sides, µs": cpu * 1e3,
    }


async def receiving(url: str) -> dict[str, float]:
    """What one message of 256 bytes costs who receives it: nats-py's subscription, and ours."""
    bus = NatsBus(NatsConfig(servers=(url,)))
    await bus.connect()
    ours = await _received(url, lambda got: bus.subscribe("bench.ours", lambda _: got(), lambda: None), "bench.ours")
    await bus.close()
    client = NatsPy()
    await client.connect(url)

    async def subscribe(got: Callable[[], None]) -> Any:
        async def on_message(_: Any) -> None:
            got()

        return await client.subscribe("bench.theirs", cb=on_message, pending_msgs_limit=-1, pending_bytes_limit=-1)

    theirs = await _received(url, subscribe, "bench.theirs")
    await client.close()
    return {"receive 256 B: nats-py, µs": theirs, "receive 256 B: NatsBus, µs": ours}


async def _received(url: str, subscribe: Callable[[Callable[[], None]], Awaitable[Any]], subject: str) -> float:
    count, done = 0, asyncio.Event()

    def got() -> None:
        nonlocal count
        count += 1
        if count == MESSAGES:
            done.set()

    await subscribe(got)
    await asyncio.sleep(0.1)
    argv = [sys.executable, __file__, "flood", url, subject]
    sender = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.DEVNULL)
    cpu = time.process_time()
    await asyncio.wait_for(done.wait(), 60)
    cpu = time.process_time() - cpu
    await sender.wait()
    return cpu / MESSAGES * 1e6


async def worker(url: str, streams: str, count: str, pace: str) -> None:
    bus = NatsBus(NatsConfig(servers=(url,)))
    await bus.connect()
    server = RequestServer(bus, KEY.id)
    steps = Steps(int(streams), int(count), float(pace))
    await server.serve(PATH, steps)
    print("ready", flush=True)
    cpu = time.process_time()  # waiting for the client to start costs none
    await steps.begun.wait()
    await server.finished(120)
    await bus.flush()
    print(time.process_time() - cpu, flush=True)
    await server.stop()
    await bus.close()


async def flood(url: str, subject: str) -> None:
    bus = NatsBus(NatsConfig(servers=(url,)))
    await bus.connect()
    for number in range(MESSAGES):
        bus.publish(subject, bytes(256))
        if number % 500 == 0:
            await bus.flush()
    await bus.flush()
    await bus.close()


def start_server(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    argv = ["nats-server", "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(folder)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ports = folder / f"nats-server_{process.pid}.ports"
    deadline = time.monotonic() + 10
    while not (ports.exists() and ports.read_text()):
        assert time.monotonic() < deadline, "nats-server did not start"
        time.sleep(0.01)
    return process, json.loads(ports.read_text())["nats"][0]


async def measure(url: str) -> dict[str, float]:
    return {
        **await receiving(url),
        **await in_memory(),
        **await over_nats(url, 64, 2000, 0.0),
        **await over_nats(url, 64, 300, 0.006),
        **await over_nats(url, 8, 300, 0.006),
        **await round_trips(url),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        process, url = start_server(Path(folder))
        try:
            runs = [uvloop.run(measure(url)) for _ in range(RUNS)]
        finally:
            process.terminate()
            process.wait(10)
    for name in runs[0]:
        values = sorted(run[name] for run in runs)
        print(f"{name:<70} {statistics.median(values):10.2f}   ({values[0]:.2f}..{values[-1]:.2f})")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        parts: dict[str, Callable[..., Any]] = {"worker": worker, "flood": flood}
        uvloop.run(parts[sys.argv[1]](*sys.argv[2:]))
    else:
        main()
