"""What happens to a request or to a watch's event on its way: `Faults`, with a `Script` per namespace. Pure.

`proxy.py` carries it out between an operator and its API server. A test gives each of many
pipelines a namespace of its own, and thereby a fault of its own, with one operator for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

Object = Mapping[str, Any]
_MUTATING = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True)
class Request:
    """One request, taken apart."""

    method: str
    plural: str = ""
    namespace: str = ""
    """Empty: of all namespaces, or of none."""
    name: str = ""
    sub: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, method: str, path: str, query: Mapping[str, str]) -> Request:
        """Out of the URL; paths that are no resource's have no plural."""
        parts = path.strip("/").split("/")
        parts = parts[{"api": 2, "apis": 3}.get(parts[0], len(parts)) :]
        namespace = ""
        if parts[:1] == ["namespaces"] and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name, sub = (*parts, "", "", "")[:3]
        return cls(method, plural, namespace, name, sub, dict(query))

    def __str__(self) -> str:
        return " ".join((self.method, "/".join(part for part in (self.plural, self.name, self.sub) if part)))

    @property
    def is_write(self) -> bool:
        """Whether it would change something."""
        return self.method in _MUTATING

    @property
    def is_watch(self) -> bool:
        """A stream of events."""
        return self.query.get("watch") in ("true", "1")

    @property
    def is_list(self) -> bool:
        """Of all that there are, or of those that a selector names."""
        return self.method == "GET" and bool(self.plural) and not self.name and not self.is_watch


@dataclass(frozen=True)
class Refusal:
    """The API server's own form of a refusal."""

    code: int
    reason: str
    message: str
    retry_after: int | None = None

    def status(self) -> dict[str, Any]:
        """What its body holds, and an ERROR event's object."""
        return {
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        }  # fmt: skip


REFUSALS = (
    Refusal(409, "Conflict", "the object has been modified; please apply your changes to the latest version"),
    Refusal(410, "Expired", "the provided continue parameter is too old"),
    Refusal(422, "Invalid", "is invalid: spec: Invalid value: injected"),
    Refusal(429, "TooManyRequests", "too many requests, please try again later", retry_after=1),
    Refusal(500, "InternalError", "etcdserver: leader changed"),
)


class Fate(Enum):
    """What becomes of a request that isn't refused."""

    PASSES = "carried out and answered"
    LOST = "carried out, and the connection ends without an answer"
    CUT = "not carried out; the connection ends"


Verdict = Fate | Refusal


class Told(NamedTuple):
    """An event: of which kind, what it says, and the how manieth of these it is."""

    plural: str
    type: str
    number: int


@dataclass
class Script:
    """The faults of one namespace; writes count from 1."""

    cut_after: int | None = None
    """After this write the operator reaches nothing any more: the moment of a crash."""
    lose: int | None = None
    """The write whose answer nobody hears."""
    refuse: tuple[int, Refusal] | None = None
    """The write that is refused, and how."""
    always: dict[str, Refusal] = field(default_factory=dict)
    """Kinds, by plural, of which every write is refused, and how."""
    drop: Told | None = None
    """The event that no watch tells."""
    hold: tuple[Told, float] | None = None
    """The event before which its watch stands still, and for how many seconds."""
    writes: list[str] = field(default_factory=list)
    missed: set[int] = field(default_factory=set)
    """Of the writes, by place: those to an object that isn't there (404), which change nothing."""
    events: list[Told] = field(default_factory=list)
    is_cut: bool = False

    def asked(self, request: Request) -> Verdict:
        """Notes a write, and says what becomes of the request."""
        if self.is_cut:
            return Fate.CUT
        if not request.is_write:
            return Fate.PASSES
        self.writes.append(str(request))
        number = len(self.writes)
        self.is_cut = number == self.cut_after
        if self.refuse is not None and self.refuse[0] == number:
            return self.refuse[1]
        if request.plural in self.always and not request.sub:
            return self.always[request.plural]
        return Fate.LOST if self.is_cut or number == self.lose else Fate.PASSES

    def missing(self, request: Request) -> None:
        """The object of a write wasn't there: of the last one like it that isn't known to have missed."""
        same = (at for at, one in enumerate(self.writes) if one == str(request) and at not in self.missed)
        self.missed.add(max(same))

    def told(self, plural: str, event: Object) -> float | None:
        """Notes an event; the seconds that its watch waits before it tells it, None where it never does."""
        found = Told(plural, event["type"], 1 + sum(one[:2] == (plural, event["type"]) for one in self.events))
        self.events.append(found)
        if found == self.drop:
            return None
        return self.hold[1] if self.hold is not None and self.hold[0] == found else 0.0

    def cut_at(self, more: int) -> None:
        """The next crash: after so many writes from now."""
        self.cut_after = len(self.writes) + more

    def mend(self) -> None:
        """The next operator reaches everything."""
        self.cut_after, self.is_cut = None, False


class Snapshot:
    """What LISTs showed at some time, by plural."""

    def __init__(self, lists: Mapping[str, Object]) -> None:
        self._lists = lists

    def answer(self, request: Request) -> dict[str, Any] | None:
        """A LIST as of then, whatever page was asked for; None for all else."""
        found = self._lists.get(request.plural)
        if found is None or not request.is_list:
            return None
        items = [item for item in found["items"] if request.namespace in ("", item["metadata"]["namespace"])]
        chosen = [item for item in items if selects(request.query.get("labelSelector", ""), item)]
        return {**found, "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "items": chosen}


class Faults:
    """All that may go wrong; a test turns it on and off while requests pass."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.shut: dict[str, Refusal] = {}
        """Kinds, by plural, that can neither be listed nor watched."""
        self.stale: Snapshot | None = None
        """Lists come from here, and watches tell nothing, until it is taken away."""

    def script(self, namespace: str) -> Script:
        """The namespace's own; one without faults where there was none."""
        return self.scripts.setdefault(namespace, Script())

    def asked(self, request: Request) -> Verdict:
        """What becomes of a request."""
        if request.plural in self.shut and (request.is_list or request.is_watch):
            return self.shut[request.plural]
        script = self.scripts.get(request.namespace)
        return Fate.PASSES if script is None else script.asked(request)

    def answered(self, request: Request, status: int) -> None:
        """What the API server said of a request."""
        script = self.scripts.get(request.namespace)
        if script is not None and request.is_write and status == 404:
            script.missing(request)

    def told(self, plural: str, event: Object) -> float | None:
        """As `Script.told`; bookmarks and errors pass."""
        namespace = (event.get("object") or {}).get("metadata", {}).get("namespace", "")
        script = self.scripts.get(namespace)
        return 0.0 if script is None or event["type"] in ("BOOKMARK", "ERROR") else script.told(plural, event)


def selects(selector: str, found: Object) -> bool:
    """Whether an object has the labels: `name`, `name=value`, several with commas."""
    labels = found["metadata"].get("labels", {})
    parts: Iterable[tuple[str, str, str]] = (part.partition("=") for part in selector.split(",") if part)
    return all(name in labels and (not equals or labels[name] == value) for name, equals, value in parts)
