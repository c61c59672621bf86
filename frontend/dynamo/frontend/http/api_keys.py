"""Static API keys: one a line in a file that is read again when it changes, as a mounted Secret does.

Only digests are kept, under a key of the process's own, so that neither memory nor the time of a comparison says
anything of a key. `guard.py` and gRPC's server ask.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from dynamo.runtime.errors import InvalidArgument

log = logging.getLogger(__name__)

MOST_KEYS: Final = 10_000
LONGEST_KEY: Final = 512
_LARGEST_FILE: Final = 1 << 20
_LOOK_SECONDS: Final = 1.0
_TRIED: Final = 4
"""Keys of one request that are looked at."""
_PREFIX: Final = 8
Fields = Iterable[tuple[bytes, bytes]]
_Version = tuple[int, int, int, int]
"""Device, inode, time and size of a file: another one when it was written or swapped."""


def keys_in(text: bytes) -> list[bytes]:
    """Read the keys of a file; `InvalidArgument` says what is wrong, and shows none of them. Pure."""
    lines = (line.strip() for line in text.splitlines())
    keys = [line for line in lines if line and not line.startswith(b"#")]
    for number, key in enumerate(keys, 1):
        if len(key) > LONGEST_KEY or not all(0x21 <= byte <= 0x7E for byte in key):
            raise InvalidArgument(
                f"key {number} of the file isn't one: a key has up to {LONGEST_KEY} visible ASCII characters, no spaces"
            )
    if not keys:
        raise InvalidArgument("the file has no key: write one a line")
    if len(keys) > MOST_KEYS:
        raise InvalidArgument(f"the file has {len(keys)} keys: {MOST_KEYS} are the most")
    return keys


def keys_of(fields: Fields) -> list[bytes]:
    """Return the keys that a request shows, by `Authorization: Bearer KEY` or `x-api-key: KEY`. Pure."""
    keys: list[bytes] = []
    for name, value in fields:
        if name == b"x-api-key":
            keys.append(value.strip())
        elif name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(key.strip())
    return [key for key in keys if key][:_TRIED]


class ApiKeys:
    """The keys of a file; `InvalidArgument` where it can't be used from the beginning."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = Path(path), clock
        self._secret = secrets.token_bytes(32)
        self._digests: dict[bytes, bytes] = {}
        self._version: _Version | None = None
        self._failed: str | None = None
        self._next_look = clock() + _LOOK_SECONDS
        try:
            self._read()
        except (OSError, InvalidArgument) as error:
            raise InvalidArgument(f"--api-keys-file {path}: {_why(error)}") from None

    def caller(self, fields: Fields) -> bytes | None:
        """Return a name for the key that the caller shows, which isn't the key; None where none of them is known."""
        self._look()
        for key in keys_of(fields):
            digest = self._digest(key)
            known = self._digests.get(digest[:_PREFIX], bytes(len(digest)))
            if hmac.compare_digest(known, digest):
                return b"key-" + digest[:_PREFIX].hex().encode()
        return None

    @staticmethod
    def shown(fields: Fields) -> bool:
        """Tell whether a request shows any key."""
        return bool(keys_of(fields))

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()

    def _look(self) -> None:
        """Read the file again where it is another one, at most once a second; what can't be used changes nothing."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        try:
            self._read()
            self._failed = None
        except (OSError, InvalidArgument) as error:
            why = _why(error)
            if why != self._failed:
                log.error("the keys stay as they were, since %s can't be used: %s", self._path, why)
            self._failed = why

    def _read(self) -> None:
        there = os.stat(self._path)
        if _version(there) == self._version:
            return
        if not stat.S_ISREG(there.st_mode):  # to open a pipe may take for ever
            raise InvalidArgument("it is no file")
        number = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:
            about = os.fstat(file.fileno())
            if about.st_size > _LARGEST_FILE:
                raise InvalidArgument(f"it is larger than {_LARGEST_FILE} bytes")
            text = file.read(_LARGEST_FILE + 1)
            version = _version(about)
            if _version(os.fstat(file.fileno())) != version:
                raise InvalidArgument("it is being written just now")
        digests = {(digest := self._digest(key))[:_PREFIX]: digest for key in keys_in(text)}
        self._digests = digests
        if self._version is not None:
            log.info("%d API key(s) were read again from %s", len(digests), self._path)
        self._version = version


def _version(about: os.stat_result) -> _Version:
    return about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size


def _why(error: OSError | InvalidArgument) -> str:
    if isinstance(error, InvalidArgument):
        return error.message
    return f"it can't be read ({error.strerror}); give the user of this process the right to"
