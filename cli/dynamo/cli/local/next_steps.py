"""What `dynamo up` prints once a pipeline serves: model, URL, and a curl line that works when pasted."""

from __future__ import annotations

import asyncio
import json
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

_LISTED_WITHIN = 10.0
_ASK_EVERY = 0.1


class Served(NamedTuple):
    """A model as the frontend lists it."""

    name: str
    chat: bool = True
    vectors: bool = False
    """It makes nothing but vectors."""


def reachable_url(url: str) -> str:
    """Return where to connect to: nobody can connect to 0.0.0.0."""
    split = urlsplit(url)
    if split.hostname in ("0.0.0.0", "::"):
        return urlunsplit(split._replace(netloc=f"127.0.0.1:{split.port}"))
    return url.rstrip("/")


async def served_model(url: str, expected: str, stopped: Callable[[], bool]) -> Served:
    """Return the model as `/v1/models` lists it, waiting a moment until it does; else what the plan says."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _LISTED_WITHIN
    while loop.time() < until and not stopped():
        listed = await asyncio.to_thread(_models, url)
        model = next((m for m in listed if m.get("id") == expected), listed[0] if listed else None)
        if model is not None:
            return as_served(model)
        await asyncio.sleep(_ASK_EVERY)
    return Served(expected)


def _models(url: str) -> list[dict[str, Any]]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/v1/models", timeout=5) as answer:
            return list(json.load(answer)["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def as_served(model: Mapping[str, Any]) -> Served:
    """Return a model as an entry of `/v1/models` describes it."""
    types = model.get("types")
    kinds = types if isinstance(types, list) else ["chat"]
    return Served(str(model.get("id")), "chat" in kinds, kinds == ["embedding"])


def lines(served: Served, url: str, workers: tuple[int, int]) -> Iterator[str]:
    """Yield the lines of the whole greeting."""
    ready, wanted = workers
    missing = "" if ready == wanted else f"   ({ready} of {wanted} workers so far)"
    if not wanted:
        missing = "   (no workers: replicas is 0)"
    yield ""
    yield f"  model  {served.name}{missing}"
    yield f"  url    {url}/v1"
    yield ""
    yield curl(served, url)
    yield ""


def curl(served: Served, url: str) -> str:
    """Return one line for a shell, quoted for whatever the model is called."""
    if served.vectors:
        return _line(f"{url}/v1/embeddings", {"model": served.name, "input": "Hello!"})
    body: dict[str, Any] = {"model": served.name, "max_tokens": 64, "stream": True}
    path = "chat/completions" if served.chat else "completions"
    body |= {"messages": [{"role": "user", "content": "Hello!"}]} if served.chat else {"prompt": "Hello, my name is"}
    return _line(f"{url}/v1/{path}", body)


def _line(url: str, body: dict[str, Any]) -> str:
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl -N {shlex.quote(url)} -H 'content-type: application/json' -d {data}"
