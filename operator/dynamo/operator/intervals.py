"""How often the operator checks for what no watch has reported: `Intervals`. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Intervals:
    """Seconds within which the operator notices what a watch left out."""

    sweep: float = 60.0
    """Between two LISTs of the pipelines' versions."""
    resync: float = 600.0
    """Each pipeline is reconciled again, and each kind of child listed again."""
    takeover: float = 120.0
    """How long another installation must be silent before its pipelines are taken over."""
