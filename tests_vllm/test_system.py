"""Whole processes with a real vLLM in them: one line that serves, a worker behind a frontend, and a core that dies."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import psutil
import pytest
from tests.fixtures_etcd import EtcdServer, etcd_server
from tests.fixtures_nats import NatsServer
from tests.worker.engine_rigs import PROMPT, VLLM, Rig

__all__ = ["etcd_server"]

pytestmark = [pytest.mark.servers, pytest.mark.processes]
RUN: Final = "dynamo.cli.run"
PATIENCE: Final = 900.0
"""A start of vLLM on a busy machine."""


def eventually(what: str, check: Callable[[], Any], within: float = PATIENCE) -> Any:
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if found := check():
                return found
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(0.1)


class Process:
    """One program of ours; its output in a file."""

    def __init__(self, folder: Path, module: str, words: list[str], **env: str) -> None:
        self.log = folder / f"{module}.log"
        argv = [sys.executable, "-m", module, *words]
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "XDG_STATE_HOME": str(folder), **env},
            )  # fmt: skip

    def ready(self) -> dict[str, Any]:
        def look() -> Any:
            assert self.popen.poll() is None, self.log.read_text()
            return re.search(r"^ready (\{.*\})$", self.log.read_text(), re.MULTILINE)

        found: dict[str, Any] = json.loads(eventually("a ready line", look)[1])
        return found

    def children(self) -> list[psutil.Process]:
        found: list[psutil.Process] = psutil.Process(self.popen.pid).children(recursive=True)
        return found

    def end(self) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(120)
        finally:
            self.popen.kill()
            self.popen.wait()


@contextlib.contextmanager
def running(folder: Path, module: str, words: list[str], **env: str) -> Iterator[Process]:
    process = Process(folder, module, words, **env)
    try:
        yield process
    finally:
        process.end()


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    file = tmp_path / "vllm.json"
    file.write_text(VLLM)
    return ["--extra-engine-args", str(file)]


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=120)


def test_one_line_serves(run: Any, tiny: Path, tmp_path: Path, arguments: list[str]) -> None:
    """`dynamo-run in=http out=vllm FOLDER`: greedy text as the engine alone has it, streamed and not; nothing stays."""
    texts: list[str] = []

    async def body(rig: Rig) -> None:
        sink, _ = rig.submit(max_tokens=16, ignore_eos=True)
        await sink.end()
        texts.append(rig.tokenizer.decode(sink.produced))

    run(body)
    with running(tmp_path, RUN, ["in=http", "out=vllm", str(tiny), "--http-port", "0", *arguments]) as process:
        asker = client(process.ready()["url"])
        asked: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 16, "temperature": 0}
        whole = asker.completions.create(**asked, extra_body={"ignore_eos": True})
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 16
        parts = asker.completions.create(**asked, extra_body={"ignore_eos": True}, stream=True)
        streamed = "".join(part.choices[0].text for part in parts if part.choices)
        assert streamed == whole.choices[0].text == texts[0]
        chat = asker.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4, logprobs=True, top_logprobs=2
        )
        assert chat.choices[0].logprobs is not None
        children = process.children()
        assert process.end() == 0
        assert psutil.wait_procs(children, 60)[1] == []
        assert "Traceback" not in process.log.read_text()


def test_a_worker_of_a_larger_system(
    tiny: Path, tmp_path: Path, arguments: list[str], etcd_server: EtcdServer, nats_server: NatsServer
) -> None:
    """Routed by its KV events over etcd and NATS; when its core is killed it leaves and says why."""
    env = {"ETCD_ENDPOINTS": etcd_server.url, "NATS_SERVER": nats_server.url}
    frontend = ["in=http", "out=dyn://v.backend.generate", "--http-port", "0", "--router-mode", "kv"]
    worker = [
        "--engine", "vllm", "--model-path", str(tiny), "--endpoint", "dyn://v.backend.generate", "--system-port", "0",
        *arguments,
    ]  # fmt: skip
    with (
        running(tmp_path, RUN, frontend, **env) as front,
        running(tmp_path, "dynamo.worker", worker, **env) as work,
    ):
        url = front.ready()["url"]
        said = work.ready()
        asker = client(url)
        eventually("the model is served", lambda: asker.models.list().data)
        prompt = PROMPT * 4

        def cached() -> int:
            usage = asker.completions.create(model="tiny", prompt=prompt, max_tokens=2).usage
            assert usage is not None
            details = usage.prompt_tokens_details
            return (details.cached_tokens or 0) if details is not None else 0

        eventually("the prompt is cached", cached)
        page = httpx.get(f"http://127.0.0.1:{said['system_port']}/metrics").text
        assert "vllm:generation_tokens_total" in page
        assert "dynamo_component_requests_total" in page
        next(one for one in work.children() if "EngineCore" in "".join(one.cmdline())).kill()
        assert work.popen.wait(120) == 1
        assert "vLLM's core process has ended" in work.log.read_text().splitlines()[-1]
        eventually("the model is gone", lambda: not asker.models.list().data, 60)
