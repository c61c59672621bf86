"""Writes docs/reference/python.md out of the docstrings: `make generate` writes it again.

What is public is what `__all__` of these packages says; a name that is added there appears here by itself. Objects
are found by importing them, as programs do (so that aliases and lazy names are what they are), and described by their
source (`python_source`): annotations and defaults as they were written, the same with every Python. A documentation
tool such as griffe reads both, too, but doesn't follow names that a package imports when they are first used.
"""

from __future__ import annotations

import ast
import enum
import importlib
import importlib.util
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from docs.generate import python_source as source
from docs.generate.compatibility import python_llm, runtime_names
from docs.generate.markdown import anchor, prose
from docs.generate.python_start import NAMES

from dynamo.runtime.process.legacy_flags import REFUSED

PACKAGES: Final = ("dynamo.runtime", "dynamo.llm", "dynamo.llm.exceptions", "dynamo.worker")
"""Those that are there and have an `__all__` are told."""
TITLE: Final = """# Python reference

Made from the docstrings by `make generate`; don't edit it by hand.

The public names of the packages below: their signatures, what they say of themselves, and the module that has them.
Import them from the package (`from dynamo.runtime import Client`); modules may move. A file of yours as an engine
needs none of these: [engines/python.md](../how-to/serve/engines/python.md). A name whose errors are not told raises
what its arguments cause; all that cross the network are a `DynamoException`.
"""
OLDER: Final = """## Names for older versions

Programs written for earlier versions of NVIDIA Dynamo use these; new programs don't need them. Some only say what to do
instead. [Python names](compatibility/python.md) has the state of every name.
"""
_ELSEWHERE: Final = "See the module."
_WIDTH: Final = 110


