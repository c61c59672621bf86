"""Which worker a session's requests go to: bindings with a time to live, at most so many. Pure; time is an argument.

A binding helps and binds nobody: whoever routes asks for it, and says where a request went at last.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec

from dynamo.runtime.process.settings import out_of_range, setting

Key = tuple[str, str]
"""Model and session."""
MODES: Final = ("hard", "soft")
_YEAR: Final = 31_536_000
_SWEPT: Final = 2
"""Old bindings that are looked at per request: more than come new, so that they never pile up."""


@dataclass(frozen=True)
class SessionSettings:
    """Settings of sessions: whether and how they stay with their worker."""

    ttl: int | None = setting(
        None, "Keep requests with one session id on one worker; seconds after which an idle session is forgotten.",
        env="DYN_ROUTER_SESSION_AFFINITY_TTL_SECS", name="router_session_affinity_ttl_secs",
    )  # fmt: skip
    mode: str = setting(
        "hard", "When a session's worker is busy: hard returns to it later, soft moves the session.",
        env="DYN_ROUTER_SESSION_AFFINITY_MODE", choices=MODES, name="router_session_affinity_mode",
    )  # fmt: skip
    limit: int = setting(
        100_000, "Most sessions to remember; the oldest are dropped.", env="DYN_ROUTER_SESSION_AFFINITY_LIMIT",
        name="router_session_affinity_limit",
    )  # fmt: skip

    def problem(self) -> str | None:
        """Return why these settings can't be meant, in one sentence; None where they can."""
        if self.ttl is not None and not 1 <= self.ttl <= _YEAR:
            return f"--router-session-affinity-ttl-secs must be between 1 and {_YEAR}"
        return out_of_range(self, "limit", least=1)


class _Binding(msgspec.Struct, gc=False):
    instance: int
    running: int = 0
    idle_since: float = 0.0


class Sessions:
    """Binds sessions to workers: while a request of one runs, and for `ttl` seconds after the last one.

    In mode `soft` a request that went elsewhere takes its session with it; in mode `hard` the session goes back as soon
    as its worker can take it again.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._ttl, self._limit, self._moves = settings.ttl or 0, settings.limit, settings.mode == "soft"
        self._bindings: OrderedDict[Key, _Binding] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bindings)

    def find(self, key: Key, now: float) -> int | None:
        """Return the instance that its requests go to; None: any."""
        binding = self._bindings.get(key)
        return None if binding is None or self._over(binding, now) else binding.instance

    def sent(self, key: Key, instance: int, now: float, *, stays: bool = False) -> None:
        """Note that a request goes to `instance`.

        `stays`: the one it is bound to is there, and was only passed over.
        """
        self._sweep(now)
        binding = self._bindings.get(key)
        if binding is None:
            binding = self._bindings[key] = _Binding(instance)
        elif not stays or self._moves or self._over(binding, now):
            binding.instance = instance
        binding.running += 1
        self._bindings.move_to_end(key)
        if len(self._bindings) > self._limit:
            self._bindings.popitem(last=False)

    def ended(self, key: Key, now: float, *, closes: bool = False) -> None:
        """Note that a request that was `sent` is over; `closes`: it was the session's last."""
        binding = self._bindings.get(key)
        if binding is None:
            return
        if closes:
            del self._bindings[key]
            return
        # A binding that was dropped for want of room and made anew hears of requests of the one before.
        binding.running = max(0, binding.running - 1)
        binding.idle_since = now
        self._bindings.move_to_end(key)

    def _over(self, binding: _Binding, now: float) -> bool:
        return not binding.running and now - binding.idle_since >= self._ttl

    def _sweep(self, now: float) -> None:
        for _ in range(_SWEPT):
            oldest = next(iter(self._bindings), None)
            if oldest is None:
                return
            binding = self._bindings[oldest]
            if self._over(binding, now):
                del self._bindings[oldest]
            elif binding.running:
                self._bindings.move_to_end(oldest)
            else:
                return
