"""What traces cost a server, in CPU: the same requests with and without them, in turns. `python -m bench.tracing`."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import httpx
from tests.environments import environment
from tests.processes import RUN, Process

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_BODY: Final = {"model": "m", "prompt": "hello there", "max_tokens": 32, "ignore_eos": True, "stream": True}
_WARM: Final = 50


def main() -> None:
    """Print CPU milliseconds of a request each way, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=600, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, collecting() as url:
        plain = environment(Path(folder))
        traced = {**plain, "OTEL_EXPORT_ENABLED": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        with serving("plain", Path(folder), plain) as off, serving("traced", Path(folder), traced) as on:
            turns = [(cost(off, options.requests), cost(on, options.requests)) for _ in range(options.turns)]
    ratio = statistics.median(traces / bare for bare, traces in turns)
    bare, traces = (statistics.median(column) for column in zip(*turns, strict=True))
    print(f"without traces {bare:.3f} ms of CPU a request, with them {traces:.3f}: ratio {ratio:.2f}")


@contextmanager
def serving(name: str, folder: Path, env: dict[str, str]) -> Iterator[tuple[Process, str]]:
    """Run a server with the simulated engine, which doesn't wait; its process and address."""
    arguments = folder / "arguments.json"
    arguments.write_text('{"speedup_ratio": 0}')
    argv = [*RUN, "in=http", "out=mocker", "--model-name", "m", "--http-port", "0"]
    with Process(name, [*argv, "--extra-engine-args", str(arguments)], folder, env) as process:
        url = str(process.ready_line()["url"])
        cost((process, url), _WARM)
        yield process, url


def cost(server: tuple[Process, str], requests: int) -> float:
    """Ask so many times, one after the other; the milliseconds of the server's CPU for each."""
    process, url = server
    before = cpu(process.popen.pid)
    with httpx.Client(timeout=30) as client:
        for _ in range(requests):
            client.post(f"{url}/v1/completions", json=_BODY).raise_for_status()
    return (cpu(process.popen.pid) - before) / requests * 1000


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used, its threads with it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def collecting() -> Iterator[str]:
    """Take spans and drop them, outside the server's process."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(10)


if __name__ == "__main__":
    main()
