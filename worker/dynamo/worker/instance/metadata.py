"""`/v1/metadata` of a worker's system server: what it serves, and the model's small files for who needs them by HTTP.

Our own frontends fetch files over the bus; the paths are those of NVIDIA Dynamo, whose frontends come here.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from dynamo.llm import LocalModel, ModelCard
from dynamo.runtime.endpoint import Served
from dynamo.runtime.http.engine_routes import Answer

ROUTE: Final = "/v1/metadata"
_BASE: Final = "_base"
_JSON: Final = "application/json"


def slug(name: str) -> str:
    """Return a model's name as one part of a path."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-") or "model"


class Metadata:
    """Known from the moment on that `serves` was called."""

    def __init__(self, model: LocalModel, routes: Callable[[], list[str]]) -> None:
        self._model, self._routes = model, routes
        self._served: Served | None = None
        self._card: ModelCard | None = None

    def serves(self, served: Served, card: ModelCard) -> None:
        self._served, self._card = served, card

    async def answer(self, method: str, path: str, _headers: Mapping[bytes, bytes], _body: bytes) -> Answer:
        """Answer requests of the route itself and of everything below it."""
        if method not in ("GET", "HEAD"):
            return _told(405, {"error": "Method not allowed", "message": f"{path} answers GET only"})
        if self._served is None or self._card is None:
            return _told(503, {"error": "Not ready", "message": "the engine is still being loaded"})
        if path.rstrip("/") == ROUTE:
            return _told(200, self._description(self._served, self._card))
        prefix = self._prefix(self._served, self._card)
        if path.startswith(prefix):
            return await self._file(self._card, unquote(path.removeprefix(prefix)))
        return _told(404, {"error": "Route not found", "message": f"{path} is not served here; try {ROUTE}"})

    def _prefix(self, served: Served, card: ModelCard) -> str:
        where = "/".join(quote(part, safe="") for part in served.path)
        return f"{ROUTE}/{where}/{slug(card.name)}/{_BASE}/"

    def _description(self, served: Served, card: ModelCard) -> dict[str, Any]:
        prefix = self._prefix(served, card)
        return {
            "instance_id": served.instance_id,
            "endpoint": str(served.path),
            "model": card.name,
            "card": card.to_dict(),
            "figures": dict(served.figures),
            "files": {role: f"{prefix}{quote(ref.name, safe='')}" for role, ref in card.files.items()},
            "engine_routes": self._routes(),
        }

    async def _file(self, card: ModelCard, name: str) -> Answer:
        ref = next((ref for ref in card.files.values() if ref.name == name), None)
        path = self._model.files.get(ref.digest) if ref is not None else None
        if path is None:
            known = ", ".join(sorted(ref.name for ref in card.files.values())) or "none"
            return _told(404, {"error": "File not found", "message": f"{name!r} is none of its files: {known}"})
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            return _told(500, {"error": "File can't be read", "message": f"{name}: {error.strerror}"})
        return 200, _JSON if name.endswith(".json") else "application/octet-stream", data


def _told(status: int, body: Mapping[str, Any]) -> Answer:
    return status, _JSON, json.dumps(body).encode()
