"""Images through a whole system with a real vLLM: text and counts are those of `vllm serve` for the same request."""

from __future__ import annotations

import base64
import io
import json
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import anthropic
import httpx
import openai
import pytest
from PIL import Image
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.frontend.images.samples import png
from tests.waiting import eventually
from tests.worker.engine_rigs import PROMPT, VLLM, stock_server
from tests_vllm.images.tiny_vision_model import write
from tests_vllm.programs import PATIENCE, WORKER, Program, client, running
from tests_vllm.servers.test_servers import System

pytestmark = [pytest.mark.servers, pytest.mark.processes]
MOST: Final = 3
"""Images of one prompt, by vLLM's own limit."""
GREEDY: Final[dict[str, Any]] = {"temperature": 0, "max_tokens": 16, "extra_body": {"ignore_eos": True}}
HALF: Final = "\N{REPLACEMENT CHARACTER}"
"""Where an answer ends within a character."""


@pytest.fixture(scope="module")
def seer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model that takes images."""
    return write(tmp_path_factory.mktemp("models") / "seer")


@pytest.fixture(scope="module")
def oracle(seer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """Start `vllm serve` with the same model, and nothing of ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _, _, module, *words = stock_server("vllm", seer, str(port))
    with running(tmp_path_factory.mktemp("oracle"), module, words) as program:
        eventually("it answers", lambda: alive(program, port), PATIENCE, despite=(httpx.HTTPError,))
        yield client(f"http://127.0.0.1:{port}")


def alive(program: Program, port: int) -> bool:
    """Tell whether a stock server answers; fails where it has ended."""
    assert program.popen.poll() is None, program.log.read_text()
    return httpx.get(f"http://127.0.0.1:{port}/health").is_success


@pytest.fixture(scope="module")
def system(
    seer: Path, tmp_path_factory: pytest.TempPathFactory, etcd_server: EtcdServer, nats_server: NatsServer
) -> Iterator[System]:
    """Start a frontend with a worker of vLLM."""
    folder = tmp_path_factory.mktemp("system")
    with System(folder, etcd_server, nats_server, "--router-mode", "kv") as whole:
        whole.join(seer, "vllm", "--extra-engine-args", str(options(folder / "vllm.json")))
        whole.ready()
        yield whole


def options(path: Path) -> Path:
    """Write vLLM's options to a file, and return it."""
    path.write_text(json.dumps({**json.loads(VLLM), "limit-mm-per-prompt": {"image": MOST}}))
    return path


def pixels(mode: str = "RGB", size: tuple[int, int] = (100, 80), seed: int = 1) -> Image.Image:
    """Return an image of random pixels."""
    width, height = size
    return Image.frombytes(mode, size, Random(seed).randbytes(len(mode) * width * height))


def encoded(image: Image.Image, kind: str = "png", **more: Any) -> bytes:
    """Return an image as a file of a format."""
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def shown(*images: bytes, text: str = PROMPT) -> list[Any]:
    """Return a chat that shows images."""
    urls = [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in images]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


FILES: Final[dict[str, Callable[[], bytes]]] = {
    "png": lambda: encoded(pixels()),
    "jpeg": lambda: encoded(pixels(), "jpeg"),
    "webp": lambda: encoded(pixels(), "webp"),
    "gif": lambda: encoded(pixels(), "gif", save_all=True, append_images=[pixels(seed=2)]),
    "clear": lambda: encoded(pixels("RGBA")),
    "grey": lambda: encoded(pixels("L")),
    "grey and clear": lambda: encoded(pixels("LA")),
    "palette": lambda: encoded(pixels().quantize(16), transparency=3),
    "deep": lambda: encoded(Image.frombytes("I;16", (100, 80), Random(1).randbytes(16000))),
    "cmyk": lambda: encoded(pixels("CMYK"), "jpeg"),
    "turned": lambda: encoded(pixels(), "jpeg", exif=turned()),
    "wide": lambda: encoded(pixels(size=(900, 30))),
    "large": lambda: encoded(pixels(size=(640, 480))),
    "tiny": lambda: encoded(pixels(size=(1, 1))),
}


