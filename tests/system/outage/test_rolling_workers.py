"""Workers roll on a machine without CPU to spare: no client's connection is reset, or ends before its answer."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(600)]
ROLLS = int(os.environ.get("DYN_TEST_ROLLS", "3"))
CLIENTS = 12
BURNERS = 4
ASKED = {"model": "m", "prompt": "The quick brown fox", "max_tokens": 8}


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """Processes that take what CPU they get, for at most ten minutes."""
    code = "import os, time\nos.nice(5)\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"
    burners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(BURNERS)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def ask(url: str, stop: threading.Event, seen: Counter[str], fresh: bool) -> None:
    """Ask again and again, on one connection or on a new one each time; rests now and then, as people do."""
    count = 0
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=60, trust_env=False))
        while not stop.is_set():
            count += 1
            try:
                if count % 3:
                    said = str(client.post(f"{url}/v1/completions", json=ASKED).status_code)
                else:
                    with client.stream("POST", f"{url}/v1/completions", json=ASKED | {"stream": True}) as answer:
                        whole = "".join(answer.iter_text()).rstrip().endswith("data: [DONE]")
                    said = str(answer.status_code) if whole else "half a stream"
            except httpx.HTTPError as error:
                said = f"{type(error).__name__}: {error}"
            seen[said] += 1
            if count % 20 == 0:
                time.sleep(1.2)  # about the keep-alive time
            if fresh:
                client.close()
                client = stack.enter_context(httpx.Client(timeout=60, trust_env=False))


def test_no_connection_is_reset_while_workers_roll(stack: Any) -> None:
    """Every answer is whole, and has a status, though connections rest for as long as they are kept."""
    workers = [stack.worker(f"worker-{n}") for n in range(2)]
    frontend = stack.frontend("--keep-alive-timeout-secs", "1.2")
    frontend.process.ready_line()
    frontend.wait_for("m", 2)
    seen: Counter[str] = Counter()
    stop = threading.Event()
    clients = [threading.Thread(target=ask, args=(frontend.url, stop, seen, n % 3 == 0)) for n in range(CLIENTS)]
    with busy_machine():
        for client in clients:
            client.start()
        try:
            for roll in range(ROLLS):
                workers.append(stack.worker(f"worker-{roll + 2}"))
                workers[-1].ready_line(within=120)
                assert workers.pop(0).stop(within=60) == 0
        finally:
            stop.set()
            for client in clients:
                client.join(90)
    assert set(seen) == {"200"}, seen
    assert seen["200"] > 50
