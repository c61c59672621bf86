"""How often the operator looks for what nobody has told it: `Intervals`. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Intervals:
    """Seconds. Within them everything is found out that a watch left out."""

    sweep: float = 60.0
    """Between two LISTs of the pipelines' versions."""
    resync: float = 600.0
    """Each pipeline is looked at again, and each kind of child listed anew."""
    rival: float = 120.0
    """For so long another installation must have been silent before its pipelines are taken over."""
