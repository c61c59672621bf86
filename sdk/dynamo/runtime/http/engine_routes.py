"""Routes that a program gives its system server: `POST /engine/<route>` with a JSON object, as NVIDIA Dynamo has them.

For whoever runs an engine: put it to sleep, wake it, profile it. Off with the system server. `system_server.py` takes
them from this machine only, unless told otherwise. A browser is refused: a page of somebody else's could reach a port
here.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from dynamo.runtime.errors import DynamoException, InvalidArgument

log = logging.getLogger(__name__)

PREFIX: Final = "/engine/"
SECONDS: Final = 600.0
"""That a callback may take: an engine that goes to sleep moves its weights."""
AT_ONCE: Final = 16
_JSON: Final = "application/json"
_NAME: Final = re.compile(r"[A-Za-z0-9][\w./-]{0,127}")

Answer = tuple[int, str, bytes]
"""Status, content type, body."""
Callback = Callable[[dict[str, Any]], Awaitable[Any] | Any]


class EngineRoutes:
    """The routes of one process."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Callback] = {}
        self._open = 0

    @property
    def names(self) -> list[str]:
        return sorted(self._callbacks)

    def register(self, name: str, callback: Callback) -> None:
        """Serve `/engine/<name>`; a later callback replaces an earlier one. `InvalidArgument`: no usable name."""
        route = name.removeprefix(PREFIX).strip("/")
        if not _NAME.fullmatch(route):
            raise InvalidArgument(
                f"the name of an engine route has letters, digits, '-', '_', '.', '/': {name!r} has others"
            )
        self._callbacks[route] = callback

    async def answer(self, method: str, path: str, headers: Mapping[bytes, bytes], body: bytes) -> Answer:
        """Call what is registered for `path`; every failure is an answer."""
        name = path.removeprefix(PREFIX)
        callback = self._callbacks.get(name)
        if callback is None:
            known = ", ".join(self.names) or "none"
            return _error(404, "Route not found", f"{path} is not registered; engine routes here: {known}")
        if method != "POST":
            return _error(405, "Method not allowed", f"{path} answers POST only")
        if b"origin" in headers:
            return _error(403, "Forbidden", "engine routes are not for web pages")
        try:
            given = json.loads(body) if body.strip() else {}
        except ValueError as error:
            return _error(400, "Bad request", f"the body is no JSON: {error}")
        except RecursionError:
            return _error(400, "Bad request", "the body is nested too deeply")
        if not isinstance(given, dict):
            return _error(400, "Bad request", "the body must be a JSON object")
        if self._open >= AT_ONCE:
            return _error(503, "Busy", f"{AT_ONCE} calls of engine routes are open already")
        self._open += 1
        try:
            return await self._call(name, callback, given)
        finally:
            self._open -= 1

    async def _call(self, name: str, callback: Callback, given: dict[str, Any]) -> Answer:
        try:
            async with asyncio.timeout(SECONDS):
                answer = callback(given)
                if inspect.isawaitable(answer):
                    answer = await answer
            return 200, _JSON, json.dumps({} if answer is None else answer).encode()
        except TimeoutError:
            return _error(504, "Timeout", f"{name} took longer than {SECONDS:g} s")
        except InvalidArgument as error:
            return _error(400, "Bad request", error.message)
        except Exception as error:  # whatever an engine raises is the answer
            log.exception("engine route %s failed", name)
            text = error.message if isinstance(error, DynamoException) else f"{type(error).__name__}: {error}"
            return _error(500, "Engine route failed", text)


def _error(status: int, error: str, message: str) -> Answer:
    return status, _JSON, json.dumps({"error": error, "message": message}).encode()
