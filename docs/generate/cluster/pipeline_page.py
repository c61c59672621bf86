"""Writes the reference of `DynamoPipeline` out of the CRD's schema, with an example of every field.

The schema is the one that the API server holds: types, bounds, defaults and rules can't be here and not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import yaml
from docs.generate.cluster.pipeline_examples import EXAMPLES, SINCE
from docs.generate.markdown import anchor, code, page, prose

from dynamo.operator.codegen.crd_schema import structural_schema

Schema = dict[str, Any]
FIRST: Final = "0.1.0"
"""Version that has every field of which `SINCE` has no other."""
HEAD: Final = """# DynamoPipeline

Made from the CRD's schema by `make generate`; don't edit it by hand.

A `DynamoPipeline` (`dynamo.dev/v1alpha1`, short name `dp`) is one model: its frontend and its workers. On Kubernetes
the operator runs it, on one machine `dynamo up`. Only `metadata.name`, `spec.components` and its `engine` are required.
The API server enforces types, bounds and rules; `dynamo validate FILE` checks them before. `kubectl explain dp.spec`
prints the same texts.

```yaml
apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata:
  name: qwen
spec:
  model:
    source: hf://Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf
  components:
    - name: worker
      engine: llamacpp
      replicas: 2
```
"""
_NAME: Final = """## metadata

### metadata.name

String of 1 to 37 characters: lower-case letters, digits and `-`, beginning with a letter. Required.

Example: `name: qwen`
"""


class Field(NamedTuple):
    """A field of the schema at its path."""

    path: str
    schema: Schema
    required: bool

    @property
    def name(self) -> str:
        """Return its last part, as YAML has it."""
        return self.path.rpartition(".")[2].removesuffix("[]")


def render() -> str:
    """Write the whole page."""
    schema = structural_schema()
    rules = dict(_rules(schema))
    objects = [part for name in ("spec", "status") for part in _objects(Field(name, schema["properties"][name], False))]
    parts = [HEAD, _contents(objects), _NAME]
    for part in objects:
        parts += _section(part, rules)
    return page(parts)


def fields() -> Iterator[Field]:
    """Yield every field that has no fields of its own, in the schema's order."""
    schema = structural_schema()
    for name in ("spec", "status"):
        for part in _objects(Field(name, schema["properties"][name], False)):
            yield from (field for field in _children(part) if _inner(field) is None)


def _objects(field: Field) -> Iterator[Field]:
    yield field
    for child in _children(field):
        inner = _inner(child)
        if inner is not None:
            yield from _objects(inner)


def _children(field: Field) -> Iterator[Field]:
    needed = field.schema.get("required", ())
    for name, schema in field.schema.get("properties", {}).items():
        yield Field(f"{field.path}.{name}", schema, name in needed)


def _inner(field: Field) -> Field | None:
    """Return what has fields of its own: the field, or an item of its list."""
    items = field.schema.get("items", {})
    if items.get("properties"):
        return Field(f"{field.path}[]", items, field.required)
    opaque = field.schema.get("x-kubernetes-preserve-unknown-fields")
    return field if field.schema.get("properties") and not opaque else None


def _contents(objects: list[Field]) -> str:
    return "\n".join(f"{'  ' * part.path.count('.')}- [{part.path}](#{anchor(part.path)})" for part in objects)


def _section(part: Field, rules: dict[str, list[str]]) -> Iterator[str]:
    """Yield a section: the object, what it holds, then its plain fields one by one."""
    yield f"## {part.path}"
    yield _text(part.schema)
    yield _ruled(rules.get(part.path, ()) if part.path.endswith("[]") or part.path == "spec" else ())
    children = list(_children(part))
    for field in children:
        if (inner := _inner(field)) is not None:
            what = "a list of objects" if inner.path.endswith("[]") else "an object"
            yield prose(f"{code(field.name)}: {what}, see [{inner.path}](#{anchor(inner.path)})." + _needed(field))
            yield _ruled(rules.get(field.path, ()))
    for field in children:
        if _inner(field) is None:
            yield from _plain(field, rules.get(field.path, ()))


def _plain(field: Field, rules: Sequence[str]) -> Iterator[str]:
    """Yield a field that has no fields of its own."""
    yield f"### {field.path}"
    since = SINCE.get(field.path, FIRST)
    yield prose(f"{kind(field.schema)}. {_default(field.schema)}Since {since}.{_needed(field)}")
    yield _text(field.schema)
    yield _ruled(rules)
    yield f"Example: `{field.name}: {_inline(EXAMPLES[field.path])}`"


def _text(schema: Schema) -> str:
    return prose(schema.get("description", "").replace("<", "&lt;"))


def _ruled(rules: Sequence[str]) -> str:
    return "\n".join(prose(f"- Rule: {text}.", indent="  ") for text in rules)


def _needed(field: Field) -> str:
    return " Required." if field.required else ""


def _default(schema: Schema) -> str:
    return f"Default: `{_inline(schema['default'])}`. " if schema.get("default", {}) != {} else ""


def _inline(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True, sort_keys=False)
    return text.removesuffix("...\n").strip()


def kind(schema: Schema) -> str:
    """Return the type in words, with its bounds."""
    if schema.get("x-kubernetes-int-or-string"):
        return "Whole number or string" + _matching(schema)
    if "enum" in schema:
        return "One of " + ", ".join(f"`{value}`" for value in schema["enum"])
    match schema.get("type"):
        case "boolean":
            return "`true` or `false`"
        case "integer" | "number" as numeric:
            return ("Whole number" if numeric == "integer" else "Number") + _range(schema)
        case "string":
            return (
                "Time, as RFC 3339 has it" if schema.get("format") else "String" + _length(schema) + _matching(schema)
            )
        case "array":
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            return f"List of {least} to {most}. Each: {_lower(kind(schema['items']))}"
    values = schema.get("additionalProperties")
    most = f" of at most {schema['maxProperties']} entries" if "maxProperties" in schema else ""
    if isinstance(values, dict) and values:
        return f"Map{most} from string to: {_lower(kind(values))}"
    return f"Object{most}, passed on as it is"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _range(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is None:
        return "" if most is None else f" up to {most}"
    return f" from {least}" if most is None else f" from {least} to {most}"


def _length(schema: Schema) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if most is None:
        return ""
    return f" of {least} to {most} characters" if least else f" of at most {most} characters"


def _matching(schema: Schema) -> str:
    return f", matching `{schema['pattern']}`" if "pattern" in schema else ""


def _rules(schema: Schema, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the sentences of the rules by the path that they speak of."""
    by_path: dict[str, list[str]] = {}
    for place, node in _nodes(schema, path):
        for entry in node.get("x-kubernetes-validations", ()):
            target = (place + entry.get("fieldPath", "")).lstrip(".") or "spec"
            by_path.setdefault(target, []).append(entry["message"].rstrip("."))
    yield from by_path.items()


def _nodes(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from _nodes(child, f"{path}.{name}" if path else name)
    if isinstance(schema.get("items"), dict):
        yield from _nodes(schema["items"], f"{path}[]")
