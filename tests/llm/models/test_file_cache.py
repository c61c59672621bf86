"""Files of a card: cached by digest, fetched in chunks, checked."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dynamo.llm import FileCache, FileRef, FileServer, fetch_files
from dynamo.llm.models.file_cache import CHUNK, LARGEST, MOST, OPERATION, SPARE, default_root, digest_of, file_ref
from dynamo.runtime.errors import CannotConnect, DeadlineExceeded, DynamoException, EngineError, InvalidArgument


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A file that needs three chunks."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(os.urandom(2 * CHUNK + 17))
    return path


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    """A cache of its own."""
    return FileCache(tmp_path / "cache")


class Peer:
    """A worker's control function."""

    def __init__(self, *paths: Path) -> None:
        self.server = FileServer({file_ref(path).digest: path for path in paths})
        self.asked: list[Mapping[str, Any]] = []

    async def __call__(self, operation: str, body: Any) -> Any:
        assert operation == OPERATION
        self.asked.append(body)
        await asyncio.sleep(0)
        return self.server.answer(body)


def fetch(control: Any, refs: Mapping[str, FileRef], cache: FileCache, timeout: float = 10.0) -> dict[str, Path]:
    """Fetch and wait."""
    return asyncio.run(fetch_files(control, refs, cache=cache, timeout=timeout))


def test_a_file_arrives_in_chunks_and_stays(original: Path, cache: FileCache) -> None:
    """The first fetch asks chunk by chunk, the second not at all."""
    refs = {"tokenizer": file_ref(original)}
    peer = Peer(original)
    path = fetch(peer, refs, cache)["tokenizer"]
    assert path.read_bytes() == original.read_bytes()
    assert len(peer.asked) == 3
    assert fetch(peer, refs, cache) == {"tokenizer": path}
    assert len(peer.asked) == 3
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name]


def test_a_corrupt_entry_is_fetched_again(original: Path, cache: FileCache) -> None:
    """The cache is checked before it is believed, whatever the size of the damage."""
    refs = {"tokenizer": file_ref(original)}
    peer = Peer(original)
    path = fetch(peer, refs, cache)["tokenizer"]
    for damage in (b"", original.read_bytes()[:-1] + b"?"):
        path.write_bytes(damage)
        assert fetch(peer, refs, cache)["tokenizer"].read_bytes() == original.read_bytes()


def test_files_of_the_same_content_are_both_there(original: Path, cache: FileCache) -> None:
    """Two roles may name one content."""
    ref = file_ref(original)
    paths = fetch(Peer(original), {"a": ref, "b": ref}, cache)
    assert paths["a"] == paths["b"]


def test_an_empty_file_needs_no_peer(tmp_path: Path, cache: FileCache) -> None:
    """Nothing is asked for where nothing is to come."""
    path = tmp_path / "empty"
    path.touch()
    assert fetch(None, {"x": file_ref(path)}, cache)["x"].read_bytes() == b""


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, "has no data"),
        ({"data": "text", "size": 5}, "has no data"),
        ({"data": b"", "size": 0}, "another size"),
        ({"data": b"123456", "size": 6}, "another size"),
        ({"data": b"12345", "size": 5}, "another content"),
    ],
)
def test_a_lying_peer_is_an_error_that_names_the_file(cache: FileCache, answer: Any, sentence: str) -> None:
    """Whatever comes instead of the file, nothing of it is kept."""
    ref = FileRef(digest=digest_of([b"right"]), size=5, name="tokenizer.json")

    async def control(operation: str, body: Any) -> Any:
        return answer

    with pytest.raises(EngineError, match=f"{sentence}.*|tokenizer.json") as caught:
        fetch(control, {"tokenizer": ref}, cache)
    assert "tokenizer.json" in str(caught.value)
    assert cache.find(ref) is None


def test_a_missing_file_is_named(original: Path, tmp_path: Path, cache: FileCache) -> None:
    """A peer without the file says so, and the error carries the file's name; other errors keep their kind."""
    other = tmp_path / "other"
    other.write_bytes(b"x")
    with pytest.raises(InvalidArgument, match=r"tokenizer\.json.*no file with digest"):
        fetch(Peer(other), {"tokenizer": file_ref(original)}, cache)

    async def gone(operation: str, body: Any) -> Any:
        raise CannotConnect("nobody there")

    with pytest.raises(CannotConnect, match=r"tokenizer\.json.*nobody there"):
        fetch(gone, {"tokenizer": file_ref(original)}, cache)


def test_a_silent_peer_meets_the_deadline(original: Path, cache: FileCache) -> None:
    """A fetch ends in time, naming what did not come."""

    async def silent(operation: str, body: Any) -> Any:
        await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded, match=r"tokenizer\.json"):
        fetch(silent, {"tokenizer": file_ref(original)}, cache, timeout=0.05)


