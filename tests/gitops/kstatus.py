"""The rules of kstatus for objects that it doesn't know, in Python: `compute(object)`.

After cli-utils v1.3.0, `pkg/kstatus/status`: generic.go, then the condition Ready. `e2e/gitops` holds it against the
original.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TERMINATING, IN_PROGRESS, FAILED, CURRENT = "Terminating", "InProgress", "Failed", "Current"


def compute(fields: Mapping[str, Any]) -> str:
    """The status, as kstatus names it."""
    metadata, status = fields["metadata"], fields.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return TERMINATING
    generation, observed = metadata.get("generation"), status.get("observedGeneration")
    if generation is not None and observed is not None and generation != observed:
        return IN_PROGRESS
    conditions = status.get("conditions") or []
    for condition in conditions:
        if condition["status"] == "True" and condition["type"] in ("Reconciling", "Stalled"):
            return IN_PROGRESS if condition["type"] == "Reconciling" else FAILED
    ready = next((entry for entry in conditions if entry["type"] == "Ready"), None)
    return IN_PROGRESS if ready is not None and ready["status"] != "True" else CURRENT
