"""`podTemplate` laid over the template that we make, the way `kubectl patch` merges.

Objects merge field by field; the lists below by the key of their items; every other list
is replaced. `$patch: delete` removes an item, `$patch: replace` replaces an object. Of
alternatives (a probe's handler, a volume's source, a variable's value) the user's takes the
place of ours: nobody could remove ours, since the API server drops nulls. What can't be
merged is refused with the field's path, because the API server would answer a malformed
template with an internal error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dynamo.operator.manifests.context import RenderError

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_DIRECTIVE = "$patch"
_ALTERNATIVES = (
    frozenset({"httpGet", "exec", "tcpSocket", "grpc"}),
    frozenset({"value", "valueFrom"}),
)

Json = dict[str, Any]


def overlay(base: Mapping[str, Any], patch: Mapping[str, Any], path: str = "") -> Json:
    """Return a copy of `base` with `patch` over it."""
    if patch.get(_DIRECTIVE) == "replace":
        return {k: v for k, v in patch.items() if k != _DIRECTIVE}
    merged = {k: v for k, v in base.items() if not _is_alternative(k, patch)}
    for name, value in patch.items():
        if name == _DIRECTIVE:
            continue
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value, name, f"{path}.{name}" if path else name)
    return merged


def check_template(template: Mapping[str, Any], path: str, main: str) -> None:
    """Raise `RenderError` for what the API server answers with an internal error, or what lacks our container."""
    metadata, spec = _mapping(template, "metadata", path), _mapping(template, "spec", path)
    for name in ("labels", "annotations"):
        for key, value in _mapping(metadata, name, f"{path}.metadata").items():
            if not isinstance(value, str):
                raise RenderError(f"{path}.metadata.{name}.{key}", "must be a string: quote it")
    if not any(c.get("name") == main for c in _items(spec.get("containers", []), f"{path}.spec.containers")):
        raise RenderError(f"{path}.spec.containers", f"must keep the container {main!r}: change it, don't remove it")
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(_items(spec.get(kind, []), f"{path}.spec.{kind}")):
            _check_container(container, f"{path}.spec.{kind}[{index}]")


def _check_container(container: Mapping[str, Any], path: str) -> None:
    if not isinstance(container.get("name"), str):
        raise RenderError(f"{path}.name", "is required and must be a string")
    if not container.get("image"):
        raise RenderError(f"{path}.image", f"is required, since {container['name']!r} is a container of yours")
    _check_variables(container, path)


def _check_variables(container: Mapping[str, Any], path: str) -> None:
    seen: set[str] = set()
    for index, variable in enumerate(_items(container.get("env", []), f"{path}.env")):
        place, name = f"{path}.env[{index}]", variable.get("name")
        if not isinstance(name, str) or name in seen:
            raise RenderError(f"{place}.name", "must be a string that occurs once")
        if not isinstance(variable.get("value", ""), str):
            raise RenderError(f"{place}.value", "must be a string: quote it")
        seen.add(name)


def _merged(base: Any, value: Any, name: str, path: str) -> Any:
    if isinstance(value, dict):
        if base is not None and not isinstance(base, dict):
            raise RenderError(path, "must be a list, as in core/v1 PodTemplateSpec")
        return overlay(base or {}, value, path)
    if isinstance(base, dict):
        raise RenderError(path, "must be a mapping, as in core/v1 PodTemplateSpec")
    if isinstance(base, list) and not isinstance(value, list):
        raise RenderError(path, "must be a list, as in core/v1 PodTemplateSpec")
    if isinstance(value, list) and name in _KEYS:
        return _merged_list(base or [], value, _KEYS[name], path)
    return value


def _merged_list(base: list[Json], patch: list[Any], key: str, path: str) -> list[Json]:
    """Merge: ours first and in our order, then what is new, so that the result is the same each time."""
    items: dict[Any, Json] = {item[key]: item for item in base}
    for index, item in enumerate(_items(patch, path)):
        place = f"{path}[{index}]"
        if key not in item:
            raise RenderError(f"{place}.{key}", "is required: items are merged by it")
        name = item[key]
        if isinstance(name, dict | list):
            raise RenderError(f"{place}.{key}", "must be a single value")
        if item.get(_DIRECTIVE) == "delete":
            items.pop(name, None)
        else:
            before = items.get(name, {})
            if path.endswith(".volumes") and not before.keys() <= item.keys():
                before = {}
            items[name] = overlay(before, item, place)
    return list(items.values())


def _is_alternative(name: str, patch: Mapping[str, Any]) -> bool:
    return name not in patch and any(name in group and group & patch.keys() for group in _ALTERNATIVES)


def _mapping(value: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
    mapping = value.get(name, {})
    if not isinstance(mapping, dict):
        raise RenderError(f"{path}.{name}", "must be a mapping, as in core/v1 PodTemplateSpec")
    return mapping


def _items(value: Any, path: str) -> Iterator[Json]:
    if not isinstance(value, list):
        raise RenderError(path, "must be a list, as in core/v1 PodTemplateSpec")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise RenderError(f"{path}[{index}]", "must be a mapping, as in core/v1 PodTemplateSpec")
        yield item
