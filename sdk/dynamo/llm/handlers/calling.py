"""How a user's `generate` is called: with the request alone, or with its context, too. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from dynamo.runtime.context import Context

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def passes_context(generate: Callable[..., Any]) -> str:
    """`positional`, `keyword` or empty: a parameter named `context`, or a second one that must be given."""
    try:
        parameters = list(inspect.signature(generate).parameters.values())
    except (TypeError, ValueError):
        return ""
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    if len(positional) >= 2 and (positional[1].name == "context" or positional[1].default is inspect.Parameter.empty):
        return "positional"
    named = any(p.name == "context" and p.kind is not inspect.Parameter.POSITIONAL_ONLY for p in parameters[1:])
    return "keyword" if named else ""


def call(generate: Callable[..., Any], passes: str, request: Any, context: Context) -> Any:
    """What `generate` returns; `passes` is what `passes_context` said of it."""
    if passes == "positional":
        return generate(request, context)
    if passes:
        return generate(request, context=context)
    return generate(request)
