"""A server's own image beside our small worker: it serves, and what is wrong with one is named in the status.

The image is made here of llama.cpp's own server and a small model, without our code (`Dockerfile.llama-server`).
Servers that misbehave are scripts in it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.namespace.images import worker_image
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, asking, pipeline, workers
from openai import APIError, OpenAI

pytestmark = pytest.mark.full

NAME, MODEL = "stock", "gemma-3-270m"
# It is a base model: it goes on with a text, and learns from it what is asked.
PROMPT = "Question: capital of France? Answer: Paris. Question: capital of Germany? Answer:"
TOKENS = 6
START_SECONDS = 30
READY_SECONDS = 60
SAY_SECONDS = 180

SCRIPT = """
import http.server, json, sys

class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        models = {"data": [{"id": "m", "max_model_len": 4096}]}
        is_up = sys.argv[1] != "unready" and self.path in ("/health", "/v1/models")
        self.answer(200 if is_up else 503 if sys.argv[1] == "unready" else 404, json.dumps(models))

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        events = [
            {"choices": [{"text": "cut", "finish_reason": "length"}]},
            {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 16}},
        ]
        text = "".join(f"data: {json.dumps(event)}\\n\\n" for event in events) + "data: [DONE]\\n\\n"
        self.answer(500 if sys.argv[1] == "failing" else 200, text)

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

http.server.ThreadingHTTPServer(("", 8000), Server).serve_forever()
"""


def stock(platform: Platform, **component: Any) -> Object:
    """A component in front of the image."""
    return {"engine": "openai", "image": worker_image(platform, "stock"), **component}


def faulty(platform: Platform, fault: str, **component: Any) -> Object:
    """A component in front of a server with a fault."""
    return stock(platform, command=["python3", "-c", SCRIPT, fault], **component)


@pytest.mark.timeout(1800)
def test_a_stock_server_serves(namespace: Namespace, platform: Platform) -> None:
    """One YAML: models, an answer that knows the capital of Germany, its tokens, and the same as a stream."""
    args = ["--port", "8000", "--ctx-size", "2048"]
    namespace.apply(pipeline(NAME, stock(platform, args=args), model={"name": MODEL}))
    namespace.wait_loaded(NAME)
    (pod,) = workers(namespace, NAME)
    assert [container["name"] for container in pod["spec"]["initContainers"]] == ["server"]
    with asking(namespace, NAME) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS, temperature=0)
        assert "Berlin" in answer.choices[0].text
        assert answer.usage is not None
        assert answer.usage.completion_tokens == TOKENS
        stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS, temperature=0, stream=True)
        assert "".join(choice.text for chunk in stream for choice in chunk.choices) == answer.choices[0].text


def test_an_image_that_is_not_there(namespace: Namespace) -> None:
    """The condition names the image."""
    worker = {"engine": "openai", "image": "registry.invalid/no/server:1"}
    namespace.apply(pipeline(NAME, worker, model={"name": MODEL}))
    condition = saying(namespace, "registry.invalid/no/server:1")
    assert (condition["status"], condition["reason"]) == ("False", "ImagePullBackOff")


def test_a_server_that_never_listens(namespace: Namespace, platform: Platform) -> None:
    """Before its time is over: that it is waited for; then what it did not do, and the field that sets the time."""
    command = ["python3", "-c", "import time; time.sleep(3600)"]
    worker = stock(platform, command=command, startupTimeoutSeconds=START_SECONDS)
    namespace.apply(pipeline(NAME, worker, model={"name": MODEL}))
    saying(namespace, "waits for its server, which does not listen yet")
    condition = saying(namespace, f"did not listen on its port within {START_SECONDS} s (startupTimeoutSeconds)")
    assert condition["status"] == "False"


def test_a_server_that_never_gets_ready(namespace: Namespace, platform: Platform) -> None:
    """It listens and lists no model: what is waited for, then the end of its time."""
    worker = faulty(platform, "unready", engineArgs={"ready_secs": READY_SECONDS})
    namespace.apply(pipeline(NAME, worker, model={"name": MODEL}))
    saying(namespace, "waits for http://127.0.0.1:8000, which answers 503 at /v1/models")
    saying(namespace, f"answers 503 at /v1/models after {READY_SECONDS} s")


def test_a_server_that_answers_500(namespace: Namespace, platform: Platform) -> None:
    """It looks well until it is asked: then its worker leaves routing, and the status says for what."""
    namespace.apply(pipeline(NAME, faulty(platform, "failing"), model={"name": MODEL}))
    namespace.wait_ready(NAME)
    with asking(namespace, NAME) as client:

        def named() -> Object | None:
            ask(client)
            return said(namespace, "fails requests: it answers 500")

        wait_for("it is named", named, SAY_SECONDS)


def test_a_server_that_lies_about_its_context(namespace: Namespace, platform: Platform) -> None:
    """It announces 4,096 tokens and ends at 20: the pipeline stays Ready, with both numbers beside it."""
    namespace.apply(pipeline(NAME, faulty(platform, "lying"), model={"name": MODEL}))
    namespace.wait_ready(NAME)
    with asking(namespace, NAME) as client:
        ask(client)
    condition = saying(namespace, "ended an answer at 20 tokens, and announces a context of 4096")
    assert condition["status"] == "True"


def ask(client: OpenAI) -> None:
    """Ask for more than comes; what comes instead doesn't matter here."""
    with suppress(APIError):
        client.completions.create(model=MODEL, prompt="x", max_tokens=100)


def said(namespace: Namespace, words: str) -> Object | None:
    condition = namespace.condition(NAME)
    return condition if words in condition.get("message", "") else None


def saying(namespace: Namespace, words: str) -> Object:
    """Wait until the status says so; the condition."""
    return wait_for(f"the status says {words!r}", lambda: said(namespace, words), SAY_SECONDS)
