"""docs/reference/status.md from `api/conditions.py`: `python -m dynamo.operator.codegen.conditions_page FILE` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from dynamo.operator.api.conditions import BEGINNING, ON_THE_WAY, REASONS, TYPES, Reason, Type

_HEAD = """# Status conditions of a pipeline

Written by `make generate` out of `operator/dynamo/operator/api/conditions.py`.
Both sets are closed: alerts may name them.

`kubectl get dp NAME -o yaml` shows them in `status.conditions`, `dynamo status NAME` in words. Each message names the
pod and quotes Kubernetes' reason. `observedGeneration` is the generation of the spec that the condition describes.
"""


def render() -> str:
    """Return the page's text."""
    return "\n".join([_HEAD, *_table("condition", TYPES), "", *_table("reason", REASONS), "", *_tail()]) + "\n"


def _table(what: str, meanings: Mapping[Type, str] | Mapping[Reason, str]) -> Iterator[str]:
    yield f"| {what} | means |"
    yield "|---|---|"
    for name, meaning in meanings.items():
        yield f"| `{name}` | {meaning} |"


def _tail() -> Iterator[str]:
    on_the_way = ", ".join(f"`{reason}`" for reason in REASONS if reason in ON_THE_WAY)
    beginning = ", ".join(f"`{reason}`" for reason in REASONS if reason in BEGINNING)
    yield f"{on_the_way} mean progress, not a problem. The operator emits an Event when Ready changes, except while a"
    yield f"new pipeline starts ({beginning})."


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
