"""How a process of ours is told to leave: SIGTERM and SIGINT, the first for order, the second for speed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class ShutdownSignal:
    """Signal why and how fast to leave: the first signal asks for order, the second for speed."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.now = asyncio.Event()
        self.number = int(signal.SIGTERM)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """React to SIGTERM or SIGINT."""
        if self.asked.is_set():
            self.now.set()
        self.number = int(number)
        self.asked.set()

    def listen(self) -> None:
        """React to the process's signals from now on, in the running loop."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.signal, number)

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """React to the process's signals while inside."""
        loop = asyncio.get_running_loop()
        self.listen()
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
