"""NVIDIA Dynamo's native module: what programs of all its versions import from `dynamo._core`.

Its names are those of `dynamo.llm` and `dynamo.runtime`, which today's programs import them from; they are looked up
there when they are first used. A name that is in neither raises an `ImportError` that says what to use instead.
"""

from __future__ import annotations

import importlib

import dynamo.llm
import dynamo.runtime

__all__ = ["AsyncResponseStream", "get_reasoning_parser_names", "get_tool_parser_names", "log_message"]
__all__ += dynamo.llm.__all__
__all__ += dynamo.runtime.__all__

_HOMES = {"AsyncResponseStream": ("dynamo.runtime", "ItemStream")}
_OWN = ("get_reasoning_parser_names", "get_tool_parser_names", "log_message")


def __getattr__(name):
    if name in _OWN:
        home, there = "dynamo._core.functions", name
    elif name in _HOMES:
        home, there = _HOMES[name]
    else:
        home, there = _home_of(name), name
    value = globals()[name] = getattr(importlib.import_module(home), there)
    return value


def _home_of(name):
    for package in (dynamo.llm, dynamo.runtime):
        if name in package.__all__:
            return package.__name__
    if not name.startswith("__"):
        # An ImportError keeps its sentence through `from dynamo._core import …`, an AttributeError doesn't.
        instead = importlib.import_module("dynamo._core.unsupported")
        if (sentence := instead.sentence(name)) is not None:
            raise ImportError(sentence)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
