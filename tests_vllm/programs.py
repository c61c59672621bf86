"""Whole programs of ours with a real vLLM in them, for the tests that start some."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import openai
import psutil
from tests.waiting import eventually

RUN: Final = "dynamo.cli.run"
WORKER: Final = "dynamo.worker"
FRONTEND: Final = "dynamo.frontend"
PATIENCE: Final = 900.0
"""A start of vLLM on a busy machine."""


class Program:
    """One program; its output in a file. It leads a process group, as one does that a shell has started."""

    def __init__(self, folder: Path, module: str, words: list[str], name: str, env: dict[str, str]) -> None:
        self.log = folder / f"{name or module}.log"
        argv = [sys.executable, "-m", module, *words]
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "XDG_STATE_HOME": str(folder), **env},
            )  # fmt: skip

    def ready(self) -> dict[str, Any]:
        """What its `ready` line says."""

        def look() -> Any:
            assert self.popen.poll() is None, self.log.read_text()
            return re.search(r"^ready (\{.*\})$", self.log.read_text(), re.MULTILINE)

        found: dict[str, Any] = json.loads(eventually("a ready line", look, PATIENCE)[1])
        return found

    def children(self) -> list[psutil.Process]:
        """All that it started, and what that did."""
        found: list[psutil.Process] = psutil.Process(self.popen.pid).children(recursive=True)
        return found

    def core(self) -> psutil.Process | None:
        """vLLM's core, once it calls itself so."""
        return next((child for child in self.children() if "EngineCore" in title(child)), None)

    def end(self) -> int:
        """Have it end in order; its exit status."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(120)
        finally:
            self.popen.kill()
            self.popen.wait()


@contextlib.contextmanager
def running(folder: Path, module: str, words: list[str], name: str = "", **env: str) -> Iterator[Program]:
    """A program, which ends with the block."""
    program = Program(folder, module, words, name, env)
    try:
        yield program
    finally:
        program.end()


def title(process: psutil.Process) -> str:
    """Its command line; empty where it is gone."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def gone(processes: Iterable[psutil.Process]) -> bool:
    """Whether none of them runs; one that nobody has waited for doesn't."""
    return not any(map(_runs, processes))


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def client(url: str) -> openai.OpenAI:
    """The SDK, without its own second tries."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=PATIENCE)
