"""A bundle as a file: written in one pass, and read with every byte accounted for.

It is a tar archive that `tar` unpacks, an OCI image layout, and a folder for `sha256sum --check SHA256SUMS`.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, Final

from dynamo.cli.bundle.errors import BundleError
from dynamo.cli.bundle.layout import Blob
from dynamo.cli.bundle.tar_format import END, LONGEST_NAME, header, padding, read_header

SUMS: Final = "SHA256SUMS"
SIGNATURE: Final = f"{SUMS}.sigstore.json"
CHUNK: Final = 1 << 20
MOST_TEXT: Final = 4 << 20
"""Bytes of a file that is read whole."""
_MOST_FILES: Final = 10_000
_BLOBS: Final = "blobs/sha256/"
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.+!-]*(/[A-Za-z0-9][\w.+!-]*)*", re.ASCII)
_SUM: Final = re.compile(r"([0-9a-f]{64})  (\S+)")


class _WriteError(Exception):
    """The bundle itself can't be written, which isn't what its sources are blamed for."""


class BundleWriter:
    """Writes files one after the other; the same blob once. Each file's checksum is remembered."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sums: dict[str, str] = {}
        self._blobs: set[str] = set()

    def add(self, name: str, content: bytes) -> None:
        """Write a small file."""
        self.stream(name, len(content), [content])

    def stream(self, name: str, size: int, chunks: Iterable[bytes]) -> None:
        """Write a file of `size` bytes. BundleError where it turns out to have another size."""
        _check_name(name)
        if name in self._sums:
            raise BundleError(f"{name} is in the bundle already: give it once")
        self._write(header(name, size))
        self._sums[name] = self._copy(name, size, chunks)

    def blob(self, size: int, chunks: Iterable[bytes], media_type: str) -> Blob:
        """Write a blob, called by its digest, which is known once it is written."""
        begin = self._file.tell()
        blank = Blob(f"sha256:{'0' * 64}", size, media_type)
        self._write(header(blank.file, size))
        digest = self._copy("a layer", size, chunks)
        blob = blank._replace(digest=f"sha256:{digest}")
        if blob.digest in self._blobs:
            self._file.seek(begin)
            self._file.truncate()
            return blob
        self._blobs.add(blob.digest)
        self._sums[blob.file] = digest
        self._file.seek(begin)
        self._write(header(blob.file, size))
        self._file.seek(0, os.SEEK_END)
        return blob

    def sums(self) -> bytes:
        """Return SHA256SUMS of what was written so far."""
        return "".join(f"{digest}  {name}\n" for name, digest in sorted(self._sums.items())).encode()

    def end(self, signature: bytes | None) -> None:
        """Write the checksums, and their signature where there is one."""
        self.add(SUMS, self.sums())
        if signature is not None:
            self.add(SIGNATURE, signature)
        self._write(END)

    def _write(self, content: bytes) -> None:
        try:
            self._file.write(content)
        except OSError as error:
            raise _WriteError(error.strerror or str(error)) from None

    def _copy(self, name: str, size: int, chunks: Iterable[bytes]) -> str:
        hashed, written = hashlib.sha256(), 0
        for chunk in chunks:
            hashed.update(chunk)
            written += len(chunk)
            if written > size:
                break
            self._write(chunk)
        if written != size:
            raise BundleError(f"{name} changed while it was read: its size was {size} bytes. Try again")
        self._write(bytes(padding(size)))
        return hashed.hexdigest()


