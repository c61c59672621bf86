"""Members of a tar archive in one form only, so that a flipped byte between files is seen as well. Pure.

GNU's form, since files may be larger than the 8 GiB of the older one. Source: the tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from typing import Final

BLOCK: Final = 512
END: Final = b"\0" * (2 * BLOCK)
LONGEST_NAME: Final = 255
_ENCODING: Final = "utf-8"
_ERRORS: Final = "surrogateescape"


def header(name: str, size: int, *, folder: bool = False) -> bytes:
    """Return what stands before a member: names no user and no time."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o755 if folder else 0o644
    if folder:
        member.type = tarfile.DIRTYPE
    return member.tobuf(tarfile.GNU_FORMAT, _ENCODING, _ERRORS)


def padding(size: int) -> int:
    """Return how many zeros follow a file of so many bytes."""
    return -size % BLOCK


def read_header(read: Callable[[int], bytes]) -> tuple[str, int] | None:
    """Read the header of a file; return its name and size, or None where it isn't exactly as `header` makes it.

    A name of more than 100 bytes has two blocks before the header.
    """
    blocks = read(BLOCK)
    try:
        member = tarfile.TarInfo.frombuf(blocks, _ENCODING, _ERRORS)
        if member.type == tarfile.GNUTYPE_LONGNAME and member.size <= LONGEST_NAME + 1:
            blocks += read(BLOCK)
            name = blocks[BLOCK : BLOCK + member.size - 1].decode(_ENCODING, _ERRORS)
            blocks += (last := read(BLOCK))
            member = tarfile.TarInfo.frombuf(last, _ENCODING, _ERRORS)
            member.name = name
    except tarfile.HeaderError:
        return None
    if member.size < 0 or blocks != header(member.name, member.size):
        return None
    return member.name, member.size
