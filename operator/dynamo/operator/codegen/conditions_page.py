"""docs/conditions.md out of `conditions.py`: `python -m dynamo.operator.conditions_page FILE` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from dynamo.operator.conditions import BEGINNING, ON_THE_WAY, REASONS, TYPES, Reason, Type

_HEAD = """# What a pipeline says of itself

Written by `make generate` out of `operator/dynamo/operator/conditions.py`. Both sets are closed: alerts may name them.

`kubectl get dp NAME -o yaml` shows them in `status.conditions`, `dynamo status NAME` in words. Messages name the pod
and what Kubernetes says of it. A condition speaks of the generation in its `observedGeneration`.
"""


def render() -> str:
    """The page."""
    return "\n".join([_HEAD, *_table("condition", TYPES), "", *_table("reason", REASONS), "", *_tail()]) + "\n"


def _table(what: str, meanings: Mapping[Type, str] | Mapping[Reason, str]) -> Iterator[str]:
    yield f"| {what} | means |"
    yield "|---|---|"
    for name, meaning in meanings.items():
        yield f"| `{name}` | {meaning} |"


def _tail() -> Iterator[str]:
    on_the_way = ", ".join(f"`{reason}`" for reason in REASONS if reason in ON_THE_WAY)
    beginning = ", ".join(f"`{reason}`" for reason in REASONS if reason in BEGINNING)
    yield f"Nothing is wrong with {on_the_way}. An Event tells each transition of Ready, but not those of a beginning"
    yield f"({beginning})."


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