@contextmanager
def writing(path: Path) -> Iterator[BundleWriter]:
    """Write a bundle beside its place, and put it there once it is whole. BundleError where that can't be done."""
    part: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            part = Path(file.name)
            yield BundleWriter(file)  # type: ignore[arg-type]  # the wrapper of tempfile is a BinaryIO in all but name
            _finish(file.file)
        part.replace(path)
    except (OSError, _WriteError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise BundleError(f"{path} can't be written: {text}. Make room, or name another place") from None
    finally:
        if part is not None:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _finish(file: IO[bytes]) -> None:
    """Have it on the disk, readable by whom the user's umask lets read."""
    file.flush()
    os.fsync(file.fileno())
    mask = os.umask(0)
    os.umask(mask)
    os.fchmod(file.fileno(), 0o666 & ~mask)


class Bundle:
    """A bundle that lies here. BundleError where it isn't one, down to the zeros between its files.

    What is read is compared with the checksums, which are read once: a change after `verify` is seen as well.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, tuple[int, int]] = {}
        self._sums: dict[str, str] | None = None
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from None
        try:
            self._scan(os.fstat(self._file.fileno()).st_size)
        except OSError as error:
            self._file.close()
            raise self._unreadable(error) from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def names(self) -> list[str]:
        """Return all files, in their order."""
        return list(self._files)

    def size(self, name: str) -> int:
        """Return a file's bytes. BundleError where it isn't there."""
        return self._place(name)[1]

    def read(self, name: str) -> bytes:
        """Return a small file whole. BundleError where it isn't there, or is large."""
        if self.size(name) > MOST_TEXT:
            raise BundleError(f"{name} in {self.path} has {self.size(name)} bytes, which can't be: make it again")
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield a file's content. BundleError where it isn't there, or, after the last byte, isn't what was summed."""
        hashed = hashlib.sha256()
        for chunk in self._raw(name):
            hashed.update(chunk)
            yield chunk
        if name not in (SUMS, SIGNATURE) and hashed.hexdigest() != self.sums.get(name):
            raise BundleError(f"{name} in {self.path} isn't what {SUMS} says: copy the bundle again")

    @property
    def sums(self) -> Mapping[str, str]:
        """Return the checksums, as they were when they were first asked for."""
        if self._sums is None:
            self._sums = self._read_sums(b"".join(self._raw(SUMS)) if self.size(SUMS) <= MOST_TEXT else b"")
        return self._sums

    def trust(self, sums: bytes) -> None:
        """Take these as the checksums, since their signature was checked."""
        self._sums = self._read_sums(sums)

    def verify(self) -> int:
        """Compare every file with its checksum; return the bytes read. BundleError names the first that differs."""
        total = 0
        for name in self._files:
            if name in (SUMS, SIGNATURE):
                continue
            if name not in self.sums:
                raise BundleError(f"{name} in {self.path} is not in {SUMS}: somebody put it there afterwards")
            if name.startswith(_BLOBS) and name.removeprefix(_BLOBS) != self.sums[name]:
                raise BundleError(f"{name} in {self.path} isn't what its name says: make the bundle again")
            total += sum(map(len, self.chunks(name)))
        if missing := self.sums.keys() - self._files.keys():
            raise BundleError(f"{self.path} lacks {min(missing)}, which {SUMS} has: copy the bundle again")
        return total

    def _raw(self, name: str) -> Iterator[bytes]:
        offset, left = self._place(name)
        while left:
            try:
                self._file.seek(offset)
                chunk = self._file.read(min(CHUNK, left))
            except OSError as error:
                raise self._unreadable(error) from None
            if not chunk:
                raise BundleError(f"{self.path} became shorter while it was read: {name} is cut")
            yield chunk
            offset, left = offset + len(chunk), left - len(chunk)

    def _read_sums(self, content: bytes) -> dict[str, str]:
        result: dict[str, str] = {}
        for line in content.decode("ascii", "replace").splitlines(keepends=True):
            match = _SUM.fullmatch(line.removesuffix("\n")) if line.endswith("\n") else None
            if match is None or match[2] in result:
                raise BundleError(f"{SUMS} in {self.path} is damaged at {line[:80]!r}: copy the bundle again")
            result[match[2]] = match[1]
        return result

    def _unreadable(self, error: OSError) -> BundleError:
        return BundleError(f"{self.path} can't be read: {error.strerror or error}")

    def _place(self, name: str) -> tuple[int, int]:
        if name not in self._files:
            raise BundleError(f"{self.path} has no {name}: it isn't a bundle of `dynamo bundle make`, or is cut")
        return self._files[name]

    def _scan(self, length: int) -> None:
        """Find all files; nothing but they and zeros may be there."""
        last = "its beginning"
        while (left := length - self._file.tell()) > len(END):
            offset = self._file.tell()
            parsed = read_header(self._file.read)
            begin = self._file.tell()
            if parsed is None or parsed[1] > length - begin:
                raise self._damaged(f"at byte {offset}, after {last}")
            last, size = parsed
            _check_name(last)
            if last in self._files or len(self._files) >= _MOST_FILES:
                raise self._damaged(f"at {last}, which is there twice or one of more than {_MOST_FILES} files")
            self._files[last] = (begin, size)
            self._file.seek(begin + size)
            if any(self._file.read(padding(size))):
                raise self._damaged(f"between {last} and the next file")
        if left != len(END) or any(self._file.read(left)):
            raise self._damaged(f"at its end, after {last}")

    def _damaged(self, where: str) -> BundleError:
        return BundleError(
            f"{self.path} is no bundle, or damaged {where}: copy it again, or make it with `dynamo bundle make`"
        )


def _check_name(name: str) -> None:
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise BundleError(
            f"{name[:100]!r} can't be the name of a file in a bundle: letters, digits and . _ + - only, in folders, "
            f"{LONGEST_NAME} in all"
        )
