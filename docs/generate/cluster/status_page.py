"""Writes the reference of a pipeline's status out of the operator's conditions and reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from docs.generate.markdown import code, page, prose, table

from dynamo.operator.api.conditions import BEGINNING, ON_THE_WAY, TYPES
from dynamo.operator.api.reasons import GROUPS, REASONS, Meaning

HEAD: Final = """# Status of a pipeline

Made from the operator's code by `make generate`; don't edit it by hand.

`kubectl get dp NAME` prints the condition `Ready` and its reason, `kubectl describe dp NAME` all of them, and
`dynamo status NAME` explains them. Conditions and reasons are closed sets: alerts can name them. Each message names the
pod and quotes Kubernetes' reason. `observedGeneration` is the generation of the spec that a condition describes.

The [fields of the status](dynamopipeline.md#status) are in the reference of the object.

```mermaid
flowchart TD
  Ready --> FrontendReady
  Ready --> WorkersReady
  Ready --> ModelLoaded
  Available -. a frontend and a worker .-> Ready
  Reconciling -. while the operator works .-> Ready
  Stalled -. until you change something .-> Ready
```
"""


def render() -> str:
    """Write the whole page."""
    parts = [
        HEAD,
        "## Conditions",
        table(("condition", "meaning"), ((code(name), text) for name, text in TYPES.items())),
    ]
    parts += ["## Reasons", prose(
        "*Ready* is the status of the condition `Ready` while the reason holds. *Clears by itself* tells whether "
        "the reason goes without a change of yours."
    )]  # fmt: skip
    for title, rows in GROUPS.items():
        parts += [f"### {title}", table(("reason", "Ready", "meaning", "what to do", "clears by itself"), (
            _row(str(reason), meaning) for reason, meaning in rows.items()
        ))]  # fmt: skip
    return page([*parts, *_events()])


def _row(reason: str, meaning: Meaning) -> tuple[str, ...]:
    return code(reason), meaning.ready, meaning.text, meaning.remedy, meaning.clears


def _events() -> Iterator[str]:
    on_the_way = ", ".join(code(reason) for reason in REASONS if reason in ON_THE_WAY)
    beginning = ", ".join(code(reason) for reason in REASONS if reason in BEGINNING)
    yield "## Events"
    yield prose(
        "The operator emits a Kubernetes Event when `Ready` changes, except while a new pipeline starts "
        f"({beginning}). {on_the_way} mean progress, not a problem: alert on them only when they last."
    )
