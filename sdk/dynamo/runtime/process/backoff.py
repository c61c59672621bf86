"""Wait times between tries that fail, for everything of ours that tries again: one rule, without clock or chance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Double a wait from `first` to `longest` seconds; `jitter` is the share by which `chance` moves it up or down."""

    first: float
    longest: float
    jitter: float = 0.0

    def delay(self, failures: int, chance: float = 0.5) -> float:
        """Return the wait after so many failures in a row; `chance` lies in [0, 1), and 0.5 moves nothing."""
        if failures < 1:
            return 0.0
        # Beyond 2**60 any `longest` is reached; a float would overflow at 2**1024.
        wait = min(self.first * 2.0 ** min(failures - 1, 60), self.longest)
        return wait * (1.0 + self.jitter * (2.0 * chance - 1.0))

    def after(self, last: float) -> float:
        """Return the wait that follows one of `last` seconds; 0 stands for none before it."""
        return min(last * 2.0, self.longest) if last else self.first
