"""Real processes that load a model of the stand-in hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from tests.llm.stand_in_hub import Hub


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


def start(url: str, home: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    """`python -m dynamo.worker.fetch` with those words."""
    command = [sys.executable, "-m", "dynamo.worker.fetch", *words]
    environment = variables(url, home, **more)
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code, stdout and stderr."""
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


def fetched(url: str, home: Path, source: str, *words: str, **more: str) -> Path:
    """What a process that must do well says it loaded."""
    code, out, err = ended(start(url, home, "--model-path", source, *words, **more))
    assert code == 0, err
    return Path(out.strip().rpartition(" is in ")[2])


def said(url: str, home: Path, *sources: str, engine: str = "", **more: str) -> list[str]:
    """What is said of each source, by one process that must load none of them."""
    command = [sys.executable, "-c", _SAY, engine, *sources]
    answer = subprocess.run(command, env=variables(url, home, **more), capture_output=True, text=True, timeout=100)
    assert answer.returncode == 0, answer.stderr
    lines: list[str] = json.loads(answer.stdout)
    return lines


_SAY = """
import json, sys
from dynamo.llm.hub.fetch import fetch
from dynamo.runtime.errors import DynamoException
from dynamo.worker.engines import weights_of
found = []
for source in sys.argv[2:]:
    try:
        found.append(f"loaded {fetch(source, weights=weights_of(sys.argv[1]))}")
    except DynamoException as error:
        found.append(error.message)
json.dump(found, sys.stdout)
"""