def render() -> str:
    """Write the whole page."""
    packages = {name: list(_public(name)) for name in PACKAGES if _exports(name)}
    older = {name for rows in (runtime_names.rows(), python_llm.rows()) for name in _older(rows)}
    titles: dict[int, str] = {}
    for package, names in packages.items():
        for name, value in names:
            if _is_home(value, name):
                titles.setdefault(id(value), f"{package}.{name}")
    parts = [TITLE, *_start()]
    for package, names in packages.items():
        current = [(name, value) for name, value in names if name not in older]
        parts += [f"## {package}\n", _doc(importlib.import_module(package)), _contents(package, current)]
        parts += [text for name, value in current for text in _entry(f"{package}.{name}", value, titles)]
    parts += [OLDER]
    for package, names in packages.items():
        former = [(name, value) for name, value in names if name in older]
        parts += [_contents(package, former)] if former else []
        parts += [text for name, value in former for text in _entry(f"{package}.{name}", value, titles)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def _older(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the names that are refused, or that the newest NVIDIA Dynamo doesn't have."""
    for name, versions, state, *_ in rows:
        if state == REFUSED or "C" not in versions:
            yield name.strip("`")


def _start() -> Iterator[str]:
    """Yield the names that a new user needs, each with its arguments, result, errors and an example."""
    yield "## Start here\n"
    yield "".join(f"- [`{_short(name.path)}`](#{anchor(_short(name.path))})\n" for name in NAMES)
    for name in NAMES:
        yield f"### {_short(name.path)}\n"
        yield f"Of `{'.'.join(name.path.split('.')[:2])}`.\n"
        yield from (f"```python\n{text}\n```\n" for text in _signatures(name.path))
        yield _listed("Args", name.args)
        yield prose(f"*Returns:* {name.returns}") + "\n"
        yield _listed("Raises", name.raises)
        yield f"Example:\n\n```python\n{name.example}\n```\n"


def _short(path: str) -> str:
    return path.split(".", 2)[2]


def _listed(title: str, texts: Mapping[str, str]) -> str:
    items = "\n".join(prose(f"- `{name}`: {text}", indent="  ") for name, text in texts.items())
    return f"*{title}:*\n\n{items}\n" if items else ""


def found(path: str) -> Any:
    """Return what a path such as `dynamo.runtime.Client.direct` names."""
    package, _, names = path.partition(".")[2].partition(".")
    value: Any = importlib.import_module(f"dynamo.{package}")
    for name in names.split("."):
        value = getattr(value, name)
    return value


def _signatures(path: str) -> Iterator[str]:
    """Yield the forms in which it is called: the overloads, else the one that there is."""
    value, name = found(path), _short(path)
    node = source.node_of(value)
    single = source.constructor(node) if isinstance(node, ast.ClassDef) else node
    forms = source.overloads_of(value) or ([] if single is None else [single])
    for form in forms:
        what = "async " if isinstance(form, ast.AsyncFunctionDef) else ""
        method = isinstance(node, ast.ClassDef) or "." in name
        yield what + source.signature(form, name=name, method=method, width=_WIDTH).removesuffix(" -> None")


def _exports(package: str) -> bool:
    try:
        known = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
    return known and bool(getattr(importlib.import_module(package), "__all__", ()))


def _public(package: str) -> Iterator[tuple[str, Any]]:
    module = importlib.import_module(package)
    for name in sorted(module.__all__, key=str.lower):
        yield name, getattr(module, name)


def _is_home(value: Any, name: str) -> bool:
    """Tell whether it is no alias: it is called so itself."""
    return getattr(value, "__name__", name) == name


def _contents(package: str, names: Iterable[tuple[str, Any]]) -> str:
    return prose(", ".join(f"[`{name}`](#{anchor(f'{package}.{name}')})" for name, _ in names))


def _entry(title: str, value: Any, titles: dict[int, str]) -> Iterator[str]:
    yield f"### {title}\n"
    home = titles.get(id(value), title)
    if home != title and inspect.isroutine(value) | inspect.isclass(value):
        yield f"The same as [`{home}`](#{anchor(home)}).\n"
        return
    node = source.node_of(value) if inspect.isroutine(value) or inspect.isclass(value) else None
    if isinstance(node, ast.ClassDef):
        yield from _class(value, node, titles)
    elif node is not None:
        for form in source.overloads_of(value) or [node]:
            what = "async " if isinstance(form, ast.AsyncFunctionDef) else ""
            yield f"```python\n{what}{source.signature(form, width=_WIDTH)}\n```\n"
        yield _doc(value)
        yield _module(value)
    else:
        yield from _constant(title, value)


def _constant(title: str, value: Any) -> Iterator[str]:
    """Yield what is neither a function nor a class of ours: a type alias, a number, a class made elsewhere."""
    package, _, name = title.rpartition(".")
    home = f"{package}.{vars(importlib.import_module(package)).get('_HOMES', {}).get(name, '')}".rstrip(".")
    importlib.import_module(home)
    assigned = source.constant(home, name)
    if assigned is None:
        yield _doc(value)
        return
    yield f"```python\n{name} = {assigned.default}\n```\n"
    yield assigned.doc and assigned.doc + "\n"
    yield f"In `{home}`."


def _class(cls: type[Any], node: ast.ClassDef, titles: dict[int, str]) -> Iterator[str]:
    made = source.constructor(node)
    if made is not None:
        call = source.signature(made, name=cls.__name__, method=True, width=_WIDTH).removesuffix(" -> None")
        yield f"```python\n{call}\n```\n"
    yield _doc(cls)
    bases = [titles[id(base)] for base in cls.__bases__ if id(base) in titles]
    yield _module(cls) + "".join(f" A [`{base}`](#{anchor(base)})." for base in bases)
    fields = [field for owner in _own(cls, titles) for field in source.fields(owner)]
    if fields:
        yield _fields(fields, issubclass(cls, enum.Enum))
    members = {member.name: member for owner in reversed(_own(cls, titles)) for member in source.members(owner)}
    if members:
        yield "\n".join(_member(cls.__name__, member) for member in members.values())


def _own(cls: type[Any], titles: dict[int, str]) -> list[ast.ClassDef]:
    """Return the class, and those of its bases that are nobody else's entry."""
    nodes = [source.node_of(base) for base in cls.__mro__ if base is cls or id(base) not in titles]
    return [node for node in nodes if isinstance(node, ast.ClassDef)]


def _fields(fields: Iterable[source.Field], members: bool) -> str:
    head = "| member | value | |" if members else "| field | type | default | |"
    rows = (
        _row([f"`{row.name}`", *([] if members else [_code(row.kind)]), _code(row.default), row.doc]) for row in fields
    )
    return f"{head}\n|{' --- |' * (head.count('|') - 1)}\n" + "".join(rows)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _member(owner: str, node: source.Function) -> str:
    doc = inspect.cleandoc(ast.get_docstring(node) or "")
    if source.is_property(node):
        head = f"`{node.name}`" + (f" `-> {ast.unparse(node.returns)}`" if node.returns is not None else "")
    else:
        what = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
        name = f"{owner}.{node.name}" if source.belongs_to_class(node) else node.name
        head = f"`{what}{source.signature(node, name=name, method=True)}`"
    first, *rest = doc.split("\n\n")
    said = f": {' '.join(first.split())}" if first else ""
    return prose(f"- {head}{said}", indent="  ") + "".join("\n\n" + _indented(paragraph) for paragraph in rest)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else line for line in text.splitlines())


def _doc(value: Any) -> str:
    """Return its docstring; what it leaves to its module is the module's."""
    doc = inspect.cleandoc(value.__doc__ or "")
    if doc.startswith(_ELSEWHERE):
        module = inspect.cleandoc(inspect.getmodule(value).__doc__ or "")
        doc = f"{module}\n\n{doc.removeprefix(_ELSEWHERE).strip()}".rstrip()
    return doc + "\n" if doc else ""


def _module(value: Any) -> str:
    return f"In `{value.__module__}`."
