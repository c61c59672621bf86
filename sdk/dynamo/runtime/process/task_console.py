"""The task console: which task of this process waits for what, and since when. Off unless `DYN_CONSOLE` is set.

In the place of NVIDIA Dynamo's tokio-console. It listens on a socket in the file system that only this user can open
(mode 0600 in a folder of mode 0700), never on a network. Whoever connects gets snapshots, one JSON object a line, one
at once and then one a second; `dynamo tasks` shows them. Since when a task waits is known by looking four times a
second while somebody is connected: while nobody is, nothing is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from dynamo.runtime.errors import InvalidArgument

VARIABLE: Final = "DYN_CONSOLE"
PERIOD: Final = 1.0
LOOK: Final = 0.25
_MOST_READERS: Final = 4
_DEEPEST: Final = 50
_OFF: Final = ("", "0", "false", "no", "off")


class Spot(NamedTuple):
    """Spot where a task waits."""

    where: str
    """Function, file and line of the innermost coroutine."""
    what: str
    """What that one awaits."""
    stack: tuple[str, ...]
    """The functions that led there, outermost first."""


def wanted(env: dict[str, str] | os._Environ[str]) -> bool:
    """Tell whether the environment turns the console on."""
    return env.get(VARIABLE, "").strip().lower() not in _OFF


def folder(env: dict[str, str] | os._Environ[str]) -> Path:
    """Return the folder of the sockets of this user's processes."""
    runtime = env.get("XDG_RUNTIME_DIR", "")
    return Path(runtime) / "dynamo" if runtime else Path(tempfile.gettempdir()) / f"dynamo-{os.getuid()}"


def socket_path(env: dict[str, str] | os._Environ[str], pid: int) -> Path:
    """Return the socket of a process."""
    return folder(env) / f"console-{pid}.sock"


def spot(task: asyncio.Task[Any]) -> Spot:
    """Return where `task` stands now."""
    names: list[str] = []
    where, inner = "", task.get_coro()
    for _ in range(_DEEPEST):
        frame, code, following = _parts(inner)
        if code is None:
            break
        names.append(code.co_qualname)
        line = frame.f_lineno if frame is not None else code.co_firstlineno
        where = f"{code.co_qualname} ({_short(code.co_filename)}:{line})"
        inner = following
    return Spot(where, _described(getattr(task, "_fut_waiter", None)), tuple(names))


def _parts(inner: Any) -> tuple[FrameType | None, CodeType | None, Any]:
    """Return frame, code and what is awaited, of a coroutine or a generator."""
    for prefix, awaited in (("cr", "cr_await"), ("ag", "ag_await"), ("gi", "gi_yieldfrom")):
        code = getattr(inner, f"{prefix}_code", None)
        if code is not None:
            return getattr(inner, f"{prefix}_frame", None), code, getattr(inner, awaited, None)
    return None, None, None


def _described(waiter: Any) -> str:
    if waiter is None:
        return "its turn"
    if isinstance(waiter, asyncio.Task):
        return f"task {waiter.get_name()!r}"
    return {"Future": "a future", "_GatheringFuture": "several tasks"}.get(type(waiter).__name__, type(waiter).__name__)


def _short(file: str) -> str:
    """Return the end of a path: enough to find the file, nothing of the machine."""
    return "/".join(Path(file).parts[-3:])


class Console:
    """Watches the tasks of the running loop for those who are connected."""

    def __init__(self) -> None:
        self._since: dict[asyncio.Task[Any], tuple[Spot, float]] = {}
        self._readers = 0

    def look(self, now: float) -> None:
        """Note where each task stands; `now` in seconds."""
        places: dict[asyncio.Task[Any], tuple[Spot, float]] = {}
        for task in asyncio.all_tasks():
            here = spot(task)
            before = self._since.get(task)
            places[task] = before if before is not None and before[0] == here else (here, now)
        self._since = places

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return all tasks, those that wait longest first."""
        rows = sorted(self._since.items(), key=lambda item: item[1][1])
        tasks = [
            {"name": task.get_name(), "waits_for": here.what, "where": here.where, "since": round(now - since, 3),
             "stack": list(here.stack)}
            for task, (here, since) in rows
        ]  # fmt: skip
        return {"pid": os.getpid(), "program": Path(sys.argv[0]).name, "argv": sys.argv[1:], "tasks": tasks}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send snapshots until the other side leaves."""
        if self._readers >= _MOST_READERS:
            writer.close()
            return
        self._readers += 1
        try:
            await self._tell(writer)
        except (ConnectionError, TimeoutError):
            pass
        finally:
            self._readers -= 1
            if not self._readers:
                self._since.clear()
            writer.close()

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        reported = 0.0
        while not writer.is_closing():
            now = time.monotonic()
            self.look(now)
            if now - reported >= PERIOD:
                reported = now
                writer.write(json.dumps(self.snapshot(now)).encode() + b"\n")
                async with asyncio.timeout(10 * PERIOD):
                    await writer.drain()
            await asyncio.sleep(LOOK)


@contextlib.asynccontextmanager
async def console(env: dict[str, str] | os._Environ[str]) -> AsyncIterator[Path | None]:
    """Open the console while the body runs, where `env` wants one; `InvalidArgument`: its folder is not ours alone."""
    if not wanted(env):
        yield None
        return
    path = socket_path(env, os.getpid())
    _made(path.parent)
    path.unlink(missing_ok=True)  # of a process that had our id and died
    old = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(Console().serve, path)
    except OSError as error:  # a path of more than 107 bytes, say
        raise InvalidArgument(f"{VARIABLE}: can't listen on {path}: {error.strerror or error}") from error
    finally:
        os.umask(old)
    try:
        yield path
    finally:
        server.close()
        path.unlink(missing_ok=True)


def _made(here: Path) -> None:
    try:
        here.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"{VARIABLE}: {here} can't be used: {error.strerror}") from error
    check_private(here)


def check_private(here: Path) -> None:
    """Raise `InvalidArgument` where others may put sockets into a folder; one that isn't there has none."""
    try:
        status = here.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidArgument(f"{VARIABLE}: {here} can't be used: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InvalidArgument(f"{VARIABLE}: {here} must be a folder that only you can open (chmod 700)")


def running(env: dict[str, str] | os._Environ[str]) -> Iterable[int]:
    """Yield the processes of this user that have a console, by their sockets; some may be gone."""
    for path in sorted(folder(env).glob("console-*.sock")):
        number = path.stem.removeprefix("console-")
        if number.isdigit():
            yield int(number)
