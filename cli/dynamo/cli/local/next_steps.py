"""What `dynamo up` prints once a pipeline serves: model, URL, and a curl line that works when pasted."""

from __future__ import annotations

import asyncio
import json
import shlex
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

_LISTED_WITHIN = 10.0
_ASK_EVERY = 0.1
_QUESTIONS = "Question: capital of France? Answer: Paris. Question: capital of Germany? Answer:"
"""A base model continues the pattern; asked plainly it rambles."""


class Served(NamedTuple):
    """A model as the frontend lists it."""

    name: str
    chat: bool = True
    vectors: bool = False
    """It makes nothing but vectors."""
    base: bool = False
    """It has no chat template: it continues text, and chats badly."""
    console: bool = False
    """Its frontend has a page for browsers."""
    system: bool = False
    """Its frontend shows metrics and the API's description to whoever can ask it."""


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
            served = as_served(model)
            base = served.chat and await asyncio.to_thread(_is_base, url, served.name)
            return await _with_pages(served._replace(base=base), url)
        await asyncio.sleep(_ASK_EVERY)
    return Served(expected) if stopped() else await _with_pages(Served(expected), url)


async def _with_pages(served: Served, url: str) -> Served:
    console, system = await asyncio.gather(*(asyncio.to_thread(ask, url) for ask in (has_console, has_system_routes)))
    return served._replace(console=console, system=system)


def _models(url: str) -> list[dict[str, Any]]:
    try:
        return list(_get(f"{url}/v1/models")["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_base(url: str, name: str) -> bool:
    """Return whether a model has a tokenizer of its own and no chat template.

    What echoes or simulates has the tokenizer of bytes, and no pattern to continue; engines that take text show none.
    """
    from dynamo.llm.tokenizer.byte_level import ByteTokenizer

    try:
        about = _get(f"{url}/tokenizer_info?{urllib.parse.urlencode({'model': name})}")
    except (OSError, ValueError):
        return False
    if not isinstance(about, dict) or about.get("tokenizer_class") == ByteTokenizer.__name__:
        return False
    return "chat_template" in about and about["chat_template"] is None


def has_console(url: str) -> bool:
    """Tell whether a frontend has a page for browsers."""
    try:
        with _open(urllib.request.Request(f"{url}/", headers={"accept": "text/html"})) as answer:
            return str(answer.headers.get_content_type()) == "text/html"
    except (OSError, ValueError):
        return False


def has_system_routes(url: str) -> bool:
    """Tell whether a frontend shows its metrics and its API's description there, without a key."""
    try:
        with _open(f"{url}/version"):
            return True
    except (OSError, ValueError):
        return False


def _get(url: str) -> Any:
    with _open(url) as answer:
        return json.load(answer)


def _open(asked: str | urllib.request.Request) -> Any:
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=5)


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
    if served.console:
        yield f"  console {url}/"
    if served.system:
        yield f"  more   {url}/docs (the API), {url}/metrics"
    yield ""
    yield curl(served, url)
    yield ""


def curl(served: Served, url: str) -> str:
    """Return one line for a shell, quoted for whatever the model is called."""
    if served.vectors:
        return _line(f"{url}/v1/embeddings", {"model": served.name, "input": "Hello!"})
    body: dict[str, Any]
    if served.base:
        body = {"model": served.name, "prompt": _QUESTIONS, "max_tokens": 2, "temperature": 0}
        return _line(f"{url}/v1/completions", body)
    body = {"model": served.name, "max_tokens": 64, "stream": True}
    path = "chat/completions" if served.chat else "completions"
    body |= {"messages": [{"role": "user", "content": "Hello!"}]} if served.chat else {"prompt": "Hello, my name is"}
    return _line(f"{url}/v1/{path}", body)


def _line(url: str, body: dict[str, Any]) -> str:
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl -N {shlex.quote(url)} -H 'content-type: application/json' -d {data}"
