"""The server of a component with engine `openai`: what its worker is told of it, and on which port it listens. Pure."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from dynamo.operator.api.v1alpha1 import Component, DynamoPipeline, Engine

PORT: Final = 8000
"""Where vLLM listens, and what a server is taken for that says nothing."""
PLACE: Final = "{port}"
_FLAG: Final = "--port"
KEY_VARIABLE: Final = "OPENAI_API_KEY"
"""A component's variable that holds the server's key, unless engineArgs names another."""


def has_sidecar(component: Component) -> bool:
    """Tell whether the server is a container beside the worker's."""
    return component.engine is Engine.OPENAI and component.image is not None


def remarking_components(pipeline: DynamoPipeline) -> frozenset[str]:
    """Return the components whose workers ask a server, and may remark what it says that isn't so."""
    return frozenset(c.name for c in pipeline.spec.components if c.engine is Engine.OPENAI)


def words(component: Component) -> list[str]:
    """Return command and arguments of the server."""
    return [*(component.command or ()), *(component.args or ())]


def port_of(component: Component) -> int:
    """Return the port on which the server listens: of `upstream`, or of its own `--port`."""
    if component.upstream:
        try:
            parts = urlsplit(component.upstream)
            return parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            return PORT
    given = words(component)
    place = _place_of_port(given)
    value = "" if place is None else given[place].removeprefix(_FLAG + "=")
    return int(value) if value.isdecimal() and len(value) < 6 and 0 < int(value) < 65536 else PORT


def _place_of_port(given: list[str]) -> int | None:
    """Return which word holds the port, alone or after the flag."""
    for index, word in enumerate(given):
        if word.startswith(_FLAG + "="):
            return index
        if word == _FLAG and index + 1 < len(given):
            return index + 1
    return None


def _on_any_port(given: list[str]) -> list[str]:
    """Return the words with a port to be picked: on a laptop all replicas share one machine."""
    place = _place_of_port(given)
    if place is None:
        return given
    flag = f"{_FLAG}=" if given[place].startswith(_FLAG) else ""
    return [*given[:place], flag + PLACE, *given[place + 1 :]]


def engine_arguments(component: Component, *, local: bool) -> dict[str, Any]:
    """Return the engine's arguments; for `openai` with the server's address, and its command where the worker has it.

    On a laptop there are no containers: a command does there what the image does in a cluster.
    """
    given = dict(component.engine_args)
    if component.engine is not Engine.OPENAI:
        return given
    given_words = words(component)
    if local and not component.upstream and "url" not in given:
        given_words = _on_any_port(given_words)
    starts = bool(component.command) and (local or not component.image)
    if starts:
        given.setdefault("command", given_words)
    if component.upstream:
        given.setdefault("url", component.upstream)
    elif not (starts and any(PLACE in word for word in given_words)) and (starts or component.image):
        given.setdefault("url", f"http://127.0.0.1:{port_of(component)}/v1")
    if any(variable.name == KEY_VARIABLE for variable in component.env):
        given.setdefault("api_key_env", KEY_VARIABLE)
    return given
