"""Images through engine `openai` in text, before a stock `vllm serve`: its own text and counts, no client's URL."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import openai
import pytest
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.waiting import eventually
from tests.worker.engine_rigs import PROMPT
from tests_vllm.images.test_images import FILES, GREEDY, REFUSED, encoded, oracle, pixels, said, seer, serves, shown
from tests_vllm.programs import PATIENCE
from tests_vllm.servers.test_servers import System

pytestmark = [pytest.mark.servers, pytest.mark.processes]
__all__ = ["oracle", "seer"]


@pytest.fixture(scope="module")
def passing(
    oracle: openai.OpenAI, tmp_path_factory: pytest.TempPathFactory, etcd_server: EtcdServer, nats_server: NatsServer
) -> Iterator[System]:
    """A frontend with a worker that passes images on to the stock server."""
    server = json.dumps({"url": str(oracle.base_url), "images": True})
    with System(tmp_path_factory.mktemp("passing"), etcd_server, nats_server) as system:
        system.join_text("openai", "--engine-args", server)
        eventually("it is served", partial(serves, system, "tiny"), PATIENCE)
        yield system


def ask(asker: openai.OpenAI, model: str, messages: Any, **more: Any) -> Any:
    """Return a greedy answer."""
    return asker.chat.completions.create(model=model, messages=messages, **{**GREEDY, **more})


@pytest.mark.parametrize("name", FILES)
def test_chats_are_the_servers_own(passing: System, oracle: openai.OpenAI, name: str) -> None:
    """Whole and streamed, text and usage, for each format."""
    messages = shown(FILES[name](), text=f"{name}: {PROMPT}")
    ours, theirs = ask(passing.asker, "tiny", messages), ask(oracle, "m", messages)
    assert said(ours) == said(theirs)
    assert ours.usage.prompt_tokens == theirs.usage.prompt_tokens
    assert ours.usage.completion_tokens == theirs.usage.completion_tokens == 16
    parts = list(ask(passing.asker, "tiny", messages, stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == ours.choices[0].message.content
    assert parts[-1].usage.prompt_tokens == theirs.usage.prompt_tokens


def test_another_image_is_another_answer(passing: System, oracle: openai.OpenAI) -> None:
    """And two images in another order; each as the server answers by itself."""
    files = [encoded(pixels(seed=seed)) for seed in (21, 22)]
    chats = [shown(files[0]), shown(files[1]), shown(*files), shown(*files[::-1])]
    ours = [said(ask(passing.asker, "tiny", messages)) for messages in chats]
    assert len(set(ours)) == len(chats)
    assert ours == [said(ask(oracle, "m", messages)) for messages in chats]


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "more than vLLM takes"])
def test_what_can_not_be_taken_is_the_clients_mistake(passing: System, name: str) -> None:
    """A 400, whole and streamed, of the frontend's or the server's; the next request is answered."""
    messages, _ = REFUSED[name]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError):
            ask(passing.asker, "tiny", messages(), stream=stream)
    assert said(ask(passing.asker, "tiny", shown(FILES["png"]())))


PRIVATE: Final = ("url", "uuid")
"""An image by its URL, and one that calls itself a text: vLLM takes what has a `uuid` by its fields."""


class Within(BaseHTTPRequestHandler):
    """Server that only its neighbours may ask."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(encoded(pixels(seed=23)))

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def within() -> Iterator[tuple[str, list[str]]]:
    """Start one here; its address, and what it was asked."""
    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Within,), {"asked": asked})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", PRIVATE)
def test_the_server_fetches_nothing_for_a_client(
    passing: System, oracle: openai.OpenAI, within: tuple[str, list[str]], kind: str
) -> None:
    """By itself it would, from addresses that the client can't reach."""
    root, asked = within
    image: dict[str, Any] = {"image_url": {"url": f"{root}/{kind}"}}
    part = {"type": "image_url", **image} if kind == "url" else {"type": "text", "text": PROMPT, "uuid": "1", **image}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": PROMPT}]}]
    if kind == "url":
        with pytest.raises(openai.BadRequestError, match="aren't fetched here"):
            ask(passing.asker, "tiny", messages)
    else:
        assert said(ask(passing.asker, "tiny", messages))
    assert asked == []
    assert said(ask(oracle, "m", messages))
    assert asked == [f"/{kind}"]


def test_the_model_says_that_it_takes_images(passing: System) -> None:
    """Where clients look."""
    (model,) = passing.asker.models.list().data
    assert (model.model_extra or {})["input_modalities"] == ["text", "image"]
