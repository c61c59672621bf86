"""What an API server does with a pipeline by the CRD alone: defaults, schema, map lists, CEL.

A stand-in for tests without a cluster. The CEL is run by Google's own evaluator; its cost
limit, and Kubernetes' type checks, are met on a real API server only.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from typing import Any

from cel_expr_python import cel  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from dynamo.operator.codegen.cel_rules import cel_name
from dynamo.operator.codegen.crd import crd

Schema = dict[str, Any]
_SUM = cel.FunctionDecl("sum", [cel.Overload("sum", cel.Type.INT, [cel.Type.LIST], is_member=True)])


@functools.cache
def schema() -> Schema:
    """The CRD's schema."""
    open_apiv3_schema: Schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return open_apiv3_schema


def admit(pipeline: dict[str, Any]) -> list[str]:
    """Why it is refused; empty where it is let in."""
    defaulted = with_defaults(schema(), copy.deepcopy(pipeline))
    results = [f"{_path(e.absolute_path)}: {e.message}" for e in _validator().iter_errors(defaulted)]
    return results or list(_checks(schema(), defaulted, ""))


def walk(node: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema within a schema, with its path."""
    yield path, node
    for name, entry in node.get("properties", {}).items():
        yield from walk(entry, f"{path}.{name}" if path else name)
    if "items" in node:
        yield from walk(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from walk(node["additionalProperties"], f"{path}{{}}")


def with_defaults(node: Schema, value: Any) -> Any:
    """As the API server fills in what is left out."""
    if isinstance(value, dict):
        for name, entry in node.get("properties", {}).items():
            if name not in value and "default" in entry:
                value[name] = copy.deepcopy(entry["default"])
            if name in value:
                with_defaults(entry, value[name])
    elif isinstance(value, list):
        for item in value:
            with_defaults(node.get("items", {}), item)
    return value


@functools.cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(_plain(schema(), embedded=True))


def _plain(node: Schema, *, embedded: bool = False) -> Schema:
    """As ordinary JSON schema; `kubectl` refuses unknown fields, so this does too."""
    out = {k: v for k, v in node.items() if not k.startswith("x-") and k not in ("format", "default")}
    if node.get("x-kubernetes-int-or-string"):
        out["type"] = ["integer", "string"]
    if "pattern" in out:
        out["pattern"] = re.sub(r"\$$", r"\\Z", out["pattern"])
    if "properties" in node:
        out["properties"] = {k: _plain(v) for k, v in node["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            out["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            out[key] = _plain(node[key])
    return out


def _checks(node: Schema, value: Any, path: str) -> Iterator[str]:
    for rule in node.get("x-kubernetes-validations", []):
        if "oldSelf" not in rule["rule"] and not holds(rule["rule"], value):
            yield f"{path}{rule.get('fieldPath', '')}: {_message(rule, value)}"
    if isinstance(value, dict):
        for name, entry in node.get("properties", {}).items():
            if name in value:
                yield from _checks(entry, value[name], f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        if node.get("x-kubernetes-list-type") == "map":
            keys = [tuple(item[k] for k in node["x-kubernetes-list-map-keys"]) for item in value]
            yield from (f"{path}: Duplicate value: {k}" for i, k in enumerate(keys) if k in keys[:i])
        for index, item in enumerate(value):
            yield from _checks(node["items"], item, f"{path}[{index}]")


def holds(rule: str, value: Any, old: Any = None) -> bool:
    """What a rule says about a value."""
    return bool(_evaluate(rule, value, old))


def _message(rule: dict[str, str], value: Any) -> str:
    expression = rule.get("messageExpression")
    return str(_evaluate(expression, value)) if expression else rule["message"]


def _evaluate(expression: str, value: Any, old: Any = None) -> Any:
    result = _compiled(expression).eval(data={"self": _escaped(value), "oldSelf": _escaped(old)})
    outcome = result.value()
    if not isinstance(outcome, bool | str):
        raise TypeError(f"{expression}: {result}")
    return outcome


@functools.cache
def _compiled(expression: str) -> Any:
    variables = {"self": cel.Type.DYN, "oldSelf": cel.Type.DYN}
    return cel.NewEnv(variables=variables, functions=[_SUM], function_impls={"sum": _sum}).compile(expression)


def _sum(numbers: Any) -> int:
    """Of Kubernetes' own list functions."""
    return sum(int(number) for number in numbers)


def _escaped(value: Any) -> Any:
    """Field names as Kubernetes gives them to CEL."""
    if isinstance(value, dict):
        return {"__namespace__" if k == "namespace" else cel_name(k): _escaped(v) for k, v in value.items()}
    return [_escaped(v) for v in value] if isinstance(value, list) else value


def _path(parts: Any) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts).removeprefix(".")
