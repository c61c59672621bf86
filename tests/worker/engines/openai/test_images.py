"""Images that engine `openai` passes on: what the server is shown, and what no server may see."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.frontend.images.samples import gif, png
from tests.worker.chain_model import write_gguf
from tests.worker.engine_rigs import Recorder
from tests.worker.engines.openai.scripted_server import ScriptedServer, answer, engine_over

from dynamo.frontend.images.parts import ImageRef, measured
from dynamo.llm import open_model
from dynamo.llm.protocols import COMPLETION_TOKENS, EOS, ImageInput, TextRequest
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines import create_engine
from dynamo.worker.engines.openai.content_parts import MOST_BYTES
from dynamo.worker.settings import WorkerSettings

CHAT: Final = "/v1/chat/completions"
WITHIN: Final = "http://169.254.169.254/latest"
"""An address that only the server can reach."""
PLACE: Final = {"type": "image_url", "image_url": {}}


def image(data: bytes) -> ImageInput:
    """An image as a frontend sends it."""
    return measured(ImageRef("", "messages"), data, 1 << 30)


def chat(*content: Any, images: list[ImageInput] | None = None, **more: Any) -> TextRequest:
    """A chat of one message."""
    body = {"messages": [{"role": "user", "content": list(content)}], **more}
    return TextRequest(model="m", kind="chat", body=body, images=images)


async def shown(engine: Any, server: ScriptedServer, request: TextRequest) -> Any:
    """The body that the server gets for a request; it travels first."""
    server.replies[CHAT] = (200, answer(2))
    sink = Recorder()
    engine.submit(msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=TextRequest), sink)
    assert await sink.end() == EOS
    assert (sink.extras[-1] or {})[COMPLETION_TOKENS] == 2
    return server.bodies[-1]


async def test_images_stand_where_they_were_sent() -> None:
    """As data URLs of the bytes and their format, between texts and in several messages; how closely is passed on."""
    images = [image(png()), image(gif()), image(png(9, 9))]
    request = chat(
        {"type": "text", "text": "a"}, PLACE, {"type": "image", "image_url": {"detail": "low"}}, images=images
    )
    request.body["messages"] += [{"role": "assistant", "content": "b"}, {"role": "user", "content": [PLACE]}]
    async with ScriptedServer() as server, engine_over(server, images=True) as engine:
        messages = (await shown(engine, server, request))["messages"]
    urls = [f"data:image/{it.format};base64,{base64.b64encode(it.data).decode()}" for it in images]
    assert messages == [
        {"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": urls[0]}},
            {"type": "image_url", "image_url": {"url": urls[1], "detail": "low"}},
        ]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": urls[2]}}]},
    ]  # fmt: skip


SMUGGLED: Final[list[dict[str, Any]]] = [
    {"type": "image_url", "image_url": {"url": WITHIN}, "uuid": "1"},
    {"type": "image", "image": WITHIN, "image_url": WITHIN},
    {"type": "text", "text": "x", "uuid": "1", "image_url": {"url": WITHIN}},
    {"type": "text", "text": "x", "uuid": "1", "video_url": WITHIN, "audio_url": WITHIN, "input_audio": WITHIN},
    {"type": "thinking", "thinking": "x", "image_embeds": WITHIN, "image_pil": WITHIN, "prompt_embeds": WITHIN},
]


@pytest.mark.parametrize("part", SMUGGLED, ids=str)
async def test_no_url_of_a_client_reaches_the_server(part: dict[str, Any]) -> None:
    """Not in an image's place, and not in a text, which vLLM takes for an image where it has a `uuid`."""
    request = chat(part, images=[image(png())] if part["type"].startswith("image") else None)
    async with ScriptedServer() as server, engine_over(server, images=True) as engine:
        body = await shown(engine, server, request)
        (sent,) = body["messages"][0]["content"]
        assert "169.254" not in json.dumps(body)
        assert "uuid" not in sent
        assert sent["type"] in ("text", "thinking") or sent["image_url"]["url"].startswith("data:image/png;base64,")


async def test_vllms_own_options_of_images_stay_here() -> None:
    """By them a client would have images made larger than its frontend let them be."""
    request = chat(PLACE, images=[image(png())], mm_processor_kwargs={"max_pixels": 1 << 60}, media_io_kwargs={"x": {}})
    async with ScriptedServer() as server, engine_over(server, images=True) as engine:
        body = await shown(engine, server, request)
    assert not {"mm_processor_kwargs", "media_io_kwargs"} & body.keys()


def url(value: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": value}}


REFUSED: Final[dict[str, tuple[TextRequest, str]]] = {
    "a URL without bytes": (chat(url(WITHIN)), "not by its URL"),
    "data without a frontend": (chat(url("data:image/png;base64,AA==")), "not by its URL"),
    "more places": (chat(PLACE, PLACE, images=[image(png())]), r"content\[1\]: an image has to come as bytes"),
    "fewer places": (chat(PLACE, images=[image(png())] * 2), "fewer places for images"),
    "sound": (chat({"type": "input_audio", "input_audio": {"data": ""}}), "'input_audio'"),
    "a part of no type": (chat({"image_url": WITHIN}), "not 'None'"),
    "no part": (chat("http"), "texts and images"),
    "too many bytes": (
        chat(PLACE, images=[msgspec.structs.replace(image(png()), data=bytes(MOST_BYTES + 1))]),
        "bytes of images",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused_reaches_no_server(name: str) -> None:
    """A client's mistake, in one sentence; and content of another shape is one, too."""
    request, why = REFUSED[name]
    async with ScriptedServer() as server, engine_over(server, images=True) as engine:
        with pytest.raises(InvalidArgument, match=why):
            engine.submit(request, Recorder())
        with pytest.raises(InvalidArgument, match="a list of parts"):
            engine.submit(TextRequest(model="m", kind="chat", body={"messages": [{"content": PLACE}]}), Recorder())
        assert not server.bodies


async def test_off_unless_it_is_said() -> None:
    """Then a part that is an image is refused, and the worker's record has what would have it taken."""
    async with ScriptedServer() as server, engine_over(server) as engine:
        with pytest.raises(InvalidArgument, match="engine argument images"):
            engine.submit(chat(PLACE, images=[image(png())]), Recorder())
        assert engine._facts(None, None).images is None
        assert not server.bodies


async def test_a_refusal_of_the_server_is_the_clients_mistake() -> None:
    """With its own words, and it stays in routing."""
    async with ScriptedServer() as server, engine_over(server, images=True) as engine:
        server.replies[CHAT] = (400, b'{"error": {"message": "cannot identify image file"}}')
        sink = Recorder()
        engine.submit(chat(PLACE, images=[image(png())]), sink)
        end = await sink.end()
        assert isinstance(end, InvalidArgument)
        assert "cannot identify image file" in str(end)
        assert not engine._watch.availability.failing


def test_token_ids_carry_none(tmp_path: Path) -> None:
    """Said when the worker starts."""
    model = open_model(str(write_gguf(tmp_path)))
    arguments = json.dumps({"url": "http://127.0.0.1:1", "images": True})
    settings = WorkerSettings(engine="openai", engine_args=arguments, model_path=str(model.path))
    with pytest.raises(InvalidArgument, match="leave --model-path away"):
        create_engine(settings, model)
