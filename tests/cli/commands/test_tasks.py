"""`dynamo tasks` against what may stand in a process's place."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from dynamo.cli.commands.tasks import snapshots

PID = 4711


@contextmanager
def saying(folder: Path, data: bytes) -> Iterator[None]:
    """Something that answers on the console's socket of a process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(folder / "dynamo" / f"console-{PID}.sock"))
        server.listen()

        def answer() -> None:
            first, _ = server.accept()
            with first:
                first.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the sockets are looked for."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "dynamo").mkdir(mode=0o700)
    return tmp_path


@pytest.mark.parametrize("data", [b"", b'{"pid": 47'], ids=["nothing", "half a line"])
def test_a_process_that_ends_meanwhile(folder: Path, data: bytes) -> None:
    """Or that has as many readers as it takes: one sentence."""
    with saying(folder, data), pytest.raises(click.ClickException, match="has ended"):
        list(snapshots(PID))


def test_whole_lines_count(folder: Path) -> None:
    """What came before the end is shown."""
    with saying(folder, b'{"pid": 1}\n{"pid"'):
        assert list(snapshots(PID)) == [{"pid": 1}]


def test_a_folder_of_somebody_else_is_not_believed(folder: Path) -> None:
    """Under the temporary folder anybody may have made it: what its sockets say would go to this terminal."""
    (folder / "dynamo").chmod(0o777)
    with pytest.raises(click.ClickException, match="only you can open"):
        list(snapshots(PID))


def test_no_process_has_one(folder: Path) -> None:
    """Nor a folder."""
    os.rmdir(folder / "dynamo")
    with pytest.raises(click.ClickException, match="DYN_CONSOLE=1"):
        list(snapshots(PID))
