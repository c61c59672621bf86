"""Asks the workers of a run how they are, by the `/health` of each; what starts is told by the end of its log.

A worker that was ready once may have left routing since, which its process says to nobody else on this machine.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from dynamo.cli.local.log_files import message, parse_lines
from dynamo.cli.local.ports import LOOPBACK
from dynamo.cli.local.state import PartState

SECONDS: Final = 1.0
"""Of one answer."""
AWAY: Final = "notready"
"""State of a part whose process runs, and which gets no requests."""
_THREADS: Final = 16
_MOST_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 1 << 14
_MOST_CHARACTERS: Final = 600


class WorkerHealth(NamedTuple):
    """Answer of one part."""

    away: bool = False
    why: str = ""
    """Why it is away; where it isn't, what is amiss all the same."""


def seen(parts: Sequence[PartState]) -> list[PartState]:
    """Return the parts as they are now: away where their worker says so, with its reason."""
    with ThreadPoolExecutor(min(_THREADS, len(parts) or 1)) as threads:
        return list(threads.map(_seen, parts))


def _seen(part: PartState) -> PartState:
    if part.state == "starting" and not part.reason:
        part.reason = doing(Path(part.log))
    elif part.state == "ready" and "system" in part.ports and part.kind in ("worker", "node"):
        health = ask(part.ports["system"])
        part.state, part.reason = AWAY if health.away else part.state, health.why or part.reason
    return part


def ask(port: int) -> WorkerHealth:
    """Ask one worker; one that doesn't answer in time is away."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=SECONDS)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        return read(answer.status, json.loads(answer.read(_MOST_BYTES)))
    except (OSError, http.client.HTTPException, ValueError):
        return WorkerHealth(True, f"its /health (port {port}) gives no answer within {SECONDS:g} s")
    finally:
        connection.close()


def read(status: int, body: Any) -> WorkerHealth:
    """Read what `/health` answered."""
    told: Mapping[str, Any] = body if isinstance(body, dict) else {}
    away = status != http.client.OK
    sentences = [*_texts(told.get("reasons"))] if away else []
    return WorkerHealth(away, "; ".join([*sentences, *_texts(told.get("notes"))])[:_MOST_CHARACTERS])


def _texts(value: Any) -> Iterator[str]:
    return (text for text in value if isinstance(text, str)) if isinstance(value, list) else iter(())


def doing(path: Path) -> str:
    """Return what a part said last in its log; empty where it said nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    said = (message(line.text) for line in reversed(list(parse_lines(text.splitlines(), path.stem))))
    return next((text for text in said if text), "")[:_MOST_CHARACTERS]
