"""What the source of a public object says: signatures, fields, members. Pure, but for reading the files.

`python_page` takes from here what `inspect` would give only with evaluated defaults and without the texts beside
fields: signatures and annotations are shown as they were written.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Field:
    """A field of a structure, or a member of an enumeration."""

    name: str
    kind: str
    """Its annotation; empty where there is none."""
    default: str
    doc: str


def node_of(value: Any) -> ast.ClassDef | Function | None:
    """Return where a class or function is defined; None where it isn't in a file of ours (made at run time, say)."""
    if not getattr(value, "__module__", "").startswith("dynamo."):
        return None
    body: Sequence[ast.stmt] = _tree(value.__module__).body
    node: ast.ClassDef | Function | None = None
    for name in value.__qualname__.split("."):
        node = next(
            (statement for statement in _named(body) if statement.name == name and not _is_overload(statement)), None
        )
        if node is None:
            return None
        body = node.body
    return node


def overloads_of(value: Any) -> list[Function]:
    """Return the typed forms of a function of a module, where it has several."""
    if not getattr(value, "__module__", "").startswith("dynamo."):
        return []
    nodes = _named(_tree(value.__module__).body)
    return [
        node for node in nodes
        if isinstance(node, _FUNCTIONS) and node.name == value.__qualname__ and _is_overload(node)
    ]  # fmt: skip


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


def _named(body: Sequence[ast.stmt]) -> Iterator[ast.ClassDef | Function]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from _named([*node.body, *node.orelse])


def _is_overload(node: ast.ClassDef | Function) -> bool:
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


def parameters(node: Function, *, method: bool = False) -> list[str]:
    """Return `a: int`, `b: str = 'x'`, `*`, …, as they are written; of a method without its first one."""
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + [*given.defaults]
    parameters = [_parameter(argument, default) for argument, default in zip(plain, defaults, strict=True)]
    if given.posonlyargs:
        parameters.insert(len(given.posonlyargs), "/")
    if method and not _decorated(node, "staticmethod"):
        parameters = parameters[1:]
    if given.vararg is not None:
        parameters.append("*" + _parameter(given.vararg, None))
    elif given.kwonlyargs:
        parameters.append("*")
    parameters += [
        _parameter(argument, default) for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg is not None:
        parameters.append("**" + _parameter(given.kwarg, None))
    return parameters


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation is not None else ""
    if default is None:
        return argument.arg + kind
    return f"{argument.arg}{kind} = {ast.unparse(default)}" if kind else f"{argument.arg}={ast.unparse(default)}"


def signature(node: Function, *, name: str = "", method: bool = False, width: int = 0) -> str:
    """Return `name(a: int, b: str = 'x') -> bool`; where that is longer than `width`, one parameter a line."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    called = name or node.name
    given = parameters(node, method=method)
    line = f"{called}({', '.join(given)}){returns}"
    if not width or len(line) <= width:
        return line
    return f"{called}(\n" + "".join(f"    {parameter},\n" for parameter in given) + f"){returns}"


def _decorated(node: Function, name: str) -> bool:
    return any(ast.unparse(decorator).rpartition(".")[2] == name for decorator in node.decorator_list)


def belongs_to_class(node: Function) -> bool:
    """Tell whether it is called on the class, not on an object."""
    return _decorated(node, "classmethod") or _decorated(node, "staticmethod")


def is_property(node: Function) -> bool:
    """Read without being called."""
    return _decorated(node, "property") or _decorated(node, "cached_property")


def constructor(node: ast.ClassDef) -> Function | None:
    """Return its own `__init__`."""
    return next(
        (statement for statement in node.body if isinstance(statement, _FUNCTIONS) and statement.name == "__init__"),
        None,
    )


def members(node: ast.ClassDef) -> list[Function]:
    """Return its public methods and properties, in their order, without setters."""
    return [
        statement for statement in node.body
        if isinstance(statement, _FUNCTIONS) and not statement.name.startswith("_")
        and not any(_decorated(statement, word) for word in ("setter", "deleter", "overload"))
    ]  # fmt: skip


def fields(node: ast.ClassDef) -> list[Field]:
    """Return the public fields of the class, and what its `__init__` sets and says something of."""
    fields = list(_fields(node.body, ""))
    made = constructor(node)
    if made is not None:
        fields += [field for field in _fields(made.body, "self.") if field.doc]
    return [field for field in fields if not field.name.startswith("_") and not field.kind.startswith("ClassVar")]


def constant(module: str, name: str) -> Field | None:
    """Return what a module assigns to a name."""
    return next((field for field in _fields(_tree(module).body, "") if field.name == name), None)


def _fields(body: Sequence[ast.stmt], before: str) -> Iterator[Field]:
    for at, node in enumerate(body):
        target: ast.expr
        if isinstance(node, ast.AnnAssign):
            target, kind, value = node.target, ast.unparse(node.annotation), node.value
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, kind, value = node.targets[0], "", node.value
        else:
            continue
        name = ast.unparse(target)
        if not name.startswith(before) or "." in name.removeprefix(before):
            continue
        default = "" if value is None else ast.unparse(value)
        yield Field(name.removeprefix(before), kind, default, _text_after(body, at))


def _text_after(body: Sequence[ast.stmt], at: int) -> str:
    after = body[at + 1] if at + 1 < len(body) else None
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return inspect.cleandoc(after.value.value)
    return ""
