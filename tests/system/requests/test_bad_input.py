"""The user's mistakes and rude clients, against whole processes: one clear sentence, the right status, no harm."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(180)]

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def frontend(shared_stack: Any) -> Any:
    """With an echo worker of 512 tokens of context."""
    shared_stack.worker("worker", "echo_core", "--context-length", "512", DYN_TOKEN_ECHO_DELAY_MS="1")
    frontend = shared_stack.frontend("--body-limit-mb", "1")
    frontend.wait_for()
    return frontend


@pytest.fixture
def served(frontend: Any) -> Iterator[Any]:
    """That frontend, which must serve as before after each rudeness."""
    yield frontend
    answer = httpx.post(frontend.url + TEXT, json={"model": "m", "prompt": "still here", "max_tokens": 50})
    assert answer.json()["choices"][0]["text"] == "still here"
    assert "Traceback" not in frontend.process.text()


BAD: list[tuple[str, str, Any, int, str | None, str]] = [
    ("empty messages", CHAT, {"model": "m", "messages": []}, 400, "messages", ""),
    ("messages missing", CHAT, {"model": "m"}, 400, "messages", ""),
    ("messages not a list", CHAT, {"model": "m", "messages": "hi"}, 400, "messages", ""),
    ("model missing", CHAT, {"messages": USER}, 400, "model", ""),
    ("unknown model", CHAT, {"model": "nope", "messages": USER}, 404, "model", "nope"),
    ("temperature", CHAT, {"model": "m", "messages": USER, "temperature": 9}, 400, "temperature", "2"),
    ("temperature type", CHAT, {"model": "m", "messages": USER, "temperature": "hot"}, 400, "temperature", ""),
    ("top_p", CHAT, {"model": "m", "messages": USER, "top_p": 1.5}, 400, "top_p", "1"),
    ("max_tokens", CHAT, {"model": "m", "messages": USER, "max_tokens": 0}, 400, "max_tokens", ""),
    ("n", CHAT, {"model": "m", "messages": USER, "n": 0}, 400, "n", ""),
    ("stop type", CHAT, {"model": "m", "messages": USER, "stop": 7}, 400, "stop", ""),
    ("stream options", CHAT, {"model": "m", "messages": USER, "stream_options": {}}, 400, "stream_options", "stream"),
    ("top_logprobs", CHAT, {"model": "m", "messages": USER, "top_logprobs": 3}, 400, "top_logprobs", "logprobs"),
    ("prompt missing", TEXT, {"model": "m"}, 400, "prompt", ""),
    ("prompt type", TEXT, {"model": "m", "prompt": {"a": 1}}, 400, "prompt", ""),
    ("token ids out of vocabulary", TEXT, {"model": "m", "prompt": [1, 999999999]}, 400, "prompt", ""),
    ("negative token ids", TEXT, {"model": "m", "prompt": [-1]}, 400, "prompt", ""),
    ("lone surrogate", TEXT, '{"model": "m", "prompt": "a\\ud800b"}', 400, None, ""),
    ("malformed", TEXT, '{"model": "m", ', 400, None, "JSON"),
    ("an array", TEXT, "[]", 400, None, "object"),
    ("empty body", TEXT, "", 400, None, ""),
]


def error_of(answer: httpx.Response) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert isinstance(error["code"], str)
    assert answer.headers["x-request-id"]
    return error


def test_bad_requests(served: Any) -> None:
    """Each mistake gets its status, the field's name and a sentence, in OpenAI's error body."""
    wrong = []
    for name, path, body, status, param, words in BAD:
        content = body if isinstance(body, str) else json.dumps(body)
        answer = httpx.post(served.url + path, content=content, headers={"content-type": "application/json"})
        error = error_of(answer)
        if (answer.status_code, error["param"]) != (status, param) or words not in error["message"]:
            wrong.append((name, answer.status_code, error))
    assert not wrong


def test_over_long_prompt_names_both_lengths(served: Any) -> None:
    """A prompt over the context is a 400 with `context_length_exceeded`, whatever the engine."""
    answer = httpx.post(served.url + TEXT, json={"model": "m", "prompt": "x" * 600})
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "512" in error["message"]
    assert "600" in error["message"]


def test_nul_is_text(served: Any) -> None:
    """A NUL in a prompt is a character like any other."""
    answer = httpx.post(served.url + TEXT, json={"model": "m", "prompt": "a\0b", "max_tokens": 9})
    assert answer.json()["choices"][0]["text"] == "a\0b"


def test_routes_methods_and_types(served: Any) -> None:
    """Unknown route 404, wrong method 405, wrong content type 415, over-large body 413."""
    assert error_of(httpx.get(served.url + "/nope"))["message"]
    assert httpx.get(served.url + "/nope").status_code == 404
    wrong_method = httpx.get(served.url + CHAT)
    assert (wrong_method.status_code, bool(error_of(wrong_method))) == (405, True)
    wrong_type = httpx.post(served.url + CHAT, content="hi", headers={"content-type": "text/plain"})
    assert (wrong_type.status_code, bool(error_of(wrong_type))) == (415, True)
    large = httpx.post(served.url + TEXT, json={"model": "m", "prompt": "x" * 1_100_000})
    assert (large.status_code, bool(error_of(large))) == (413, True)


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_announced_oversize_is_refused_unread(served: Any) -> None:
    """A content-length over the limit is answered before a byte of the body is sent."""
    with connect(served.url) as raw:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        raw.sendall(head + b"content-length: 99999999\r\n\r\n")
        assert b" 413 " in raw.recv(4096).split(b"\r\n")[0]


def test_half_sent_headers_time_out(served: Any) -> None:
    """A client that never finishes its headers is cut, within a minute."""
    with connect(served.url) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
        began = time.monotonic()
        raw.settimeout(60)
        rest = raw.recv(4096)
        assert rest == b"" or b" 408 " in rest.split(b"\r\n")[0]
        assert time.monotonic() - began < 60


def test_client_that_disappears_frees_the_engine(served: Any) -> None:
    """A closed connection cancels the request at the worker."""
    body = json.dumps({"model": "m", "prompt": "abc " * 100, "stream": True, "max_tokens": 400, "ignore_eos": True})
    head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    for _ in range(20):
        with connect(served.url) as raw:
            raw.sendall((head + body).encode())
            raw.recv(100)
    eventually("no request stays in flight after its client left", lambda: _inflight(served.url) == 0, 5)


def _inflight(url: str) -> float:
    lines = httpx.get(url + "/metrics").text.splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith("dynamo_frontend_inflight_requests{"))


def test_no_worker_yet(stack: Any) -> None:
    """A model without workers is 404 before it was ever seen, 503 with Retry-After when its workers are gone."""
    frontend = stack.frontend()
    frontend.process.ready_line()
    assert httpx.get(frontend.url + "/health").status_code == 200
    first = httpx.post(frontend.url + TEXT, json={"model": "m", "prompt": "x"})
    assert first.status_code in {404, 503}
    worker = stack.worker()
    frontend.wait_for()
    worker.stop()
    deadline = time.monotonic() + 10
    while (answer := httpx.post(frontend.url + TEXT, json={"model": "m", "prompt": "x"})).status_code == 200:
        assert time.monotonic() < deadline
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    error_of(answer)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["mocker", "--model-path", "/no/such/model"], "/no/such/model"),
        (["mokker"], "mocker"),
        (["mocker", "--engine-args", "{oops"], "engine-args"),
        (["mocker", "--engine-args", '{"speedup_ration": 2}'], "speedup_ratio"),
        (["llamacpp"], "model-path"),
    ],
)
def test_workers_say_what_is_wrong(shared_stack: Any, flags: list[str], words: str, tmp_path: Path) -> None:
    """A worker that can't start ends with one sentence and exit code 1 or 2, no traceback."""
    worker = shared_stack.worker(f"wrong-{tmp_path.name}", *flags)
    assert worker.popen.wait(60) in {1, 2}
    said = worker.text()
    assert "Traceback" not in said
    assert words in said


def test_gguf_cut_in_half(shared_stack: Any, tmp_path: Path) -> None:
    """Half a GGUF is refused with a sentence."""
    half = tmp_path / "half.gguf"
    half.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\x05" * 200)
    worker = shared_stack.worker("half", "llamacpp", "--model-path", str(half))
    assert worker.popen.wait(60) == 1
    assert "Traceback" not in worker.text()
    assert "half.gguf" in worker.text()
