"""Is a live object what we want it to be? So that at rest nothing is written: `differences(intent, live)`.

A subset comparison by the rules of server-side apply: what the API server or others
added isn't ours to judge (an apply would not remove it either), lists with keys compare
item by item, other lists as a whole. Tolerates what comes back in another form: equal
quantities, and empty values that are left out. A field that was dropped from the intent
shows in the digest that `render` writes into an annotation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "hostAliases": ("ip",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
_AMOUNTS: Final = frozenset({"requests", "limits"})
_SUFFIXES: Final[Mapping[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_NEVER_LEFT_OUT: Final = frozenset(
    {"replicas", "maxSurge", "maxUnavailable", "automountServiceAccountToken", "enableServiceLinks"}
    | {"allowPrivilegeEscalation", "terminationGracePeriodSeconds"}
)
"""Fields where the API server distinguishes zero and false from absent."""
_MAPS: Final = _AMOUNTS | {"annotations", "labels", "nodeSelector", "matchLabels", "data"}
"""Empty, they are left out; an empty object (`emptyDir: {}`) means something."""


def differences(intent: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """Return the paths of fields that aren't as wanted; empty where nothing needs to be written."""
    return list(_object(intent, live, ""))


def matches(intent: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return whether nothing needs to be written."""
    return next(_object(intent, live, ""), None) is None


def quantity(text: str | int | float) -> Decimal | None:
    """Return the number that a Kubernetes quantity stands for; None where it isn't a quantity."""
    raw = str(text)
    suffix = next((s for s in (raw[-2:], raw[-1:]) if s in _SUFFIXES), "")
    try:
        return Decimal(raw.removesuffix(suffix)) * _SUFFIXES.get(suffix, Decimal(1))
    except InvalidOperation:
        return None


def _object(intent: Mapping[str, Any], live: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, wanted in intent.items():
        place = f"{path}.{name}" if path else name
        if name in _AMOUNTS and isinstance(wanted, dict) and isinstance(live.get(name), dict):
            yield from _amounts(wanted, live[name], place)
        elif name == "sizeLimit" and name in live:
            yield from () if _same_amount(wanted, live[name]) else (place,)
        elif name not in live:
            yield from () if _left_out(name, wanted) else (place,)
        else:
            yield from _value(wanted, live[name], name, place)


def _value(wanted: Any, live: Any, name: str, path: str) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(live, dict):
        yield from _object(wanted, live, path)
    elif isinstance(wanted, list) and isinstance(live, list):
        yield from _list(wanted, live, name, path)
    elif wanted != live or isinstance(wanted, bool) is not isinstance(live, bool):
        yield path


def _list(wanted: Sequence[Any], live: Sequence[Any], name: str, path: str) -> Iterator[str]:
    keys = _list_keys(name, [*wanted, *live])
    if keys is None:
        if len(wanted) != len(live):
            yield path
            return
        for index, (item, other) in enumerate(zip(wanted, live, strict=True)):
            yield from _value(item, other, "", f"{path}[{index}]")
        return
    by_key = {tuple(item.get(k) for k in keys): item for item in live}
    for item in wanted:
        key = tuple(item.get(k) for k in keys)
        place = f"{path}[{','.join(map(str, key))}]"
        if key in by_key:
            yield from _object(item, by_key[key], place)
        else:
            yield place


def _list_keys(name: str, items: Sequence[Any]) -> tuple[str, ...] | None:
    """Return what identifies an item; ports are `port` in a Service, `containerPort` in a container."""
    if not all(isinstance(item, dict) for item in items):
        return None
    if name == "ports":
        return ("name",) if all("name" in item for item in items) else None
    return _KEYS.get(name)


def _amounts(wanted: Mapping[str, Any], live: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, amount in wanted.items():
        if name not in live or not _same_amount(amount, live[name]):
            yield f"{path}.{name}"


def _same_amount(amount: Any, other: Any) -> bool:
    return bool(amount == other or (quantity(amount) is not None and quantity(amount) == quantity(other)))


def _left_out(name: str, wanted: Any) -> bool:
    """Return whether the API server keeps such a value as an absent field."""
    if isinstance(wanted, bool | int | float):
        return not wanted and name not in _NEVER_LEFT_OUT
    if isinstance(wanted, dict):
        return not wanted and name in _MAPS
    return not wanted
