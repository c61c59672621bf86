"""Images for a server behind engine `openai`, over a whole frontend: passed on in text, as the frontend read them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from tests.frontend.images.samples import data_url, gif, part, png
from tests.worker.chain_model import write_gguf
from tests.worker.engines.openai.scripted_server import ScriptedServer, answer

from dynamo.frontend.images import loading
from dynamo.frontend.images.fetch import ImageFetcher
from dynamo.runtime import DistributedRuntime
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.main import load_model
from dynamo.worker.settings import WorkerSettings

CHAT = "/v1/chat/completions"
TEXT = {"type": "text", "text": "What is this?"}
Within = Callable[..., Any]


class Upstream(ScriptedServer):
    """A server that answers chats with two tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.replies[CHAT] = (200, answer(2))

    def shown(self) -> list[str]:
        """The URLs of the images in the last request."""
        contents = [message["content"] for message in self.bodies[-1]["messages"]]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
def passing(site: Any, within: Within, upstream: Upstream) -> Iterator[Any]:
    """A frontend whose model `m` is that server's, asked in text."""
    with behind(site, within, upstream, images=True) as whole:
        yield whole


@contextlib.contextmanager
def behind(site: Any, within: Within, upstream: Upstream, path: str = "", **more: Any) -> Iterator[Any]:
    """A frontend before a worker before the server, until the test is over."""

    async def start() -> tuple[Any, DistributedRuntime]:
        await upstream.__aenter__()
        arguments = json.dumps({"url": upstream.url, "check_secs": 0, **more})
        settings = WorkerSettings(engine="openai", model_name="m", engine_args=arguments, model_path=path)
        model = load_model(settings)
        runtime = await DistributedRuntime.in_memory(site.world)
        return await serve_engine(runtime, create_engine(settings, model), model, settings), runtime

    async def stop() -> None:
        await serving.stop(1.0)
        await runtime.shutdown(0)
        await upstream.__aexit__()

    serving, runtime = site.run(start())
    try:
        within("it is routed to", lambda: runtime.id in site.instances())
        yield site
    finally:
        site.run(stop())


def ask(site: Any, *content: Any, **more: Any) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": list(content)}], **more}
    return site.post(CHAT, body)


def test_a_chat_with_images(passing: Any, upstream: Upstream) -> None:
    """Each choice shows the server all of them, by what their bytes are; usage is the server's."""
    wrong = {"type": "image_url", "image_url": data_url(gif(), "image/png"), "uuid": "x"}
    reply = ask(passing, part(png()), TEXT, wrong, n=2)
    assert reply.status_code == 200, reply.text
    assert [choice["message"]["content"] for choice in reply.json()["choices"]] == ["hi", "hi"]
    assert reply.json()["usage"]["completion_tokens"] == 4
    assert upstream.shown() == [data_url(png()), data_url(gif(), "image/gif")]
    assert upstream.bodies[0]["messages"] == upstream.bodies[1]["messages"]
    with passing.client() as client:
        (model,) = client.models.list().data
    assert (model.model_extra or {})["input_modalities"] == ["text", "image"]


def test_the_other_apis(passing: Any, upstream: Upstream) -> None:
    """Responses and Messages, also where an image is a tool's result."""
    shown: Any = [{"role": "user", "content": [
        {"type": "input_image", "image_url": data_url(png()), "detail": "low"}, {"type": "input_text", "text": "?"},
    ]}]  # fmt: skip
    with passing.client() as client:
        assert client.responses.create(model="m", input=shown).output_text == "hi"
        with pytest.raises(openai.BadRequestError, match="takes text"):
            client.responses.input_tokens.count(model="m", input=shown)
    assert upstream.shown() == [data_url(png())]
    source = {"type": "base64", "media_type": "image/png", "data": data_url(png(9, 9)).partition(",")[2]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]}
    turns: Any = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
        {"role": "user", "content": [result]},
    ]
    with anthropic.Anthropic(base_url=passing.url, api_key="any", max_retries=0, timeout=20) as client:
        client.messages.create(model="m", max_tokens=9, messages=turns)
    assert upstream.shown() == [data_url(png(9, 9))]


REFUSED: list[tuple[list[Any], str]] = [
    ([{"type": "image_url", "image_url": {"url": "http://169.254.169.254/x.png"}}], "unsupported_value"),
    ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "unsupported_value"),
    ([part(b"hello")], "invalid_image"),
    ([part(png())] * 33, "too_many_images"),
    ([part(png() + bytes(2 << 20))], "image_too_large"),
    ([{"type": "video_url", "video_url": {"url": "http://169.254.169.254/x"}}], "unsupported_value"),
]


def test_what_no_server_sees(make_site: Any, within: Within, upstream: Upstream) -> None:
    """A 400 of the frontend's own; images are bounded together, once for each choice."""
    with behind(make_site(image_max_mb=1, body_limit_mb=8), within, upstream, images=True) as site:
        for content, code in REFUSED:
            reply = ask(site, *content)
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, code), reply.text
        large = png() + bytes(700_000)
        assert ask(site, part(large), n=2).status_code == 200
        seen = len(upstream.bodies)
        reply = ask(site, part(large), n=30)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n"), reply.text
        assert len(upstream.bodies) == seen == 2


def test_what_was_fetched_is_passed_on_as_bytes(
    make_site: Any, within: Within, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frontend asks a public address; the server is shown what came, and no URL."""

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host == "images.test" else ["10.0.0.1"]

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + png(56, 56))
        writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(send, "127.0.0.1", 0)

    async def stop() -> None:
        pictures.close()

    monkeypatch.setattr(loading, "ImageFetcher", partial(ImageFetcher, resolve, lambda address: address == "127.0.0.1"))
    with behind(make_site(image_fetch=True), within, upstream, images=True) as site:
        pictures = site.run(start())
        port = pictures.sockets[0].getsockname()[1]
        for host, status in (("images.test", 200), ("inner.test", 400)):
            url = {"type": "image_url", "image_url": {"url": f"http://{host}:{port}/x"}}
            assert ask(site, url).status_code == status
        assert len(upstream.bodies) == 1
        assert upstream.shown() == [data_url(png(56, 56))]
        site.run(stop())


def test_who_takes_none_says_what_would(make_site: Any, within: Within, tmp_path: Path) -> None:
    """By token ids, and in text unless its user said so."""
    ways: tuple[tuple[str, dict[str, Any], str], ...] = (
        (str(write_gguf(tmp_path)), {"api": "vllm"}, "in text mode passes them on, without --model-path"),
        ("", {}, "the worker's engine argument images"),
    )
    for path, more, hint in ways:
        server = Upstream()
        with behind(make_site(), within, server, path, **more) as site:
            error = ask(site, TEXT, part(png())).json()["error"]
            assert (error["code"], error["param"]) == ("unsupported_value", "messages[0].content[1]")
            assert "'m' takes no images" in error["message"]
            assert hint in error["message"]
            assert not server.bodies
