"""The files of a card: kept by digest, served by workers, fetched by frontends.

A worker registers `FileServer.answer` as the control operation `file`; a frontend calls
`fetch_files` with that worker's control function. What arrives is checked against the
card's digest and written with one rename, so that a cache never holds half a file.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from dynamo.llm.model_card import FileRef
from dynamo.runtime.errors import DeadlineExceeded, DynamoException, EngineError, InvalidArgument

OPERATION: Final = "file"
"""The control operation's name: body `{"digest", "offset", "length"}`, answer `{"data": bytes, "size": int}`."""
CHUNK: Final = 512 * 1024
"""Well under the 1 MB that a NATS message may have."""
LARGEST: Final = 1 << 30
"""Bytes that the files of one card may have together; the largest tokenizers have some 40 MB."""
MOST: Final = 64
"""Files that a card may have; most have five."""
SPARE: Final = 256 << 20
"""Bytes that a disk keeps free whatever cards announce, of a small one a twentieth: there may be many cards."""

Control = Callable[[str, Any], Awaitable[Any]]
"""Asks one instance: `(operation, body) -> answer`."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def digest_of(chunks: Iterable[bytes]) -> str:
    """Return the name of a content."""
    state = hashlib.blake2b(digest_size=32)
    for chunk in chunks:
        state.update(chunk)
    return state.hexdigest()


def file_ref(path: Path) -> FileRef:
    """Name a file by its content."""
    try:
        with path.open("rb") as file:
            digest = digest_of(iter(lambda: file.read(1 << 20), b""))
        return FileRef(digest=digest, size=path.stat().st_size, name=path.name)
    except OSError as error:
        raise InvalidArgument(f"{str(path)!r} can't be read: {error.strerror}") from error


def default_root(environment: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder: `DYN_CACHE_DIR`, else `dynamo` in the user's cache."""
    environment = os.environ if environment is None else environment
    if own := environment.get("DYN_CACHE_DIR"):
        return Path(own).expanduser()
    if base := environment.get("XDG_CACHE_HOME"):
        return Path(base) / "dynamo"
    try:
        return Path.home() / ".cache" / "dynamo"
    except RuntimeError:  # a container's user without an entry of its own
        return Path(tempfile.gettempdir()) / f"dynamo-{os.getuid()}"


