"""One file into the cache, over real connections to the stand-in hub, with every fault that it knows."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.llm.stand_in_hub import ENDLESS, Fault, Hub
from tests.waiting import eventually

from dynamo.llm.hub.download import LONGEST_WAIT, DownloadJob, Patience, Place, RemoteFile, content_range, load
from dynamo.llm.hub.fetch import HttpHubConnection
from dynamo.llm.hub.progress import Progress
from dynamo.runtime.errors import Cancelled, CannotConnect, DynamoException, InvalidArgument

NAME = "model.safetensors"
CONTENT = random.Random(3).randbytes(3 << 20)
BRISK = partial(Patience, 4, 0.01)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """With one file."""
    folder = tmp_path / "served" / "org" / "tiny"
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(CONTENT)
    (folder / "config.json").write_bytes(b"{}")
    with Hub(tmp_path / "served") as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """In a cache of its own."""
    return Place(tmp_path / "cache" / "blobs" / "x", tmp_path / "cache" / ".locks" / "x.lock")


def remote(hub: Hub, name: str = NAME) -> RemoteFile:
    git = hashlib.sha1(b"blob 2\0{}").hexdigest()
    sha = hashlib.sha256(CONTENT).hexdigest() if name == NAME else None
    size = len(CONTENT) if name == NAME else 2
    place = f"{hub.url}/org/tiny/resolve/main/{name}"
    return RemoteFile(name, place, size, sha, git)


def errand(stop: threading.Event | None = None) -> DownloadJob:
    return DownloadJob(
        HttpHubConnection(), Progress({NAME: len(CONTENT), "config.json": 2}), stop or threading.Event(), BRISK
    )


@pytest.mark.parametrize(
    ("faults", "starts"),
    [
        ([], [0]),
        ([Fault(NAME, cut_at=1 << 20), Fault(NAME, cut_at=2 << 20)], [0, 1 << 20, 2 << 20]),
        ([Fault(NAME, times=3, status=500)], [0]),
        ([Fault(NAME, times=1, status=429)], [0]),
        ([Fault(NAME, damage=True)], [0, 0]),
        ([Fault(NAME, cut_at=1 << 20), Fault(NAME, whole=True)], [0, 0]),
        ([Fault(NAME, endless=True)], [0]),
    ],
    ids=["nothing", "cut twice", "500", "429", "damaged", "no ranges", "endless"],
)
def test_what_passes_is_overcome(hub: Hub, place: Place, faults: list[Fault], starts: list[int]) -> None:
    """Asked for is what is missing, and nothing else."""
    hub.faults += faults
    load(remote(hub), place, errand())
    assert place.blob.read_bytes() == CONTENT
    assert [load.start for load in hub.loads] == starts
    assert not any(load.sent >= ENDLESS for load in hub.loads)
    assert not place.partial.exists()


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (Fault(NAME, times=99, longer_by=7), InvalidArgument, "sends 3145735 bytes .* but announced 3145728"),
        (Fault(NAME, times=99, damage=True), InvalidArgument, "checksum"),
        (Fault(NAME, times=99, status=500), CannotConnect, "the hub answers 500; try again later: what has come stays"),
        (Fault(NAME, times=99, status=404), Exception, "404"),
        (Fault(NAME, times=99, cut_at=0), CannotConnect, "the line broke"),
    ],
    ids=["length", "content", "500", "404", "cut"],
)
def test_what_stays_is_told(hub: Hub, place: Place, fault: Fault, kind: type[Exception], said: str) -> None:
    """After a few tries; nothing that is wrong stays in the cache."""
    hub.faults.append(fault)
    with pytest.raises(kind, match=said):
        load(remote(hub), place, errand())
    assert not place.blob.exists()


def test_a_small_file_goes_by_its_git_name(hub: Hub, place: Place) -> None:
    """What is not in LFS is checked too."""
    load(remote(hub, "config.json"), place, errand())
    assert place.blob.read_bytes() == b"{}"


@pytest.mark.parametrize("there", [b"", CONTENT[:100], CONTENT[:-1], CONTENT, b"\0" * 500, CONTENT + b"more"],
    ids=["nothing", "a part", "all but one", "all", "zeros", "more"])  # fmt: skip
def test_whatever_lies_there_the_file_is_right(hub: Hub, place: Place, there: bytes) -> None:
    """A good beginning is used; a bad one (a disk that lost power) is found by the checksum and loaded again."""
    place.blob.parent.mkdir(parents=True)
    place.partial.write_bytes(there)
    load(remote(hub), place, errand())
    assert place.blob.read_bytes() == CONTENT
    if CONTENT.startswith(there):
        assert hub.sent(NAME) == len(CONTENT) - len(there)


def test_a_link_is_not_written_through(hub: Hub, place: Place, tmp_path: Path) -> None:
    """Whoever shares the cache may put links into it; a file elsewhere stays as it is."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    place.blob.parent.mkdir(parents=True)
    place.partial.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        load(remote(hub), place, errand())
    assert victim.read_bytes() == b"precious"


