"""What else a frontend answers meanwhile: `/live`, and the first token of a new request of a model that doesn't wait.

It reads one JSON task from standard input and prints one JSON line of figures. Two threads with a connection each ask,
wait for the answer, and rest: as long as an answer of `/live` took, so long was the loop busy with something else.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from bench.client import Task
from bench.figures import percentile
from bench.sse import Answer

LIVE_REST, REQUEST_REST = 0.01, 0.2
_SECONDS = 30.0
"""For one answer."""


@dataclass(slots=True)
class Look:
    """What to ask, and how long."""

    task: Task
    seconds: float


def live(look: Look, sock: socket.socket) -> float:
    """Seconds until `/live` was answered."""
    sock.sendall(f"GET /live HTTP/1.1\r\nHost: {look.task.address[0]}\r\n\r\n".encode())
    began, answer = time.perf_counter(), b""
    while b"}" not in answer:
        answer += _read(sock)
    return time.perf_counter() - began


def first_token(look: Look, sock: socket.socket) -> float:
    """Seconds until the first token of a stream came; the rest of it is read, too."""
    sock.sendall(look.task.request(look.task.prompts[0]))
    began, answer, first = time.perf_counter(), Answer(), 0.0
    whole = b""
    while not whole.endswith(b"0\r\n\r\n"):
        piece = _read(sock)
        whole = (whole + piece)[-16:]
        answer.feed(piece)
        if answer.has_text and not first:
            first = time.perf_counter() - began
    if (fault := answer.fault(200, look.task.tokens_out, streamed=True)) is not None:
        raise OSError(fault)
    return first


def _read(sock: socket.socket) -> bytes:
    if not (piece := sock.recv(1 << 16)):
        raise OSError("the frontend closed the connection")
    return piece


def asking(ask: Callable[[Look, socket.socket], float], look: Look, rest: float, times: list[float]) -> None:
    """Ask again and again, and note how long it took; infinitely long where it failed."""
    end = time.monotonic() + look.seconds
    while time.monotonic() < end:
        try:
            with closing(socket.create_connection(look.task.address, _SECONDS)) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while time.monotonic() < end:
                    times.append(ask(look, sock))
                    time.sleep(rest)
        except OSError as error:
            print(f"probe: {error}", file=sys.stderr)
            times.append(float("inf"))
            time.sleep(rest)


def measure(look: Look) -> dict[str, float]:
    """Ask both at once; the figures, in milliseconds."""
    lives: list[float] = []
    firsts: list[float] = []
    threads = [
        threading.Thread(target=asking, args=(live, look, LIVE_REST, lives)),
        threading.Thread(target=asking, args=(first_token, look, REQUEST_REST, firsts)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lives.sort()
    firsts.sort()
    return {
        f"{name}_{label}_ms": percentile(times, percent) * 1e3
        for name, times in (("live", lives), ("first", firsts))
        for label, percent in (("p50", 50), ("p99", 99), ("most", 100))
    } | {"lives": len(lives), "firsts": len(firsts)}


def main() -> None:
    """Read the task, ask, print."""
    given = json.loads(sys.stdin.readline())
    print(json.dumps(measure(Look(Task(**given["task"]), given["seconds"]))))


if __name__ == "__main__":
    main()