class FileCache:
    """Files by digest below one folder, safe for several processes at once."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()

    def find(self, ref: FileRef) -> Path | None:
        """Return the checked file; a corrupt one is removed, so that it is fetched again."""
        path = self._path(ref)
        try:
            if path.stat().st_size == ref.size and file_ref(path).digest == ref.digest:
                return path
        except FileNotFoundError:
            return None
        except OSError as error:
            self.refuse(error)
        path.unlink(missing_ok=True)
        return None

    def store(self, ref: FileRef, data: bytes) -> Path:
        """Keep `data`, which must be what `ref` names."""
        if len(data) != ref.size or digest_of([data]) != ref.digest:
            raise InvalidArgument(f"file {ref.name!r} is not what its digest says")
        path = self._path(ref)
        self.write(path, data)
        return path

    def keep(self, data: bytes, name: str) -> FileRef:
        """Keep `data` unless it is there already, and return how cards name it."""
        ref = FileRef(digest=digest_of([data]), size=len(data), name=name)
        if self.find(ref) is None:
            self.store(ref, data)
        return ref

    def made(self, key: str, name: str, make: Callable[[], bytes]) -> FileRef:
        """Return what `make` gives, which takes seconds, made once for `key`: a record of it is kept."""
        record = self.root / "made" / f"{key}.json"
        try:
            ref = msgspec.json.decode(record.read_bytes(), type=FileRef)
            if self.find(ref) is not None:
                return ref
        except FileNotFoundError:
            pass
        except msgspec.DecodeError:
            pass  # a damaged record is as good as none
        except OSError as error:
            self.refuse(error)
        ref = self.keep(make(), name)
        self.write(record, msgspec.json.encode(ref))
        return ref

    def write(self, path: Path, data: bytes) -> None:
        """Write a file below the root at once or not at all."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:32]}.")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(temporary, path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            self.refuse(error)

    def refuse(self, error: OSError) -> NoReturn:
        """Turn what the file system says into the sentence that helps."""
        raise InvalidArgument(
            f"the cache folder {str(self.root)!r} can't be used ({error.strerror}): "
            "set DYN_CACHE_DIR to a folder that this user may write"
        ) from error

    def make_sure_of_room(self, size: int) -> None:
        """Raise `InvalidArgument` where `size` bytes more would fill the disk."""
        folder = self.root
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        try:
            total, _, free = shutil.disk_usage(folder)
        except OSError as error:
            self.refuse(error)
        spare = min(SPARE, total // 20)
        if size and free - size < spare:
            raise InvalidArgument(
                f"the model's files need {_mb(size)} MB, and the disk of the cache folder {str(self.root)!r} has "
                f"{_mb(free)} MB, of which {_mb(spare)} stay free: make room there, or set DYN_CACHE_DIR to another"
            )

    def _path(self, ref: FileRef) -> Path:
        if not _DIGEST.fullmatch(ref.digest):  # it becomes a file name, and came over the network
            raise InvalidArgument(f"file {ref.name!r} has a malformed digest")
        return self.root / "files" / ref.digest[:2] / ref.digest


class FileServer:
    """Worker side: answers the control operation `file` for the files of its model."""

    def __init__(self, files: Mapping[str, Path], chunk: int = CHUNK) -> None:
        self._files = dict(files)
        self._chunk = chunk

    def answer(self, body: Any) -> dict[str, Any]:
        """Return one chunk."""
        if not isinstance(body, Mapping):
            raise InvalidArgument("the operation 'file' needs an object with digest, offset and length")
        digest, offset, length = body.get("digest"), body.get("offset", 0), body.get("length", self._chunk)
        path = self._files.get(digest) if isinstance(digest, str) else None
        if path is None:
            raise InvalidArgument(f"this instance has no file with digest {str(digest)[:64]!r}")
        if not (isinstance(offset, int) and isinstance(length, int) and offset >= 0 and length > 0):
            raise InvalidArgument("offset must be 0 or more and length 1 or more")
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return {"data": file.read(min(length, self._chunk)), "size": path.stat().st_size}
        except OSError as error:
            raise EngineError(f"file {path.name!r} can't be read on the worker: {error.strerror}") from error


async def fetch_files(
    control: Control,
    refs: Mapping[str, FileRef],
    *,
    cache: FileCache | None = None,
    timeout: float = 60.0,
    concurrency: int = 4,
) -> dict[str, Path]:
    """Return the path of each role's file, from the cache or from the instance behind `control`.

    A peer that lacks a file or sends another content is an `EngineError` that names the file: try another peer. So is a
    card with too many files or too much in them; a disk without room for them is an `InvalidArgument`.
    """
    cache = cache or FileCache()
    _check(refs)
    limit = asyncio.Semaphore(concurrency)

    async def fetched(ref: FileRef) -> Path:
        async with limit:
            return await asyncio.to_thread(cache.store, ref, await _fetch(control, ref))

    try:
        async with asyncio.timeout(timeout):
            paths = await asyncio.to_thread(_present, cache, {*refs.values()})
            async with asyncio.TaskGroup() as group:
                tasks = {ref: group.create_task(fetched(ref)) for ref in {*refs.values()} - {*paths}}
    except TimeoutError as error:
        names = ", ".join(sorted(ref.name for ref in refs.values()))
        raise DeadlineExceeded(f"the model's files ({names}) did not arrive within {timeout:g} s") from error
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    paths |= {ref: task.result() for ref, task in tasks.items()}
    return {role: paths[ref] for role, ref in refs.items()}


def _check(refs: Mapping[str, FileRef]) -> None:
    """Refuse what no model's card announces, before anything is asked for."""
    if len(refs) > MOST:
        raise EngineError(f"the card announces {len(refs)} files; {MOST} are taken at most")
    for ref in refs.values():
        if not 0 <= ref.size <= LARGEST:
            raise EngineError(f"the card announces {ref.size} bytes for file {ref.name!r}; {LARGEST} are taken at most")
    if (size := sum(ref.size for ref in {*refs.values()})) > LARGEST:
        raise EngineError(f"the card's files have {_mb(size)} MB together; {_mb(LARGEST)} are taken at most")


def _present(cache: FileCache, refs: Iterable[FileRef]) -> dict[FileRef, Path]:
    """Return what need not be fetched; there is room for the rest when this returns."""
    paths = {ref: cache.find(ref) for ref in refs}
    cache.make_sure_of_room(sum(ref.size for ref, path in paths.items() if path is None))
    return {ref: path for ref, path in paths.items() if path is not None}


def _mb(size: int) -> int:
    return size // 1_000_000


async def _fetch(control: Control, ref: FileRef) -> bytes:
    data = bytearray()
    while len(data) < ref.size:
        chunk = await _chunk(control, ref, len(data))
        if not chunk or len(data) + len(chunk) > ref.size:
            raise EngineError(f"the worker sent another size of file {ref.name!r} than its card says")
        data += chunk
    content = bytes(data)
    if await asyncio.to_thread(digest_of, [content]) != ref.digest:
        raise EngineError(f"the worker sent another content of file {ref.name!r} than its card says")
    return content


async def _chunk(control: Control, ref: FileRef, offset: int) -> bytes:
    try:
        answer = await control(OPERATION, {"digest": ref.digest, "offset": offset, "length": CHUNK})
    except DynamoException as error:
        raise type(error)(f"file {ref.name!r} of the model could not be fetched: {error}") from error
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise EngineError(f"the worker's answer for file {ref.name!r} has no data")
    return bytes(data)
