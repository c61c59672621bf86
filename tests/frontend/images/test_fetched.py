"""Images by URL through a whole frontend: off by default, then bounded in time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.frontend.images.samples import png

from dynamo.frontend.images import loading
from dynamo.frontend.images.fetch import ImageFetcher


@pytest.fixture
def fetching(make_site: Any, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A frontend that fetches, whose resolver calls one server here public; it sends `image` after `delay`."""
    state: dict[str, Any] = {"image": png(56, 56), "delay": 0.0, "asked": 0, "waits": False}

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host == "images.test" else ["10.0.0.1"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state["asked"] += 1
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(asyncio.CancelledError):  # Python's own streams don't expect it
            await asyncio.sleep(state["delay"])
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + state["image"])
        writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(answer, "127.0.0.1", 0)

    async def stop() -> None:
        server.close()

    monkeypatch.setattr(loading, "ImageFetcher", partial(ImageFetcher, resolve, lambda address: address == "127.0.0.1"))
    site = state["site"] = make_site(image_fetch=True, image_fetch_timeout_secs=0.5)
    server = site.run(start())
    state["port"] = server.sockets[0].getsockname()[1]
    serve(site)
    yield state
    site.run(stop())


def ask(state: dict[str, Any], *hosts: str) -> Any:
    parts = [{"type": "image_url", "image_url": {"url": f"http://{host}:{state['port']}/{n}"}}
             for n, host in enumerate(hosts)]  # fmt: skip
    body = {"model": "m", "max_tokens": 200, "messages": [{"role": "user", "content": parts}]}
    return state["site"].post("/v1/chat/completions", body)


def test_images_are_fetched_side_by_side(fetching: Any) -> None:
    """Two that take 0.3 s each are there within the 0.5 s that all may take."""
    fetching["delay"] = 0.3
    answer = ask(fetching, "images.test", "images.test")
    assert answer.status_code == 200, answer.text
    assert "I see 2 images" in answer.json()["choices"][0]["message"]["content"]
    assert fetching["asked"] == 2


def test_what_is_not(fetching: Any) -> None:
    """A 400 that names the image, in time: also where others of the request are fine."""
    for host, image, delay, code, said in (
        ("inner.test", png(), 0.0, "invalid_image_url", "no public address"),
        ("images.test", png(), 5.0, "invalid_image_url", "isn't here after 0.5 s"),
        ("images.test", b"<svg/>", 0.0, "invalid_image", "no PNG"),
        ("images.test", bytes(17 << 20), 0.0, "image_too_large", "--image-max-mb"),
    ):
        fetching |= {"image": image, "delay": delay}
        began = time.monotonic()
        error = ask(fetching, "images.test", host).json()["error"]
        assert error["code"] == code
        assert said in error["message"]
        assert time.monotonic() - began < 3
