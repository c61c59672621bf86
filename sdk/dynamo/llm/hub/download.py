"""One file of the hub into its cache: resumed where it broke off, checked, loaded once by all processes together.

The hub's own library begins a file again after a kill (measured in docs/design/serving/models.md), so this step is
ours. It fills the same cache (`blobs/NAME`, written as `NAME.incomplete`) under the same lock as that library, so that
other tools wait for us and find the files. The lock goes with its process. Where a file system has none, two processes
write the same bytes to the same places, which costs a second load and harms nothing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol

from dynamo.llm.hub.progress import Progress
from dynamo.runtime.errors import Cancelled, CannotConnect, InvalidArgument
from dynamo.runtime.process.backoff import Backoff

TRIES: Final = 6
"""Failures in a row, without one byte between them, after which a file is given up."""
LONGEST_WAIT: Final = 60.0
"""Seconds before another try, whatever the hub asks for."""
PART: Final = 16 << 30
"""One request asks for so much at most: content networks don't send 50 GB at once."""
_LOCK_POLL: Final = 0.5
_READ: Final = 1 << 20


class Interrupted(Exception):  # noqa: N818 - a fact about the line; nobody's error yet
    """The line broke or the hub was busy: trying again may help."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Answer(Protocol):
    """Answer to one request."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it comes; `Interrupted` where it breaks off."""


class HubConnection(Protocol):
    """The way to the hub."""

    def open(self, url: str, start: int, end: int) -> contextlib.AbstractContextManager[Answer]:
        """Ask for the bytes from `start` to before `end`; `Interrupted` where another try may help.

        What no further try can change is any other error.
        """


@dataclass(frozen=True)
class RemoteFile:
    """A file of the hub, as its tree names it."""

    name: str
    url: str
    size: int
    sha256: str | None
    """Of files in LFS."""
    git_id: str
    """Of the others: sha1 of their length and content."""

    @property
    def blob(self) -> str:
        """Return the file's name in the cache."""
        return self.sha256 or self.git_id

    def digest(self) -> Any:
        """Start the sum that names its content."""
        if self.sha256:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


@dataclass(frozen=True)
class Place:
    """Place of a file."""

    blob: Path
    lock: Path

    @property
    def partial(self) -> Path:
        """Return what is there of it so far."""
        return self.blob.with_name(f"{self.blob.name}.incomplete")

    def have(self) -> int:
        """Return how many bytes are there."""
        for path in (self.blob, self.partial):
            with contextlib.suppress(FileNotFoundError):
                return path.stat().st_size
        return 0


class Patience:
    """Patience: how long to wait before the next try, and when to give up. Pure."""

    def __init__(self, tries: int = TRIES, first: float = 0.5) -> None:
        self._tries, self._backoff = tries, Backoff(first, LONGEST_WAIT)
        self._failed = 0

    def progressed(self) -> None:
        """Note that bytes came: what failed before doesn't count any more."""
        self._failed = 0

    def wait(self, asked: float | None) -> float | None:
        """Return seconds until the next try: the hub's wish within bounds, else twice the last; None: give up."""
        self._failed += 1
        if self._failed >= self._tries:
            return None
        return min(LONGEST_WAIT, max(asked or 0.0, self._backoff.delay(self._failed)))


@dataclass
class DownloadJob:
    """Download job: what its files share."""

    connection: HubConnection
    progress: Progress
    stop: threading.Event
    """Set by whoever wants it to end."""
    patience: Callable[[], Patience] = Patience

    def check(self) -> None:
        """Raise `Cancelled` where it was stopped."""
        if self.stop.is_set():
            raise Cancelled("the download was stopped; what has come stays, and the next one goes on there")

    def pause(self, seconds: float) -> None:
        """Wait, unless it is stopped."""
        self.stop.wait(seconds)
        self.check()


def load(file: RemoteFile, place: Place, job: DownloadJob) -> None:
    """Bring one file into the cache unless it is there; blocks, perhaps for an hour.

    `CannotConnect` where the hub doesn't answer, `InvalidArgument` where it sends something else than it announced,
    `Cancelled` where it was stopped; `OSError` of the file system (a full disk, say). All but the wrong content keep
    what came.
    """
    with _held(file, place, job):
        if place.blob.exists():
            job.progress.at(file.name, file.size)
            return
        if not _filled(file, place, job):
            # Half a file of another time, or a disk that lost power: once more from the beginning.
            place.partial.unlink(missing_ok=True)
            if not _filled(file, place, job):
                place.partial.unlink(missing_ok=True)
                raise InvalidArgument(
                    f"the hub sent another content of {file.name} than it announces (checksum): try again later, "
                    "and look at what stands between (HF_ENDPOINT, proxies)"
                )
        with contextlib.suppress(FileNotFoundError):  # where locks don't hold, another process may have been first
            os.replace(place.partial, place.blob)


