"""pydantic's JSON schema of a `DynamoPipeline` as the structural schema that Kubernetes takes.

No `$ref`, no unions: what may be null is simply optional, and a number that may be a text
is `x-kubernetes-int-or-string`. Nested defaults become `{}`, which the API server fills in
from the fields' own. What Kubernetes adds to JSON schema (lists that are maps, opaque
fields) stands in `EXTENSIONS` by path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamo.operator.api.rules import OWN_ARGUMENTS
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.codegen.cel_rules import CEL_RULES, spellings

Schema = dict[str, Any]

_OPAQUE: Schema = {"x-kubernetes-preserve-unknown-fields": True}
_BY_NAME: Schema = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
_ATOMIC: Schema = {"x-kubernetes-list-type": "atomic"}
_KEPT = (
    "description", "enum", "format", "minimum", "maximum", "minLength", "maxLength", "pattern",
    "minItems", "maxItems", "maxProperties",
)  # fmt: skip
_INT32, _INT64 = 2**31 - 1, frozenset({"status.observedGeneration", "status.conditions[].observedGeneration"})


def _own_arguments() -> Schema:
    """Declare the refused arguments, since CEL sees declared fields only; a rule says what to use instead."""
    counts = ("tensor-parallel-size", "block-size")
    properties: dict[str, Schema] = {}
    for name, field in OWN_ARGUMENTS.items():
        kind: Schema = {"x-kubernetes-int-or-string": True} if name in counts else {"type": "string", "maxLength": 1024}
        for spelling in spellings(name):
            properties[spelling] = {"description": f"Not allowed here: use {field}.", **kind}
    return {**_OPAQUE, "x-kubernetes-map-type": "atomic", "properties": properties}


EXTENSIONS: Mapping[str, Schema] = {
    "spec.components": _BY_NAME,
    "spec.components[].env": _BY_NAME,
    "spec.components[].env[].valueFrom": _OPAQUE,
    "spec.components[].envFrom": _ATOMIC,
    "spec.components[].envFrom[]": {
        **_OPAQUE,
        "maxProperties": 8,
        "description": "One source, as core/v1 EnvFromSource.",
    },
    "spec.components[].engineArgs": _own_arguments(),
    "spec.components[].podTemplate": _OPAQUE,
    "spec.components[].affinity": _OPAQUE,
    "spec.components[].tolerations": _ATOMIC,
    "spec.components[].topologySpreadConstraints": _ATOMIC,
    "spec.components[].topologySpreadConstraints[]": {
        **_OPAQUE,
        "maxProperties": 8,
        "description": "One constraint, as core/v1 TopologySpreadConstraint.",
    },
    "spec.components[].resourceClaims": _BY_NAME,
    "spec.components[].command": _ATOMIC,
    "spec.components[].args": _ATOMIC,
    "spec.frontend.podTemplate": _OPAQUE,
    "spec.frontend.httpRoute.hostnames": _ATOMIC,
    "spec.frontend.httpRoute.paths": _ATOMIC,
    "spec.frontend.ingress.paths": _ATOMIC,
    "spec.runtime.etcd.endpoints": _ATOMIC,
    "status.components": _BY_NAME,
    "status.conditions": {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
}


def structural_schema() -> Schema:
    """Return the schema of the whole object, rules included."""
    full = DynamoPipeline.model_json_schema()
    schema = _Builder(full.get("$defs", {})).convert(full, "")
    properties = schema["properties"]
    properties["metadata"] = {"type": "object"}
    for name in ("apiVersion", "kind"):
        properties[name] = {"type": "string", "description": properties[name]["description"]}
    schema["required"] = ["spec"]
    return schema


class _Builder:
    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def convert(self, source: Schema, path: str) -> Schema:
        """Return `source` without references and unions, with what Kubernetes adds at `path`."""
        flat = self._flat(source)
        out: Schema = {"type": flat["type"]} if "type" in flat else {}
        out |= {key: flat[key] for key in _KEPT if key in flat}
        out |= {key: value for key, value in flat.items() if key.startswith("x-kubernetes-")}
        if flat.get("type") == "integer":
            out["format"] = "int64" if path in _INT64 else "int32"
            _drop_natural_bound(out)
        out |= _default(flat, path)
        if default := _described_default(flat, path):
            out["description"] = f"{out['description'].rstrip('.')}; default {default}."
        self._children(flat, out, path)
        out |= EXTENSIONS.get(path, {})
        entries = [rule.entry() for rule in CEL_RULES if rule.place == path]
        return out | ({"x-kubernetes-validations": entries} if entries else {})

    def _children(self, flat: Schema, out: Schema, path: str) -> None:
        properties = flat.get("properties", {})
        if properties:
            prefix = f"{path}." if path else ""
            out["properties"] = {name: self.convert(schema, prefix + name) for name, schema in properties.items()}
        if flat.get("required"):
            out["required"] = flat["required"]
        if "items" in flat:
            out["items"] = self.convert(flat["items"], f"{path}[]")
        if isinstance(flat.get("additionalProperties"), dict):
            out["additionalProperties"] = self.convert(flat["additionalProperties"], f"{path}{{}}")

    def _flat(self, source: Schema) -> Schema:
        own = {k: v for k, v in source.items() if k not in ("$ref", "anyOf", "const")}
        if "$ref" in source:
            return self._flat(self._definitions[source["$ref"].rpartition("/")[2]]) | own
        if "const" in source:
            return own | {"enum": [source["const"]]}
        if "anyOf" not in source:
            return own
        members = [self._flat(m) for m in source["anyOf"] if m.get("type") != "null"]
        return _merged(members) | own


def _merged(members: list[Schema]) -> Schema:
    """Merge a union: only an optional, or a number that may be a string, occurs."""
    if len(members) == 1:
        return members[0]
    if {m.get("type") for m in members} != {"integer", "string"}:
        raise ValueError(f"a union that Kubernetes can't say: {members}")
    bounds = {k: v for m in members for k, v in m.items() if k != "type"}
    return {"x-kubernetes-int-or-string": True, **bounds}


def _drop_natural_bound(out: Schema) -> None:
    if out.get("maximum", 0) == _INT32:
        del out["maximum"]


def _default(flat: Schema, path: str) -> Schema:
    """Return the field's default; an object's is `{}`, filled in from its fields. Status and items of lists have none.

    `kubectl apply` and Argo CD compare a list as a whole: one that the server filled in would differ for ever
    from what is in git. Only the key of a map must have a default (or be required).
    """
    value = flat.get("default")
    if value is None or path.startswith("status") or _within_list(path):
        return {}
    if isinstance(value, dict):
        return {"default": {}} if flat.get("properties") else {}
    return {} if value == [] else {"default": value}


def _described_default(flat: Schema, path: str) -> str | None:
    """Return the operator's default where the server fills nothing in; only the description can say it."""
    value = flat.get("default")
    if not path.startswith("spec") or not _within_list(path) or isinstance(value, dict | list) or value is None:
        return None
    return str(value)


def _within_list(path: str) -> bool:
    return "[]" in path and path != "spec.components[].name"
