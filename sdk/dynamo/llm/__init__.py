"""Everything between text and an engine's tokens, and routing by what KV caches hold.

Model cards, tokenising, templates, detokenising; under NVIDIA Dynamo's names its router, index and publishers.

Names are imported when they are first used, so that a part costs only those who need it.
"""

from __future__ import annotations

import importlib

_HOMES = {
    words[3]: words[1].removeprefix(f"{__name__}.")
    for words in map(str.split, __loader__.get_data(f"{__path__[0]}/__init__.pyi").decode().splitlines())
    if words[:1] == ["from"]
}
"""The module of each public name, as `__init__.pyi` says it to type checkers."""

__all__ = sorted(_HOMES)


def __getattr__(name):
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
