"""How many bytes of request bodies are under way at once, in sum and of one caller. `routes/model_request.py` takes
and gives back.

A body counts from its announcement until it has become tokens. What doesn't fit waits for a moment, unread, so that its
client's network holds it back, and is refused then: memory is bounded by this, whatever clients send side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from dynamo.frontend.errors import ApiError, overloaded

BODIES_FULL: Final = "bodies"
FREE: Final = 64 << 10
"""Bytes of a body that need no place: there are no more such bodies than requests."""
WAIT_SECONDS: Final = 5.0
MOST_WAITING: Final = 256
_OF_ONE_CALLER: Final = 0.75
"""Of the whole: one caller never takes all of it."""


class Share(msgspec.Struct):
    """Share of the budget that one body takes."""

    caller: bytes
    bytes: int


class BodyBudget:
    """Gives each body its share in the order of coming; a caller that has its part is passed by."""

    def __init__(
        self, most: int, refused: Callable[[str], None] = lambda reason: None, what: str = "of request bodies"
    ) -> None:
        self._most, self._refused, self._what = most, refused, what
        self._per_caller = int(most * _OF_ONE_CALLER)
        self.taken = 0
        self._of_caller: dict[bytes, int] = {}
        self._waiting: dict[asyncio.Future[None], Share] = {}

    async def take(self, caller: bytes, size: int, seconds: float = WAIT_SECONDS) -> Share:
        """Take `size` bytes, after a wait of at most `seconds`; raises the 503 where they stay taken."""
        share = Share(caller, size)
        if not self._waiting and self._fits(share):
            self._count(share)
            return share
        if len(self._waiting) >= MOST_WAITING:
            raise self._full()
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = share
        self._admit()
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if self._waiting.pop(turn, None) is None and turn.done() and not turn.cancelled():
                self.give_back(share)  # it came in the moment in which nobody waited any more
            if isinstance(error, TimeoutError):
                raise self._full() from None
            raise
        return share

    def take_now(self, caller: bytes, size: int) -> Share | None:
        """Take `size` bytes where they are free, without waiting."""
        share = Share(caller, size)
        if self._waiting or not self._fits(share):
            return None
        self._count(share)
        return share

    def shrink(self, share: Share, size: int) -> None:
        """Give back what a body turned out not to need."""
        self._uncount(share, max(0, share.bytes - size))
        self._admit()

    def give_back(self, share: Share) -> None:
        """Give back a body that is gone; giving back twice changes nothing."""
        self.shrink(share, 0)

    def _fits(self, share: Share) -> bool:
        own = self._of_caller.get(share.caller, 0)
        alone = own == 0 and share.bytes <= self._most  # a body above a caller's part, where a flag says so
        return self.taken + share.bytes <= self._most and (alone or own + share.bytes <= self._per_caller)

    def _count(self, share: Share) -> None:
        self.taken += share.bytes
        self._of_caller[share.caller] = self._of_caller.get(share.caller, 0) + share.bytes

    def _uncount(self, share: Share, size: int) -> None:
        share.bytes -= size
        self.taken -= size
        left = self._of_caller.get(share.caller, 0) - size
        if left > 0:
            self._of_caller[share.caller] = left
        else:
            self._of_caller.pop(share.caller, None)

    def _admit(self) -> None:
        for turn, share in [*self._waiting.items()]:
            if not turn.done() and self._fits(share):
                del self._waiting[turn]
                self._count(share)
                turn.set_result(None)

    def _full(self) -> ApiError:
        self._refused(BODIES_FULL)
        mb = self._most / 1024 / 1024
        return overloaded(f"this frontend reads {mb:g} MB {self._what} already; try again in a moment.",
                          BODIES_FULL)  # fmt: skip
