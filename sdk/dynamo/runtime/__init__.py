"""The bottom layer: instances, endpoints, requests and discovery. No word of language models.

Everything public is listed in `__init__.pyi`; what is not, but for `dynamo.runtime.logging`, is not for import
from outside. etcd's and HTTP's libraries are loaded where they are first needed.

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
        if not name.startswith("_"):
            _say_what_is_left_out(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value


def _say_what_is_left_out(name):
    # An ImportError keeps its sentence through `from dynamo.runtime import …`, an AttributeError doesn't.
    unsupported = importlib.import_module(f"{__name__}.unsupported")
    if name in unsupported.LEFT_OUT:
        raise ImportError(unsupported.sentence(name))


def __dir__():
    return sorted({*globals(), *__all__})
