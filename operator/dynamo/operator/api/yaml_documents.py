"""YAML documents with the line of every field, read the way `kubectl` reads them.

Stricter than plain PyYAML where that would hide a mistake (duplicate keys, keys that are
no text), and bounded, so that a file of nested aliases can't eat the machine. Values that
are null vanish, as the API server does it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from dynamo.operator.api.shown import shown, shown_message, shown_text

MAX_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 64
MAX_DOCUMENTS = 2_000


class YamlError(Exception):
    """A text that isn't YAML, or is too much of it."""

    def __init__(self, message: str, line: int = 0, path: str = "") -> None:
        super().__init__(message)
        self.message, self.line, self.path = message, line, path


class Note(NamedTuple):
    """A mistake that YAML itself lets pass."""

    path: str
    message: str


@dataclass
class Document:
    """A YAML document with the line of each field."""

    data: Any
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Note] = field(default_factory=list)

    def line_of(self, path: str) -> int:
        """Return the line of a field, or of what would hold it."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, 0)


class _Loader(yaml.SafeLoader):
    """SafeLoader that leaves dates alone: a date in a text field is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_documents(text: str) -> list[Document]:
    """Return every document of a YAML text that isn't empty; raises `YamlError`."""
    if len(text) > MAX_BYTES:
        raise YamlError(f"is larger than {MAX_BYTES >> 20} MB: is it the right file?")
    try:
        return _read(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(f"is not valid YAML: {_reason(error)}", mark.line + 1 if mark else 0) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(f"is not valid YAML: character U+{ord(text[error.position]):04X} isn't allowed", line) from None
    except RecursionError:  # PyYAML's own, before `_Walk` could count
        raise YamlError("is nested too deeply") from None
    except (ValueError, KeyError) as error:  # of a number or a word that PyYAML takes for one
        raise YamlError(f"is not valid YAML: {shown_message(str(error))}") from None


def _reason(error: yaml.MarkedYAMLError) -> str:
    parts = [p for p in (error.context, error.problem) if p]
    hint = " (indent with spaces, not tabs)" if "'\\t'" in (error.problem or "") else ""
    return shown_message(" ".join(parts)) + hint


def _read(text: str) -> list[Document]:
    loader = _Loader(text)
    documents: list[Document] = []
    counted = 0
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                break
            counted += 1
            if counted > MAX_DOCUMENTS:
                line = node.start_mark.line + 1
                raise YamlError(f"has more than {MAX_DOCUMENTS} documents: split it into several files", line)
            document = Document(None)
            _Walk(document).visit(node, "", 0)
            document.data = _without_nulls(loader.construct_document(node))
            if document.data is not None:
                documents.append(document)
    finally:
        loader.dispose()
    return documents


class _Walk:
    """Notes the line of each field and what YAML lets pass; counts, so that aliases can't explode."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes = 0

    def visit(self, node: yaml.Node, path: str, depth: int) -> None:
        self._nodes += 1
        line = node.start_mark.line + 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise YamlError("is nested too deeply or has too many values", line, path.partition("[")[0])
        if node.tag not in _TAGS:
            raise YamlError(
                f"has a value with the YAML tag {shown_text(node.tag)}: only plain values are allowed", line, path
            )
        if isinstance(node, yaml.ScalarNode) and _UNUSABLE.search(node.value):
            raise YamlError("has a NUL or an unpaired surrogate in its text: remove it", line, path)
        self._document.lines.setdefault(path, line)
        if isinstance(node, yaml.MappingNode):
            self._mapping(node, path, depth)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, f"{path}[{index}]", depth + 1)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> None:
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _KEY_TAGS:
                raise YamlError(f"key {_shown_key(key)} is not a string: quote it", line, path)
            child = f"{path}.{key.value}" if path else str(key.value)
            if key.value in seen:
                note = Note(child, f"is given twice (first at line {seen[key.value]}): remove one")
                self._document.problems.append(note)
            seen[key.value] = line
            self._document.lines[child] = line
            self.visit(value, child, depth + 1)


def _shown_key(key: yaml.Node) -> str:
    """Return a key as a sentence quotes it: one that isn't a scalar holds nodes, each with the whole file."""
    if isinstance(key, yaml.ScalarNode):
        return shown(key.value)
    return "that is a mapping" if isinstance(key, yaml.MappingNode) else "that is a list"


_UNUSABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that can be in no argument, variable or file name."""
_KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map"))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return value