def turned() -> Image.Exif:
    """Return what a camera writes that was held upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.mark.parametrize("name", FILES)
def test_chats_are_vllms_own(system: System, oracle: openai.OpenAI, name: str) -> None:
    """Whole and streamed, text, log probabilities and the prompt's tokens, for each format."""
    messages = shown(FILES[name](), text=f"{name}: {PROMPT}")
    asked: dict[str, Any] = {**GREEDY, "messages": messages, "logprobs": True}
    ours, theirs = (
        asker.chat.completions.create(model=model, **asked) for asker, model in ((system.asker, "tiny"), (oracle, "m"))
    )
    assert said(ours) == said(theirs)
    assert scores(ours) == pytest.approx(scores(theirs), abs=1e-3)
    assert ours.usage.prompt_tokens == theirs.usage.prompt_tokens
    assert ours.usage.completion_tokens == 16
    parts = list(
        system.asker.chat.completions.create(
            model="tiny", **{**asked, "stream": True, "stream_options": {"include_usage": True}}
        )
    )
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices).rstrip(HALF) == said(ours)
    assert parts[-1].usage.prompt_tokens == theirs.usage.prompt_tokens


def said(answer: Any) -> str:
    """Return an answer's text."""
    text: str = answer.choices[0].message.content
    return text.rstrip(HALF)


def scores(answer: Any) -> list[float]:
    """Return the log probabilities of an answer's tokens."""
    return [token.logprob for token in answer.choices[0].logprobs.content]


def test_several_images_and_several_turns(system: System, oracle: openai.OpenAI) -> None:
    """Each image stands where it was sent, between texts and in earlier turns."""
    turns = [
        *shown(encoded(pixels(seed=3)), encoded(pixels(seed=4)), text="Compare."),
        {"role": "assistant", "content": "They differ."},
        *shown(encoded(pixels(seed=5, size=(60, 90)))),
    ]
    turns[0]["content"].insert(1, {"type": "text", "text": "and"})
    ours = system.asker.chat.completions.create(model="tiny", messages=turns, n=2, **GREEDY)
    theirs = oracle.chat.completions.create(model="m", messages=turns, **GREEDY)
    other = system.asker.chat.completions.create(model="tiny", messages=turns[::-1], **GREEDY)
    assert [(choice.message.content or "").rstrip(HALF) for choice in ours.choices] == [said(theirs)] * 2
    assert ours.usage.prompt_tokens == theirs.usage.prompt_tokens
    assert said(ours) != said(other)


def test_the_other_apis_say_the_same(system: System) -> None:
    """`input_image` of Responses and a block of Messages: one text, one count, and that of the routes which count."""
    data = encoded(pixels(seed=6))
    chat = system.asker.chat.completions.create(model="tiny", messages=shown(data), **GREEDY)
    text = base64.b64encode(data).decode()
    told: Any = [
        {"role": "user", "content": [
            {"type": "input_image", "image_url": f"data:image/png;base64,{text}", "detail": "auto"},
            {"type": "input_text", "text": PROMPT},
        ]},
    ]  # fmt: skip
    response = system.asker.responses.create(
        model="tiny", input=told, temperature=0, max_output_tokens=16, extra_body={"ignore_eos": True}
    )
    counted = system.asker.responses.input_tokens.count(model="tiny", input=told)
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text}}
    turns: Any = [{"role": "user", "content": [block, {"type": "text", "text": PROMPT}]}]
    with anthropic.Anthropic(base_url=system.url, api_key="any", max_retries=0, timeout=PATIENCE) as asker:
        message = asker.messages.create(
            model="tiny", max_tokens=16, messages=turns, extra_body={"ignore_eos": True, "temperature": 0}
        )
        tokens = asker.messages.count_tokens(model="tiny", messages=turns).input_tokens
    assert said(chat)
    assert response.usage is not None
    assert response.output_text.rstrip(HALF) == said(chat)
    assert "".join(part.text for part in message.content if part.type == "text").rstrip(HALF) == said(chat)
    usage = message.usage
    spent = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    assert chat.usage.prompt_tokens == response.usage.input_tokens == spent == tokens == counted.input_tokens


