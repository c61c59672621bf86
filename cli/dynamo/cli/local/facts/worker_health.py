"""Asks the parts of a run how they are: whether the system has stopped them, frontends whether they answer, workers by
`/health`; what starts is told by the end of its log.

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
from dynamo.cli.local.state import FRONTEND, NODE, WORKER, PartState

SECONDS: Final = 1.0
"""Of one answer."""
LIVE_SECONDS: Final = 3.0
"""Of a frontend's: loading a tokenizer may hold it for a second."""
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
    elif part.state == "ready" and (health := _health_of(part)) is not None:
        part.state, part.reason = AWAY if health.away else part.state, health.why or part.reason
    return part


def _health_of(part: PartState) -> WorkerHealth | None:
    """Return how a part is; None where nothing can be said against it."""
    if part.pid is not None and is_stopped(part.pid):
        return WorkerHealth(True, f"its process {part.pid} is stopped by a signal, and answers nobody")
    if part.kind in (WORKER, NODE) and "system" in part.ports:
        return ask(part.ports["system"])
    return ask_frontend(part.ports["http"]) if part.kind == FRONTEND and "http" in part.ports else None


def is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped (SIGSTOP, or a debugger's hold); False where the system doesn't say so."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])


def ask_frontend(port: int) -> WorkerHealth | None:
    """Ask one frontend whether it answers; None where it does, or isn't asked in its own way: another host, TLS."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=LIVE_SECONDS)
    try:
        connection.request("GET", "/live")
        connection.getresponse()
    except TimeoutError:
        text = f"its /live (port {port}) gives no answer within {LIVE_SECONDS:g} s: its event loop is blocked"
        return WorkerHealth(True, text)
    except (OSError, http.client.HTTPException):
        pass
    finally:
        connection.close()
    return None


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
