"""What a running `dynamo up` tells `dynamo ps` and `dynamo logs`, and the lock that says it runs.

One folder per pipeline under `$XDG_STATE_HOME/dynamo`: `lock` (held as long as `up`
lives, by the kernel's account, so that a killed run holds nothing), `state.json`
(replaced whole), `logs/` and the servers' data.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

import msgspec

RUN_VARIABLE = "DYN_UP_RUN"
"""Marks every process of a run in its environment."""


_ENDING: Final = "ended.json"
FRONTEND: Final = "frontend"
WORKER: Final = "worker"
NODE: Final = "node"
"""Kinds of parts; a node stands beside the worker that leads its group."""


class PartState(msgspec.Struct):
    """One process, as `ps` shows it."""

    name: str
    kind: str
    component: str
    state: str
    since: float
    pid: int | None = None
    revision: str = ""
    restarts: int = 0
    reason: str = ""
    log: str = ""
    ports: dict[str, int] = {}
    ended: str = ""
    """Why the process before this one ended, where there was one."""
    instance: str = ""
    """By which frontends know it, where it is a worker."""


class RunState(msgspec.Struct):
    """One pipeline of one `dynamo up`."""

    run: str
    pid: int
    started: float
    file: str
    pipeline: str
    namespace: str
    model: str
    url: str = ""
    etcd: str = ""
    nats: str = ""
    parts: list[PartState] = []


class Ending(msgspec.Struct):
    """How the last `dynamo up` of a pipeline ended; stays until the next one."""

    file: str
    reasons: dict[str, str] = {}
    """Why it could not serve: by part, or by an empty name where it never came to a part. None: it was stopped."""


class HeldError(Exception):
    """Another `dynamo up` runs this pipeline."""

    def __init__(self, pipeline: str, pid: str, file: str) -> None:
        super().__init__(pipeline)
        self.pipeline, self.pid, self.file = pipeline, pid, file


def state_home(environment: Mapping[str, str]) -> Path:
    """Return `$XDG_STATE_HOME/dynamo`, by default `~/.local/state/dynamo`."""
    home = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "dynamo"


class PipelineState:
    """The folder of one pipeline, locked by us."""

    def __init__(self, folder: Path, lock: IO[str]) -> None:
        self.folder = folder
        self._lock = lock
        self._released = False
        self._written: tuple[int, int] | None = None

    @classmethod
    def acquire(cls, home: Path, pipeline: str, file: str) -> PipelineState:
        """Lock the pipeline's folder and clear what a killed run left; raises `HeldError`."""
        folder = home / pipeline
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid, _, held_by = lock.read().strip().partition(" ")
            lock.close()
            raise HeldError(pipeline, pid or "?", held_by) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()} {file}\n")
        lock.flush()
        state = cls(folder, lock)
        state.clear()
        return state

    def clear(self) -> None:
        """Kill processes of an earlier run that still live, and remove its files."""
        left = read_state(self.folder)
        if left is not None:
            kill_leftovers(left)
        for name in ("state.json", _ENDING):
            (self.folder / name).unlink(missing_ok=True)
        for name in ("logs", "data", "files"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def write(self, state: RunState) -> None:
        """Replace `state.json`; nothing once the run is over."""
        if self._released or not self._regain():
            return
        fresh = self.folder / "state.json.new"
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        fresh.replace(self.folder / "state.json")
        self._written = _mark_of(self.folder / "state.json")

    def _regain(self) -> bool:
        """Make the folder and its lock anew where somebody has removed them; False where another run has them now."""
        if self._is_ours:
            return True
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (self.folder / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        self._lock.seek(0)
        lock.truncate(0)
        lock.write(self._lock.read())
        lock.flush()
        self._lock.close()
        self._lock = lock
        return True

    @property
    def _is_ours(self) -> bool:
        """Tell whether the lock in the folder is the one that we hold."""
        try:
            return os.path.samestat((self.folder / "lock").stat(), os.fstat(self._lock.fileno()))
        except OSError:
            return False

    @property
    def is_damaged(self) -> bool:
        """Tell whether somebody else has changed or removed `state.json`, or the lock."""
        if self._released or self._written is None:
            return False
        return _mark_of(self.folder / "state.json") != self._written or not self._is_ours

    def release(self) -> None:
        """End of the run: logs stay for `dynamo logs`, the rest goes."""
        self._released = True
        if self._is_ours:
            (self.folder / "state.json").unlink(missing_ok=True)
            for name in ("data", "files"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
        self._lock.truncate(0)
        self._lock.close()


def refused(error: OSError, path: Path) -> str:
    """Say why a state can't be written, and what mends it."""
    place = Path(error.filename or path)
    other = next((p for p in (place, *place.parents) if os.path.isfile(p)), None)
    away = f", or mv {other} {other}.aside" if other else ""
    return f"{place}: {error.strerror}. Set XDG_STATE_HOME to a folder that you may write to{away}"


def _mark_of(path: Path) -> tuple[int, int] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_size


def write_ending(folder: Path, ending: Ending) -> None:
    """Keep how a run ended; nothing where the folder can't be written to."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / _ENDING).write_bytes(msgspec.json.encode(ending))


def read_ending(folder: Path) -> Ending | None:
    """Return how the last run ended, None where nothing tells."""
    try:
        return msgspec.json.decode((folder / _ENDING).read_bytes(), type=Ending)
    except (OSError, msgspec.DecodeError):
        return None


def holder_of(folder: Path) -> tuple[str, str]:
    """Return the process that holds a folder, and its file, as its lock says; empty where that can't be read."""
    try:
        pid, _, file = (folder / "lock").read_text(encoding="utf-8").strip().partition(" ")
    except (OSError, UnicodeDecodeError):
        return "", ""
    return pid, file


def read_state(folder: Path) -> RunState | None:
    """Return the last state written there, None where there is none that can be read."""
    try:
        return msgspec.json.decode((folder / "state.json").read_bytes(), type=RunState)
    except (OSError, msgspec.DecodeError):
        return None


def is_running(folder: Path) -> bool:
    """Tell whether a living `dynamo up` holds the folder."""
    try:
        with (folder / "lock").open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def running(home: Path) -> Iterator[tuple[RunState, bool]]:
    """Yield each pipeline that has a state, and whether its `dynamo up` lives."""
    if not home.is_dir():
        return
    for folder in sorted(home.iterdir()):
        state = read_state(folder)
        if state is not None:
            yield state, is_running(folder)


def unreadable(home: Path) -> list[str]:
    """Return the pipelines that are up, and whose state can't be read."""
    folders = sorted(home.iterdir()) if home.is_dir() else []
    return [folder.name for folder in folders if read_state(folder) is None and is_running(folder)]


def kill_leftovers(state: RunState) -> list[int]:
    """Kill the recorded processes that are still those of that run; returns their pids."""
    killed = []
    for part in state.parts:
        if part.pid is not None and belongs_to(part.pid, state.run):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(part.pid, signal.SIGKILL)
                killed.append(part.pid)
    return killed


def belongs_to(pid: int, run: str) -> bool:
    """Tell whether a process was started by that run; its number alone proves nothing."""
    try:
        return f"{RUN_VARIABLE}={run}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
