"""Keep a copy of a prefix of the store up to date, through outages, compaction and replacement.

`registry` runs one `PrefixWatch` for the instances of each watched namespace and two for
the clients. Nothing is decided here but when to list and when to resume.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Final

from dynamo.runtime.discovery.store import Change, Compacted, Entry, Snapshot, Store
from dynamo.runtime.errors import CannotConnect, DynamoException
from dynamo.runtime.names import EPOCH_KEY

RETRY_FIRST: Final = 0.1
RETRY_MOST: Final = 1.0

log = logging.getLogger(__name__)


async def read_epoch(store: Store) -> tuple[str, int]:
    """Return the store's epoch and its present revision; whoever finds no epoch creates one."""
    revision, entries = await store.read(EPOCH_KEY)
    if entries:
        return epoch_of(entries[0]), revision
    mine = secrets.token_hex(8).encode()
    written, revision, theirs = await store.put_if(EPOCH_KEY, mine, None)
    return (mine if written or theirs is None else theirs).decode(errors="replace"), revision


def epoch_of(entry: Entry) -> str:
    """Return the epoch that its key holds."""
    return entry.value.decode(errors="replace")


class PrefixWatch:
    """Calls `listed` with whole lists and `changed` with what happened since, in order."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        listed: Callable[[str, Snapshot], None],
        changed: Callable[[list[Change]], None],
    ) -> None:
        self._store, self._prefix = store, prefix
        self._listed, self._changed = listed, changed
        self._epoch = ""
        self._position: int | None = None
        """The revision up to which the copy is complete; None: list first."""
        self._watching: asyncio.Timeout | None = None
        self._said = ""

    def relist(self) -> None:
        """Look again now: another store answers, or may."""
        self._position = None
        if self._watching is not None:
            self._watching.reschedule(0)

    async def run(self) -> None:
        """Follow until cancelled."""
        delay = RETRY_FIRST
        while True:
            try:
                await self._list()
                delay = RETRY_FIRST
                await self._watch()
            except Compacted:
                self._position = None
            except CannotConnect as error:
                log.debug("the store is away (%s); %s is followed again when it is back", error, self._prefix)
            except DynamoException as error:
                if error.message != self._said:
                    log.warning("Can't watch %s in etcd: %s; retrying.", self._prefix, error)
                self._said = error.message
            except Exception:  # a mistake of a listener must not end membership
                log.exception("%s is listed again after a mistake", self._prefix)
                self._position = None
            await asyncio.sleep(delay)
            delay = min(2 * delay, RETRY_MOST)

    async def _list(self) -> None:
        epoch, revision = await read_epoch(self._store)
        if self._position is not None and epoch == self._epoch and revision >= self._position:
            return
        snapshot = await self._store.read(self._prefix)
        self._epoch, self._position = epoch, snapshot.revision
        self._listed(epoch, snapshot)

    async def _watch(self) -> None:
        assert self._position is not None
        try:
            async with (
                asyncio.timeout(None) as self._watching,
                contextlib.aclosing(self._store.watch(self._prefix, self._position + 1)) as batches,  # type: ignore[type-var]
            ):
                async for changes in batches:
                    self._changed(changes)
                    if self._position is None:
                        return
                    self._position = changes[-1].revision
        except TimeoutError:
            return
        finally:
            self._watching = None
