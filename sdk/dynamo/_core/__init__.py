"""The original's native module: what programs of all ages import from `dynamo._core`.

Its names are those of `dynamo.llm` and `dynamo.runtime`, which today's programs import them from; they are looked up
there when they are first used. A name that is in neither raises an `ImportError` that says what to use instead.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import dynamo.llm
import dynamo.runtime

if TYPE_CHECKING:
    from dynamo._core.functions import get_reasoning_parser_names as get_reasoning_parser_names
    from dynamo._core.functions import get_tool_parser_names as get_tool_parser_names
    from dynamo._core.functions import log_message as log_message
    from dynamo.llm import *  # noqa: F403
    from dynamo.runtime import *  # type: ignore[assignment]  # noqa: F403
    from dynamo.runtime import ItemStream as AsyncResponseStream

__all__ = ["AsyncResponseStream", "get_reasoning_parser_names", "get_tool_parser_names", "log_message"]
__all__ += dynamo.llm.__all__
__all__ += dynamo.runtime.__all__

_HOMES = {"AsyncResponseStream": ("dynamo.runtime", "ItemStream")}
_OWN = ("get_reasoning_parser_names", "get_tool_parser_names", "log_message")

if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _OWN:
            home, there = "dynamo._core.functions", name
        elif name in _HOMES:
            home, there = _HOMES[name]
        else:
            home, there = _home_of(name), name
        found = globals()[name] = getattr(importlib.import_module(home), there)
        return found

    def _home_of(name):
        for package in (dynamo.llm, dynamo.runtime):
            if name in package.__all__:
                return package.__name__
        if not name.startswith("__"):
            # An ImportError keeps its sentence through `from dynamo._core import …`, an AttributeError doesn't.
            instead = importlib.import_module("dynamo._core.instead")
            if (sentence := instead.sentence(name)) is not None:
                raise ImportError(sentence)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
