"""Events as lines, youngest last. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

Live = Mapping[str, Any]


def event_lines(events: Iterable[Live], names: Collection[str], count: int) -> list[str]:
    """Return the last few events about objects of these names."""
    about = [e for e in events if (e.get("involvedObject") or {}).get("name") in names]
    return [event_line(event) for event in sorted(about, key=event_time)[-count:]]


def event_time(event: Live) -> str:
    """Return when an event last happened; the three writers of events each fill another field."""
    series = event.get("series") or {}
    stamp = event.get("lastTimestamp") or series.get("lastObservedTime") or event.get("eventTime")
    return str(stamp or event["metadata"].get("creationTimestamp") or "")


def event_line(event: Live) -> str:
    """Return `Warning Failed pod/llama-worker-0: … (x3)`."""
    about = event.get("involvedObject") or {}
    what = f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"
    message = " ".join(str(event.get("message") or "").split())
    count = event.get("count") or (event.get("series") or {}).get("count") or 1
    times = f" (x{count})" if count > 1 else ""
    return f"{event.get('type', 'Normal')} {event.get('reason', '')} {what}: {message}{times}"
