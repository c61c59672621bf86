"""What vLLM starts ends with the worker: real processes, one killed, the others gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import eventually

pytestmark = pytest.mark.processes
WORKER = """
import multiprocessing, os, signal, sys, threading
from dynamo.worker.engines.vllm.parent_death import kill_tethered, tethering

def leaf():
    say("leaf")
    signal.pause()

def core(method):
    child = multiprocessing.get_context(method).Process(target=leaf)
    child.start()
    say("core")
    signal.pause()

class Slow:  # to be read
    def __reduce__(self):
        return slowly, ()

def slowly():
    say("reading")
    signal.pause()

def nothing(slow):
    pass

def say(name):
    os.write(1, f"{name} {os.getpid()} {os.getpgrp()}\\n".encode())

def start(method):
    with tethering():
        multiprocessing.get_context(method).Process(target=core, args=(method,)).start()

if __name__ == "__main__":
    if sys.argv[1] == "slow":
        with tethering():
            multiprocessing.get_context("spawn").Process(target=nothing, args=(Slow(),)).start()
    else:
        start(sys.argv[1])
    if sys.stdin.readline() == "give up\\n":
        kill_tethered()
    signal.pause()
"""


def lives(pid: int) -> bool:
    """Whether it runs; a process that nobody has waited for doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def worker(folder: Path, method: str, say: int = 2) -> Iterator[tuple[subprocess.Popen[str], dict[str, list[int]]]]:
    """A process with a child and a grandchild that say so; of these, by name, process and group."""
    script = folder / "worker.py"
    script.write_text(WORKER)
    words = [sys.executable, str(script), method]
    with subprocess.Popen(words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            results = [process.stdout.readline().split() for _ in range(say)]
            yield process, {name: [int(pid), int(group)] for name, pid, group in results}
        finally:
            process.kill()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_they_end_with_a_worker_that_is_killed(tmp_path: Path, method: str) -> None:
    """Its children and theirs; until then they live, in groups of their own, which Ctrl-C of a terminal passes by."""
    with worker(tmp_path, method) as (process, lines):
        assert all(lives(pid) and group == pid for pid, group in lines.values())
        process.kill()
        for name, (pid, _) in lines.items():
            eventually(f"{name} is gone", lambda pid=pid: not lives(pid))  # type: ignore[misc]


def test_a_start_can_be_given_up(tmp_path: Path) -> None:
    """The worker's own child is killed, and with it the grandchild; the worker lives."""
    with worker(tmp_path, "spawn") as (process, lines):
        assert process.stdin is not None
        process.stdin.write("give up\n")
        process.stdin.flush()
        for name, (pid, _) in lines.items():
            eventually(f"{name} is gone", lambda pid=pid: not lives(pid))  # type: ignore[misc]
        assert process.poll() is None


def test_one_that_is_not_awake_yet_ends_too(tmp_path: Path) -> None:
    """While it reads what it was started with, which for vLLM's core takes many seconds."""
    with worker(tmp_path, "slow", 1) as (process, lines):
        (pid, _), = lines.values()  # fmt: skip
        process.kill()
        eventually("it is gone", lambda: not lives(pid))
