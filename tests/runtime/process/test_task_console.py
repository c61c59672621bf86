"""The task console: who waits for what, since when; off by default, for this user alone."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process import event_loop
from dynamo.runtime.process.task_console import Console, console, running, socket_path, spot, wanted


async def sleeper(event: asyncio.Event) -> None:
    await waiting(event)


async def waiting(event: asyncio.Event) -> None:
    await event.wait()


async def following(task: asyncio.Task[None]) -> None:
    await task


def row(rows: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(next(task for task in rows["tasks"] if task["name"] == name))


async def test_a_task_is_found_where_it_waits() -> None:
    """The innermost coroutine, its line, and the way there; without the machine's folders."""
    event = asyncio.Event()
    task = asyncio.create_task(sleeper(event), name="one")
    await asyncio.sleep(0)
    here = spot(task)
    assert here.stack == ("sleeper", "waiting", "Event.wait")
    assert here.where.startswith("Event.wait (")
    assert "asyncio/locks.py:" in here.where
    assert not here.where.split("(")[1].startswith("/")
    assert here.what == "a future"
    follower = asyncio.create_task(following(task), name="two")
    await asyncio.sleep(0)
    assert spot(follower).what == "task 'one'"
    event.set()
    await follower


async def test_since_when_counts_until_it_moves() -> None:
    """A task that stays where it is grows older; one that moved begins anew; one that ended is gone."""
    first, second = asyncio.Event(), asyncio.Event()

    async def both() -> None:
        await first.wait()
        await second.wait()

    task = asyncio.create_task(both(), name="mover")
    await asyncio.sleep(0)
    seen = Console()
    seen.look(100.0)
    seen.look(103.0)
    assert row(seen.snapshot(103.5), "mover")["since"] == 3.5
    first.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second_look = seen.snapshot(104.0)
    seen.look(105.0)
    assert row(second_look, "mover")["since"] == 4.0
    second.set()
    await task
    seen.look(106.0)
    assert [task["name"] for task in seen.snapshot(106.0)["tasks"] if task["name"] == "mover"] == []


def test_it_tells_over_a_socket_of_this_user(tmp_path: Path) -> None:
    """Snapshots come as JSON lines; folder and socket are closed to others; nothing stays."""
    env = {"DYN_CONSOLE": "1", "XDG_RUNTIME_DIR": str(tmp_path)}

    async def look() -> Path:
        async with console(env) as path:
            assert path == socket_path(env, os.getpid())
            assert list(running(env)) == [os.getpid()]
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            reader, writer = await asyncio.open_unix_connection(path)
            document = json.loads(await asyncio.wait_for(reader.readline(), 10))
            assert document["pid"] == os.getpid()
            assert document["tasks"]
            writer.close()
            await writer.wait_closed()
            return path

    assert not asyncio.run(look()).exists()


async def test_only_so_many_may_look(tmp_path: Path) -> None:
    """The fifth reader is sent away at once; one that left makes room."""
    env = {"DYN_CONSOLE": "1", "XDG_RUNTIME_DIR": str(tmp_path)}
    async with console(env) as path:
        assert path is not None
        open_ones = [await asyncio.open_unix_connection(path) for _ in range(4)]
        for reader, _ in open_ones:
            assert await asyncio.wait_for(reader.readline(), 10)
        fifth, closing = await asyncio.open_unix_connection(path)
        assert await asyncio.wait_for(fifth.read(), 10) == b""
        closing.close()
        for _, writer in open_ones:
            writer.close()
        again: list[bytes] = []

        async def knock() -> None:
            while not again or not again[-1]:
                reader, writer = await asyncio.open_unix_connection(path)
                again.append(await asyncio.wait_for(reader.readline(), 10))
                writer.close()
                await asyncio.sleep(0.05)

        knocking = asyncio.create_task(knock())
        await until("there is room again", lambda: again and again[-1])
        await knocking


@pytest.mark.parametrize("value", ["", "0", "false", "no", "Off"])
def test_off_is_off(value: str, tmp_path: Path) -> None:
    """Nothing listens unless it is asked for."""
    env = {"DYN_CONSOLE": value, "XDG_RUNTIME_DIR": str(tmp_path)}

    async def look() -> object:
        async with console(env) as path:
            return path

    assert not wanted(env)
    assert asyncio.run(look()) is None
    assert list(tmp_path.iterdir()) == []


def shared(folder: Path) -> None:
    (folder / "dynamo").mkdir(mode=0o755)
    (folder / "dynamo").chmod(0o755)


def linked(folder: Path) -> None:
    (folder / "elsewhere").mkdir(mode=0o700)
    (folder / "dynamo").symlink_to(folder / "elsewhere")


@pytest.mark.parametrize("prepare", [shared, linked])
def test_a_folder_that_others_can_open_is_refused(prepare: Callable[[Path], None], tmp_path: Path) -> None:
    """In a folder of somebody else's making a socket could be anybody's."""
    prepare(tmp_path)

    async def look() -> None:
        async with console({"DYN_CONSOLE": "1", "XDG_RUNTIME_DIR": str(tmp_path)}):
            pass

    with pytest.raises(InvalidArgument, match="only you can open"):
        asyncio.run(look())


def test_programs_have_it_where_the_environment_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`loops.run`, which all our programs use, opens it."""
    monkeypatch.setenv("DYN_CONSOLE", "1")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def look() -> list[int]:
        return list(running(os.environ))

    assert event_loop.run(look()) == [os.getpid()]
    monkeypatch.setenv("DYN_CONSOLE", "0")
    assert event_loop.run(look()) == []