@contextlib.contextmanager
def _held(file: RemoteFile, place: Place, job: DownloadJob) -> Iterator[None]:
    """Hold the file's lock; meanwhile tell how far its holder is."""
    from filelock import FileLock, Timeout

    place.lock.parent.mkdir(parents=True, exist_ok=True)
    place.blob.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(place.lock, mode=0o664, thread_local=False)
    while True:
        try:
            lock.acquire(timeout=_LOCK_POLL)
            break
        except Timeout:
            job.progress.at(file.name, place.have(), elsewhere=True)
            job.check()
        except (NotImplementedError, OSError) as error:
            if not isinstance(error, NotImplementedError) and error.errno not in (errno.ENOSYS, errno.ENOLCK):
                raise
            break  # no locks on this file system
    try:
        yield
    finally:
        lock.release()


def _filled(file: RemoteFile, place: Place, job: DownloadJob) -> bool:
    """Complete the partial file; whether its content is what the hub announced."""
    handle = os.open(place.partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        summed = file.digest()
        at = _sum_up(handle, summed, file.size, job)
        job.progress.at(file.name, at)
        patience = job.patience()
        while at < file.size:
            try:
                for piece in _pieces(file, job.connection, at):
                    if piece:
                        _write(handle, piece, at)
                        summed.update(piece)
                        at += len(piece)
                        job.progress.add(file.name, len(piece))
                        patience.progressed()
                    job.check()
            except Interrupted as error:
                _wait(file, error, patience, job)
        os.fsync(handle)
    finally:
        os.close(handle)
    return str(summed.hexdigest()) == file.blob


def _pieces(file: RemoteFile, connection: HubConnection, at: int) -> Iterator[bytes]:
    """Yield what follows `at`, as it comes; `Interrupted` where nothing does.

    Empty pieces stand for what was sent before `at`, by servers that know no ranges: who takes them may have to end.
    """
    end = min(file.size, at + PART)
    with connection.open(file.url, at, end) as answer:
        here = _begin(file, answer, at)
        for chunk in answer.chunks():
            yield chunk[max(0, at - here) : end - here]
            here += len(chunk)
            if here >= end:  # a body may go on without end, whatever was announced
                break
    if here <= at:
        raise Interrupted("the answer ended too early")


def _sum_up(handle: int, summed: Any, size: int, job: DownloadJob) -> int:
    """Sum up what is there and return its length; what is beyond the file's size is cut off."""
    if os.fstat(handle).st_size > size:
        os.ftruncate(handle, 0)
    at = 0
    while chunk := os.pread(handle, _READ, at):
        summed.update(chunk)
        at += len(chunk)
        job.check()
    return at


def _write(handle: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, at)
        view, at = view[written:], at + written


def _begin(file: RemoteFile, answer: Answer, at: int) -> int:
    """Return where the answer begins; refuse one that is another file's or leaves something out."""
    begins, total = content_range(answer.status, answer.headers)
    if total is not None and total != file.size:
        raise InvalidArgument(
            f"the hub sends {total} bytes for {file.name} but announced {file.size}: try again later, "
            "and look at what stands between (HF_ENDPOINT, proxies)"
        )
    if begins > at:
        raise Interrupted("the answer begins later than asked")
    return begins


def content_range(status: int, headers: Mapping[str, str]) -> tuple[int, int | None]:
    """Return where an answer begins in its file and how long that is, None where it isn't said."""
    if status == HTTPStatus.PARTIAL_CONTENT:
        piece, _, total = headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        return _number(piece.partition("-")[0]) or 0, _number(total)
    return 0, _number(headers.get("Content-Length", ""))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _wait(file: RemoteFile, error: Interrupted, patience: Patience, job: DownloadJob) -> None:
    seconds = patience.wait(error.retry_after)
    if seconds is None:
        raise CannotConnect(
            f"{file.name} can't be loaded: {error}; try again later: "
            "what has come stays, and the next try goes on there"
        ) from error
    job.pause(seconds)