def test_the_same_image_is_cached(system: System) -> None:
    """And another one of the same size and text isn't."""
    text = f"Nobody else asks this. {PROMPT * 3}"
    cached = []
    for seed in (7, 8, 7, 8):
        messages = shown(encoded(pixels(seed=seed)), text=text)
        usage = system.asker.chat.completions.create(model="tiny", messages=messages, **GREEDY).usage
        assert usage is not None
        details = usage.prompt_tokens_details
        cached.append((details.cached_tokens or 0) if details is not None else 0)
    assert cached[:2] == [0, 0]
    assert min(cached[2:]) > 32


REFUSED: Final[dict[str, tuple[Callable[[], list[Any]], str]]] = {
    "more than vLLM takes": (lambda: shown(*[encoded(pixels())] * (MOST + 1)), "At most 3 image"),
    "more than the frontend takes": (lambda: shown(*[png()] * 33), "--image-max-count"),
    "half an image": (lambda: shown(encoded(pixels())[:9000]), "can't be decoded"),
    "no image": (lambda: shown(b"hello"), "can't be read"),
    "no shape that is resized": (
        lambda: shown(encoded(pixels(size=(1, 300)))),
        "can't take them: absolute aspect",
    ),
    "too long": (lambda: shown(encoded(pixels()), text=PROMPT * 60), "maximum context length"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_taken_is_the_clients_mistake(system: System, name: str) -> None:
    """A 400 that says why, whole and streamed; the next request is answered."""
    messages, why = REFUSED[name]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=why):
            system.asker.chat.completions.create(model="tiny", messages=messages(), stream=stream, **GREEDY)
    assert said(system.asker.chat.completions.create(model="tiny", messages=shown(encoded(pixels())), **GREEDY))


def test_a_client_that_leaves_frees_its_place(system: System) -> None:
    """A stream with an image that its client closes stops in vLLM."""
    port = system.workers[0].ready()["system_port"]

    def idle() -> bool:
        page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        return 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in page

    asked = {**GREEDY, "messages": shown(encoded(pixels(seed=9))), "max_tokens": 800, "stream": True}
    with system.asker.chat.completions.create(model="tiny", **asked) as parts:
        next(iter(parts))
        eventually("it runs", lambda: not idle())
    eventually("its place is free", idle, 5)


def test_models_without_images_say_who_has_them(
    system: System, oracle: openai.OpenAI, seer: Path, tmp_path: Path
) -> None:
    """Also a stock server behind engine `openai`, asked by token ids and in text: what isn't passed on is a 400."""
    server = json.dumps({"url": str(oracle.base_url)})
    ways: dict[str, tuple[list[str], str]] = {
        "by-ids": (["--model-path", str(seer)], "token ids, which carry no images: a worker in text mode passes them"),
        "by-text": ([], "the worker's engine argument images"),
    }
    for name, (more, hint) in ways.items():
        flags = ["--engine", "openai", "--engine-args", server, "--model-name", name, *more]
        endpoint = ["--endpoint", f"dyn://{system.namespace}.{name}.generate", "--system-port", "0"]
        with running(tmp_path, WORKER, [*flags, *endpoint], name, **system.env):
            eventually("it is served", partial(serves, system, name), PATIENCE)
            with pytest.raises(
                openai.BadRequestError, match=f"'{name}' takes no images.*do: 'tiny'.*{hint}"
            ) as refused:
                system.asker.chat.completions.create(model=name, messages=shown(png()), **GREEDY)
            assert (refused.value.code, refused.value.param) == ("unsupported_value", "messages[0].content[0]")
            assert said(system.asker.chat.completions.create(model=name, messages=shown(), **GREEDY))


def serves(system: System, name: str) -> bool:
    """Tell whether a frontend lists a model."""
    return name in system.names()
