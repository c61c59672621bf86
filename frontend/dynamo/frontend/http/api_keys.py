"""Static API keys: one a line in a file that is read again when it changes, as a mounted Secret does.

A line may name the tenant that a key belongs to: `KEY tenant=NAME`. All keys of a tenant are one caller.

Only digests are kept, under a key of the process's own, so that neither memory nor the time of a comparison says
anything of a key. A caller's name is the same in all processes, which find each other's stored responses by it; it is
derived slowly, since a part of it leaves the process. `guard.py` and gRPC's server ask.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from dynamo.runtime.errors import InvalidArgument

log = logging.getLogger(__name__)

MOST_KEYS: Final = 10_000
LONGEST_KEY: Final = 512
_LARGEST_FILE: Final = 1 << 20
_LOOK_SECONDS: Final = 1.0
_TRIED: Final = 4
"""Keys of one request that are looked at."""
_PREFIX: Final = 8
_KEY: Final = b"\0key-"
_TENANT: Final = b"\0tenant-"
"""What names of callers begin with: no header can, so that no client of a frontend without keys can take one."""
_MARK: Final = b"tenant="
OTHER: Final = "other"
"""What tenants beyond those that are told apart are called; no tenant can be."""
_VISIBLE: Final = re.compile(b"[\x21-\x7e]{1,%d}" % LONGEST_KEY)
_SALT: Final = b"dynamo-pipelines: name of an API key"
_ROUNDS: Final = 5000
"""Of PBKDF2: some 3 ms, once for each key that is used and has no tenant."""
_NAME: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
Fields = Iterable[tuple[bytes, bytes]]
_Version = tuple[int, int, int, int]
"""Device, inode, time and size of a file: another one when it was written or swapped."""


class Entry(NamedTuple):
    """One line of the file."""

    key: bytes
    tenant: bytes = b""


def entries_in(text: bytes) -> list[Entry]:
    """Read the keys of a file; `InvalidArgument` says what is wrong, and shows none of them. Pure."""
    lines = (line.strip() for line in text.splitlines())
    entries = [_entry(number, line) for number, line in enumerate((x for x in lines if x and x[:1] != b"#"), 1)]
    if not entries:
        raise InvalidArgument("the file has no key: write one a line")
    if len(entries) > MOST_KEYS:
        raise InvalidArgument(f"the file has {len(entries)} keys: {MOST_KEYS} are the most")
    tenants: dict[bytes, bytes] = {}
    for number, entry in enumerate(entries, 1):
        if tenants.setdefault(entry.key, entry.tenant) != entry.tenant:
            raise InvalidArgument(f"key {number} of the file is there twice, with different tenants")
    return entries


def _entry(number: int, line: bytes) -> Entry:
    key, *more = line.split()
    if not _VISIBLE.fullmatch(key) or key.startswith(_MARK):
        raise InvalidArgument(
            f"key {number} of the file isn't one: a key has up to {LONGEST_KEY} visible ASCII characters, no spaces, "
            "and comes before its tenant's name"
        )
    if not more:
        return Entry(key)
    name = more[0].removeprefix(_MARK)
    if len(more) > 1 or name == more[0] or not _NAME.fullmatch(name) or name == OTHER.encode():
        raise InvalidArgument(
            f"what follows key {number} of the file isn't tenant=NAME: a name has up to 63 letters, digits, dots, "
            f"dashes and underscores, begins with a letter or digit, and isn't {OTHER}"
        )
    return Entry(key, name)


def tenant_of(caller: bytes) -> str:
    """Return the tenant by whose name `ApiKeys.caller` called somebody; empty: that key has none. Pure."""
    return caller.removeprefix(_TENANT).decode() if caller.startswith(_TENANT) else ""


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
        self._callers: dict[bytes, bytes] = {}
        """Their names by digest: tenants', and those of keys that were used."""
        self._version: _Version | None = None
        self._failed: str | None = None
        self._next_look = clock() + _LOOK_SECONDS
        try:
            self._read()
        except (OSError, InvalidArgument) as error:
            raise InvalidArgument(f"--api-keys-file {path}: {_why(error)}") from None

    def caller(self, fields: Fields) -> bytes | None:
        """Return a name for the key that the caller shows, which isn't the key; None where none of them is known.

        It is the tenant's, where the key has one: keys that replace each other are the same caller.
        """
        self._look()
        for key in keys_of(fields):
            digest = self._digest(key)
            if hmac.compare_digest(self._digests.get(digest[:_PREFIX], bytes(len(digest))), digest):
                if (caller := self._callers.get(digest)) is None:
                    caller = self._callers[digest] = _name_of(key)
                return caller
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
        entries = [(self._digest(entry.key), entry.tenant) for entry in entries_in(text)]
        self._digests = {digest[:_PREFIX]: digest for digest, _ in entries}
        names = {digest: name for digest, name in self._callers.items() if not name.startswith(_TENANT)}
        self._callers = {
            digest: _TENANT + tenant if tenant else names[digest]
            for digest, tenant in entries
            if tenant or digest in names
        }
        if self._version is not None:
            log.info("%d API key(s) were read again from %s", len(self._digests), self._path)
        self._version = version


def _name_of(key: bytes) -> bytes:
    return _KEY + hashlib.pbkdf2_hmac("sha256", key, _SALT, _ROUNDS, 16).hex().encode()


def _version(about: os.stat_result) -> _Version:
    return about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size


def _why(error: OSError | InvalidArgument) -> str:
    if isinstance(error, InvalidArgument):
        return error.message
    return f"it can't be read ({error.strerror}); give the user of this process the right to"
