"""Objects as YAML text that every reader takes the same way: the CRD's file and the golden manifests.

YAML 1.1 readers (kubectl among them) see booleans in `y`, `n`, `on` and numbers in `1e3`,
so every text that isn't plainly a word is quoted. No aliases, keys in the order given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_SWITCHES = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = _WORD.fullmatch(value) and value.lower() not in _SWITCHES
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def to_yaml(documents: Iterable[Any]) -> str:
    """Return the documents as one YAML text."""
    return yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20, explicit_start=True
    )