def test_two_at_once_without_locks_harm_nothing(hub: Hub, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that has none, both write the same bytes to the same places."""
    import filelock

    class Lockless(filelock.UnixFileLock):
        def _acquire(self) -> None:
            raise NotImplementedError

    monkeypatch.setattr(filelock, "FileLock", Lockless)
    hub.pause = 0.005
    failed: list[DynamoException | OSError] = []

    def one() -> None:
        try:
            load(remote(hub), place, errand())
        except (DynamoException, OSError) as error:
            failed.append(error)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert place.blob.read_bytes() == CONTENT


def test_one_who_waits_for_a_lock_can_be_stopped(hub: Hub, place: Place) -> None:
    """And so can one who loads: the first byte after the word ends it."""
    stop = threading.Event()
    hub.faults.append(Fault(NAME, hold_at=1 << 20))
    ended: list[bool] = []

    def one() -> None:
        with pytest.raises(Cancelled, match="what has come stays"):
            load(remote(hub), place, errand(stop))
        ended.append(True)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    while place.have() < 1 << 20:
        assert any(thread.is_alive() for thread in threads)
    stop.set()
    hub.faults[0].resume.set()
    for thread in threads:
        thread.join()
    assert ended == [True, True]
    assert place.partial.stat().st_size >= 1 << 20


def test_what_is_skipped_can_be_stopped_too(hub: Hub, place: Place) -> None:
    """A server that knows no ranges sends again what is there; nobody waits for the end of that."""
    place.blob.parent.mkdir(parents=True)
    place.partial.write_bytes(CONTENT[:-1])
    stop = threading.Event()
    hub.faults.append(Fault(NAME, whole=True, hold_at=1 << 16))
    ended: list[Cancelled] = []

    def one() -> None:
        with pytest.raises(Cancelled) as caught:
            load(remote(hub), place, errand(stop))
        ended.append(caught.value)

    thread = threading.Thread(target=one)
    thread.start()
    eventually("it is being sent", lambda: hub.sent(NAME) == 1 << 16)
    stop.set()
    hub.faults[0].resume.set()
    thread.join()
    assert len(ended) == 1
    assert place.partial.read_bytes() == CONTENT[:-1]


def test_patience_grows_and_ends() -> None:
    """It doubles, does what the hub asks within bounds, and begins anew when bytes came."""
    patience = Patience(4, 0.5)
    assert [patience.wait(None), patience.wait(None), patience.wait(10.0)] == [0.5, 1.0, 10.0]
    assert patience.wait(None) is None
    patience.progressed()
    assert patience.wait(1e9) == LONGEST_WAIT


@given(st.text(max_size=40), st.text(max_size=20), st.sampled_from([200, 206]))
def test_headers_may_be_anything(piece: str, length: str, status: int) -> None:
    """They come from far away."""
    begins, total = content_range(status, {"Content-Range": piece, "Content-Length": length})
    assert begins >= 0
    assert total is None or total >= 0
