"""What users asked of the API server, out of its audit log: counts, and how soon children followed. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Request:
    """One answered request; times in seconds since the epoch."""

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    begun: float
    ended: float

    @property
    def is_write(self) -> bool:
        """Whether it may change something."""
        return self.verb in WRITES

    @property
    def is_lease(self) -> bool:
        """Renewals of the leader's lease come every two seconds, whatever there is to do."""
        return self.resource == "leases"


def requests(path: Path, since: float = 0.0) -> list[Request]:
    """Everything in the log that began at `since` or later."""
    with path.open() as lines:
        return [found for found in _parsed(lines) if found.begun >= since]


def _parsed(lines: Iterable[str]) -> Iterator[Request]:
    for line in lines:
        entry = json.loads(line)
        target = entry.get("objectRef")
        if target is None or entry.get("stage") != "ResponseComplete":
            continue
        yield Request(
            user=entry["user"]["username"],
            verb=entry["verb"],
            resource=target.get("resource", ""),
            subresource=target.get("subresource", ""),
            namespace=target.get("namespace", ""),
            name=target.get("name", ""),
            code=int(entry.get("responseStatus", {}).get("code", 0)),
            begun=_seconds(entry["requestReceivedTimestamp"]),
            ended=_seconds(entry["stageTimestamp"]),
        )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def writes(found: Iterable[Request], user: str) -> Counter[str]:
    """How many writes of a user, by kind: children, status, events, refused."""
    count: Counter[str] = Counter()
    for one in found:
        if one.user == user and one.is_write and not one.is_lease:
            count[_class(one)] += 1
    return count


def _class(one: Request) -> str:
    if one.code >= 400:
        return "refused"
    if one.subresource == "status":
        return "status"
    return "events" if one.resource == "events" else "children"


def reads(found: Iterable[Request], user: str) -> Counter[str]:
    """How many reads of a user, by verb."""
    return Counter(one.verb for one in found if one.user == user and not one.is_write and not one.is_lease)


def delays(found: Iterable[Request], user: str, client: str, children: int) -> dict[str, float]:
    """By namespace/name of a pipeline: from the request that made it until its last child had been written."""
    begun: dict[str, float] = {}
    ends: dict[str, list[float]] = {}
    for one in found:
        if one.user == client and one.resource == "dynamopipelines" and one.verb == "create" and one.code == 201:
            begun[f"{one.namespace}/{one.name}"] = one.begun
        elif one.user == user and one.verb == "patch" and one.code == 201:
            ends.setdefault(f"{one.namespace}/{_pipeline(one.name)}", []).append(one.ended)
    return {key: max(ends[key]) - at for key, at in begun.items() if len(ends.get(key, ())) == children}


def _pipeline(child: str) -> str:
    """The benchmark's pipelines have names of two parts: p-00017."""
    return "-".join(child.split("-")[:2])
