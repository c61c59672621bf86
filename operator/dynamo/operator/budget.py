"""How fast we may ask the API server: a token bucket on a clock given from outside. Pure; used by `kube.Api`."""

from __future__ import annotations

RATE = 200.0
BURST = 400


class Budget:
    """Requests take tokens in advance, so those who wait are served in order."""

    def __init__(self, rate: float = RATE, burst: int = BURST) -> None:
        self._rate, self._burst = rate, float(burst)
        self._tokens, self._at = float(burst), 0.0

    def take(self, now: float) -> float:
        """Seconds to wait before sending one request."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)
