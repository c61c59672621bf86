"""Panics of libraries written in Rust, which pass every `except Exception`: what they become here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dynamo.runtime.errors import InvalidArgument

_LONGEST: Final = 500
"""Characters of a library's own words in a sentence: a broken file may make them as long as itself."""


def is_panic(error: BaseException) -> bool:
    """Tell whether a library in Rust gave up; its class is made anew by each library, so it is known by its name."""
    return type(error).__name__ == "PanicException"


@contextmanager
def as_refusals(what: str) -> Iterator[None]:
    """Turn a panic, a lack of memory or an error within the interpreter into `InvalidArgument` that begins so."""
    try:
        yield
    except BaseException as error:
        if is_panic(error) or isinstance(error, (MemoryError, SystemError, RecursionError)):
            raise InvalidArgument(f"{what}: {describe(error)}") from error
        raise


def describe(error: BaseException) -> str:
    """Return what an error says of itself, cut to what a sentence holds."""
    try:
        text = str(error)
    except Exception:  # an error's own words may be what is broken
        text = ""
    return (text or type(error).__name__)[:_LONGEST]
