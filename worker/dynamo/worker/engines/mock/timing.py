"""How long a simulated engine step takes: the polynomial timing model of the original's mocker."""

from __future__ import annotations

from typing import NamedTuple


class Timing(NamedTuple):
    """Divisors of the simulated time; 0 turns simulated time off."""

    speedup_ratio: float = 1.0
    decode_speedup_ratio: float = 1.0

    def step_seconds(self, prefill_tokens: int, kv_usage: float, decoding: bool) -> float:
        """Seconds of one step: `prefill_tokens` computed anew, then one token of each running sequence.

        `kv_usage` is the share of KV blocks in use, 0 to 1.
        """
        if self.speedup_ratio == 0:
            return 0.0
        ms = prefill_ms(prefill_tokens)
        if decoding and self.decode_speedup_ratio:
            ms += decode_ms(kv_usage) / self.decode_speedup_ratio
        return ms / self.speedup_ratio / 1000


def prefill_ms(tokens: int) -> float:
    """Milliseconds to compute the KV of `tokens` tokens (0: nothing to do)."""
    return 0.0 if tokens == 0 else 4.209989e-7 * tokens * tokens + 1.518344e-2 * tokens + 16.50142


def decode_ms(kv_usage: float) -> float:
    """Milliseconds of one decode step with this share of the KV cache in use."""
    p = min(1.0, kv_usage)
    return max(1.0, -25.74 * p * p + 54.01 * p + 5.74)
