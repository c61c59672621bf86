"""Cancellation tokens, as programs of 2025 take them from a runtime: `token.cancel()`, `await token.cancelled()`.

The primary one stands for the process: cancelling it shuts the runtime down. A child of it ends with the runtime, or
by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class CancellationToken:
    """Tell whoever waits that work is to end; a runtime makes tokens."""

    def __init__(self, on_cancel: Callable[[], object] | None = None) -> None:
        self._on_cancel = on_cancel
        self._event = asyncio.Event()

    def cancel(self) -> None:
        """Begin the end; returns at once. A second time does nothing."""
        if not self._event.is_set():
            self._event.set()
            if self._on_cancel is not None:
                self._on_cancel()

    async def cancelled(self) -> None:
        """Return when it is cancelled."""
        await self._event.wait()

    def end(self) -> None:
        """End: the runtime shuts down."""
        self._event.set()
