"""What the console costs a frontend while viewers look: `python -m bench.console` (five minutes).

One frontend, two workers with an engine at real speed, 20 viewers. CPU of the frontend's processes, with and without
viewers in turns: at rest as a share of a core, at workload P as a ratio of the same requests' CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from bench.model import model_folder, words
from bench.processes import BenchError, Servers, cpu_seconds, ended
from bench.sides import STARTERS, Plan, Side
from bench.suite import measure
from bench.workloads import prompts, select

REST_BAR, LOAD_BAR = 1.0, 3.0
"""Per cent: of a core at rest, and of the frontend's CPU at P."""
HEAD = b"HTTP/1.1 200"


class Viewers:
    """Connections that look at the console, read by one thread of this process."""

    def __init__(self, url: str, count: int) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        request = f"GET /console/events HTTP/1.1\r\nhost: {address.netloc}\r\n\r\n".encode()
        self._sockets = [socket.create_connection((address.hostname, address.port or 80), 10) for _ in range(count)]
        self.received = 0
        for sock in self._sockets:
            sock.sendall(request)
            if not (head := sock.recv(1 << 16)).startswith(HEAD):
                raise BenchError(f"a viewer is answered {head[:60]!r}")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="viewers")
        self._thread.start()

    def _read(self) -> None:
        for sock in self._sockets:
            sock.setblocking(False)
        while not self._over.wait(0.2):
            for sock in self._sockets:
                with contextlib.suppress(BlockingIOError):
                    self.received += len(sock.recv(1 << 20))

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()
        for sock in self._sockets:
            sock.close()


@contextlib.contextmanager
def looked_at(url: str, count: int) -> Iterator[None]:
    """Look while the block runs; fails where nothing came."""
    if not count:
        yield
        return
    viewers = Viewers(url, count)
    try:
        yield
    finally:
        viewers.close()
    if not viewers.received:
        raise BenchError("the viewers were sent nothing")


def at_rest(side: Side, seconds: float, viewers: int) -> float:
    """The share of a core in per cent."""
    pids = side.servers.pids("frontend")
    with looked_at(side.url, viewers):
        before, began = cpu_seconds(pids), time.monotonic()
        time.sleep(seconds)
        return 100 * (cpu_seconds(pids) - before) / (time.monotonic() - began)


def under_load(side: Side, scale: float, viewers: int) -> float:
    """CPU seconds of the frontend for workload P."""
    (workload,) = select(("P",))
    workload = replace(workload, requests=max(1, round(workload.requests * scale)))
    pids = side.servers.pids("frontend")
    count = workload.warm_up + workload.requests
    texts = prompts(words(model_folder()), workload.tokens_in, count, str(time.monotonic()))
    with looked_at(side.url, viewers):
        before = cpu_seconds(pids)
        measure(side, workload, texts)
        return cpu_seconds(pids) - before


def run(viewers: int, rounds: int, seconds: float, scale: float) -> int:
    """Measure in turns and compare medians; 1 where a bar isn't met."""
    rest: dict[int, list[float]] = {0: [], viewers: []}
    load: dict[int, list[float]] = {0: [], viewers: []}
    with tempfile.TemporaryDirectory() as folder, Servers(Path(folder) / "ours") as servers:
        side = STARTERS["ours"](servers, Plan(model_folder(), "real", "default"))
        under_load(side, scale / 4, viewers)  # warm
        for number in range(rounds):
            for count in (0, viewers) if number % 2 else (viewers, 0):
                rest[count].append(at_rest(side, seconds, count))
                load[count].append(under_load(side, scale, count))
    more = statistics.median(rest[viewers]) - statistics.median(rest[0])
    ratio = 100 * (statistics.median(load[viewers]) / statistics.median(load[0]) - 1)
    for name, figures in (("rest, % of a core", rest), ("P, CPU seconds", load)):
        for count, values in figures.items():
            print(f"{name:18} {count:3} viewers  {' '.join(f'{value:.2f}' for value in values)}")
    print(f"{viewers} viewers: {more:+.2f}% of a core at rest (bar {REST_BAR}), {ratio:+.1f}% at P (bar {LOAD_BAR})")
    return int(more > REST_BAR or ratio > LOAD_BAR)


def main() -> None:
    """Read the command line, and measure."""
    parser = argparse.ArgumentParser(prog="bench.console", description=__doc__)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each look at rest")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the requests of P")
    found = parser.parse_args()
    sys.exit(ended(lambda: run(found.viewers, found.rounds, found.seconds, found.scale)))


if __name__ == "__main__":
    main()
