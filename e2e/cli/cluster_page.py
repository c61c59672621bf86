"""What `dynamo console --cluster` serves, as a browser reads it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from e2e.cli.shell import Terminal


@contextmanager
def page(terminal: Terminal, *words: str) -> Iterator[tuple[str, str]]:
    """A page that is served; its address without the key, and the key. Ctrl-C ends it with 130, even while watched."""
    process = terminal.start("console", "--cluster", *words)
    assert process.stdout is not None
    try:
        address, _, key = process.stdout.readline().strip().partition("#key=")
        assert address, process.communicate(timeout=10)[1]
        yield address, key
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
        assert process.returncode == 130
        assert "Traceback" not in stderr
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)


def snapshots(address: str, key: str) -> Iterator[dict[str, Any]]:
    """What the page is sent, one after the other."""
    headers = {"authorization": f"Bearer {key}"}
    with httpx.stream("GET", f"{address}console/events", headers=headers, timeout=20) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])
