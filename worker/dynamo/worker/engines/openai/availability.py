"""Whether a server can be asked just now, by what its routes and its answers say. Pure.

Two silent or bad answers of a health route in a row have the worker leave routing. After several requests in a row that
failed by the server's fault, a request of ours decides: a client whose requests break servers must not get them all out
of routing. Good answers of the same kind bring the worker back.
"""

from __future__ import annotations

from typing import Final

_MISSES: Final = 2
_FAILURES: Final = 5


class Availability:
    """Decide; `why` says why the server can't be asked, empty while it can."""

    def __init__(self) -> None:
        self._route = self._requests = ""
        self._misses = self._failures = 0

    @property
    def why(self) -> str:
        """Return the reason to stay away."""
        return self._route or self._requests

    @property
    def doubtful(self) -> bool:
        """Tell whether the next look should come soon."""
        return bool(self._misses) and not self._route

    @property
    def suspicious(self) -> bool:
        """Tell whether a request of ours should decide."""
        return not self._misses and self._failures >= _FAILURES

    @property
    def failing(self) -> bool:
        """Tell whether the last request failed by the server's fault."""
        return self._failures > 0

    def looked(self, problem: str) -> None:
        """Note what a look at the server gave: empty where all is well."""
        if not problem:
            self._misses, self._route = 0, ""
            return
        self._misses += 1
        if self._misses >= _MISSES or self._route:
            self._route = problem

    def asked(self, problem: str) -> None:
        """Note what a request of ours gave."""
        self._requests = problem and f"fails requests: {problem}"
        if not problem:
            self._failures = 0

    def request_failed(self) -> None:
        """Note that a client's request failed by the server's fault."""
        self._failures += 1

    def request_served(self) -> None:
        """Note that one came to its end."""
        self._failures, self._requests = 0, ""
