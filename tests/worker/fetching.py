"""Real processes that load a model of the stand-in hub."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

from tests.llm.stand_in_hub import Hub
from tests.processes import answered
from tests.started import Started, started

SAID: Final = str(Path(__file__).with_name("said_of_sources.py"))


@contextmanager
def serving(folder: Path) -> Iterator[Hub]:
    """A hub of what lies in `folder`."""
    with Hub(folder) as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


def variables(url: str, home: Path, **more: str) -> dict[str, str]:
    """The environment of a process that knows this hub only."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return kept | {"HF_ENDPOINT": url, "HF_HOME": str(home), "NO_PROXY": "*"} | more


def start(url: str, home: Path, *words: str, **more: str) -> Started:
    """`python -m dynamo.worker.fetch` with those words."""
    return started([sys.executable, "-m", "dynamo.worker.fetch", *words], variables(url, home, **more))


def ended(process: Started) -> tuple[int, str, str]:
    """Its exit code, stdout and stderr."""
    out, err = process.communicate(timeout=100)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def fetched(url: str, home: Path, source: str, *words: str, **more: str) -> Path:
    """What a process that must do well says it loaded."""
    code, out, err = ended(start(url, home, "--model-path", source, *words, **more))
    assert code == 0, err
    return Path(out.strip().rpartition(" is in ")[2])


def said(url: str, home: Path, *sources: str, engine: str = "", **more: str) -> list[str]:
    """What is said of each source, by one process that must load none of them."""
    argv = [sys.executable, SAID, engine, *sources]
    answer = answered(argv, "", variables(url, home, **more))
    assert answer.returncode == 0, answer.stderr
    lines: list[str] = json.loads(answer.stdout)
    return lines
