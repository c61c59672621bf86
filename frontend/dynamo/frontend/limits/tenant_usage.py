"""What tenants used, by the names that the file of API keys gives them: requests and tokens.

Shown to those who run the frontend only, since a tenant's key opens `/metrics` on the port of clients, too. The text is
written without prometheus-client, which takes 50 ms of the event loop for as many series as there may be.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dynamo.frontend.http.api_keys import OTHER, tenant_of
from dynamo.frontend.metrics import PREFIX

MOST_SERIES: Final = 1000
"""Pairs of a tenant and a model that are told apart; the rest is counted as `other`."""
Tokens = tuple[int, int, int]
"""Of a prompt, of its answers, and how many of the prompt's came from a KV cache."""


class Family(NamedTuple):
    """A counter with the labels tenant, model and one of its own."""

    name: str
    text: str
    label: str
    values: tuple[str, ...]


REQUESTS: Final = Family(
    PREFIX + "tenant_requests_total", "Requests of a tenant that have ended, by status (its API keys have its name).",
    "status", ("success", "error"),
)  # fmt: skip
TOKENS: Final = Family(
    PREFIX + "tenant_tokens_total",
    "Tokens of a tenant's requests by type: prompt, output, and those of the prompt that were cached.",
    "type", ("prompt", "output", "cached"),
)  # fmt: skip


class _Usage:
    __slots__ = ("counts", "labels")

    def __init__(self, tenant: str, model: str) -> None:
        self.labels = f'tenant="{_escaped(tenant)}",model="{_escaped(model)}"'
        self.counts: dict[Family, list[int]] = {family: [0] * len(family.values) for family in (REQUESTS, TOKENS)}


class TenantUsage:
    """Counts by tenant and model; callers without a tenant's name aren't counted here."""

    def __init__(self) -> None:
        self._usage: dict[tuple[str, str], _Usage] = {}

    def ended(self, caller: bytes, model: str, failed: bool, tokens: Tokens) -> None:
        """Count a request that is over."""
        if not (tenant := tenant_of(caller)):
            return
        key = (tenant, model)
        if (usage := self._usage.get(key)) is None:
            key = key if len(self._usage) < MOST_SERIES else (OTHER, OTHER)
            usage = self._usage.setdefault(key, _Usage(*key))
        usage.counts[REQUESTS][failed] += 1
        for place, count in enumerate(tokens):
            usage.counts[TOKENS][place] += count

    def text(self) -> bytes:
        """Return all in Prometheus' text format; empty where nothing was counted."""
        lines: list[str] = []
        for family in (REQUESTS, TOKENS) if self._usage else ():
            lines += [f"# HELP {family.name} {family.text}", f"# TYPE {family.name} counter"]
            for usage in self._usage.values():
                begin = f"{family.name}{{{usage.labels},{family.label}="
                lines += [
                    f'{begin}"{value}"}} {count}'
                    for value, count in zip(family.values, usage.counts[family], strict=True)
                ]
        return "".join(f"{line}\n" for line in lines).encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