@pytest.mark.parametrize("digest", ["../../etc/passwd", "", "0" * 63, "Z" * 64])
def test_a_digest_can_not_name_a_path(cache: FileCache, digest: str) -> None:
    """A digest comes over the network and becomes a file name."""
    with pytest.raises(InvalidArgument, match="malformed digest"):
        cache.find(FileRef(digest=digest, size=1, name="x"))


async def unasked(operation: str, body: Any) -> Any:
    """The control function of a worker that nothing may be asked of."""
    raise AssertionError(f"asked for {body}")


def announced(sizes: list[int]) -> dict[str, FileRef]:
    """A card's files, of contents that are all different."""
    return {f"role {n}": FileRef(digest=f"{n:064x}", size=size, name=f"file {n}") for n, size in enumerate(sizes)}


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([1 << 40], "1099511627776 bytes for file 'file 0'"),
        ([-1], "-1 bytes for file 'file 0'"),
        ([LARGEST // 2, LARGEST // 2 + 1], "1073 MB together; 1073 are taken"),
        ([1] * (MOST + 1), "65 files; 64 are taken"),
    ],
)
def test_a_card_that_announces_too_much_is_refused(cache: FileCache, sizes: list[int], says: str) -> None:
    """One file, all together, or their number: nothing of it is asked for or written."""
    with pytest.raises(EngineError, match=says):
        fetch(unasked, announced(sizes), cache)
    assert not cache.root.exists()


def test_one_content_counts_once(original: Path, cache: FileCache) -> None:
    """A content that several roles name is asked for once."""
    ref, peer = file_ref(original), Peer(original)
    assert len(fetch(peer, {f"role {n}": ref for n in range(MOST)}, cache)) == MOST
    assert len(peer.asked) == 3


def test_a_disk_keeps_some_room(original: Path, cache: FileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many cards come, they don't fill the disk; what is there already needs no room."""
    peer, refs = Peer(original), {"tokenizer": file_ref(original)}
    total, free = 1 << 40, SPARE + refs["tokenizer"].size
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: (total, total - free, free))
    path = fetch(peer, refs, cache)["tokenizer"]
    free = 0
    assert fetch(unasked, refs, cache) == {"tokenizer": path}
    path.unlink()
    free = SPARE + refs["tokenizer"].size - 1
    with pytest.raises(InvalidArgument, match=r"need 1 MB, and the disk of .* has 269 MB, of which 268 stay free"):
        fetch(unasked, refs, cache)
    total = 20 * refs["tokenizer"].size  # a small one, as a container's folder in memory may be
    free = 2 * refs["tokenizer"].size
    assert fetch(peer, refs, cache).keys() == {"tokenizer"}


@pytest.mark.parametrize(
    "body", [None, {}, {"digest": 5}, {"digest": "d", "offset": -1}, {"digest": "d", "length": 0}, {"digest": "x"}]
)
def test_the_server_refuses_bad_questions(tmp_path: Path, body: Any) -> None:
    """A malformed question is the asker's mistake."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with pytest.raises(InvalidArgument):
        FileServer({"d": path}).answer(body)


def test_the_server_bounds_a_chunk_and_names_a_vanished_file(original: Path) -> None:
    """No question makes an answer larger than a message; a file that went away is the worker's fault."""
    server = FileServer({"d": original})
    assert len(server.answer({"digest": "d", "offset": 0, "length": 1 << 40})["data"]) == CHUNK
    original.unlink()
    with pytest.raises(EngineError, match=r"tokenizer\.json"):
        server.answer({"digest": "d"})


def test_chunks_follow_the_peer(original: Path, cache: FileCache) -> None:
    """A worker whose server takes small messages only sends small chunks."""
    peer = Peer(original)
    peer.server = FileServer({file_ref(original).digest: original}, chunk=100_000)
    assert fetch(peer, {"x": file_ref(original)}, cache)["x"].read_bytes() == original.read_bytes()
    assert len(peer.asked) == 11


def test_an_unusable_cache_folder_is_one_sentence(tmp_path: Path, original: Path) -> None:
    """Where the cache is no folder (or not writable), the sentence names it and the variable."""
    blocker = tmp_path / "blocked"
    blocker.write_text("a file where a folder should be")
    with pytest.raises(DynamoException, match=r"cache folder .*blocked.*DYN_CACHE_DIR"):
        fetch(Peer(original), {"x": file_ref(original)}, FileCache(blocker / "cache"))


def test_the_cache_folder_follows_the_environment() -> None:
    """`DYN_CACHE_DIR`, then the desktop convention, then the home folder."""
    assert default_root({"DYN_CACHE_DIR": "/x", "XDG_CACHE_HOME": "/y"}) == Path("/x")
    assert default_root({"XDG_CACHE_HOME": "/y"}) == Path("/y/dynamo")
    assert default_root({}) == Path.home() / ".cache" / "dynamo"
