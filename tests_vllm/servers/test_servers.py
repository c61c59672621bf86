"""Stock vLLM servers behind our routing: one is killed, one has an adapter, and two keep prompts cached."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import openai
import psutil
import pytest
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.waiting import eventually
from tests.worker.engine_rigs import PROMPT, VLLM, stock_server
from tests_vllm.programs import FRONTEND, PATIENCE, WORKER, Program, client, running, title
from tests_vllm.servers.tiny_lora import RANK, write_adapter

pytestmark = [pytest.mark.servers, pytest.mark.processes]
STREAMS: Final = 32
TOKENS: Final = 300
GREEDY: Final[dict[str, Any]] = {"temperature": 0, "extra_body": {"ignore_eos": True}}
HALF: Final = "\N{REPLACEMENT CHARACTER}"
"""Where an answer ends within a character."""
_NUMBERS: Final = count()


class System:
    """System of a frontend and of workers that join its namespace."""

    def __init__(self, folder: Path, etcd: EtcdServer, nats: NatsServer, *flags: str) -> None:
        self.folder = folder
        self.env = {"ETCD_ENDPOINTS": etcd.url, "NATS_SERVER": nats.url}
        self.namespace = f"servers{next(_NUMBERS)}"
        self.flags = flags
        self.stack = contextlib.ExitStack()
        self.workers: list[Program] = []
        self.chunks = 0
        """Pieces of answers that came."""
        self.url = ""
        self.asker: openai.OpenAI

    def __enter__(self) -> System:
        words = ["--namespace", self.namespace, "--http-port", "0", *self.flags]
        front = self.stack.enter_context(running(self.folder, FRONTEND, words, f"front{next(_NUMBERS)}", **self.env))
        self.url = front.ready()["url"]
        self.asker = client(self.url)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def join(self, model: Path, engine: str, *options: str) -> Program:
        """Start a worker of an engine; it loads beside others."""
        return self.join_text(engine, "--model-path", str(model), *options)

    def join_text(self, engine: str, *options: str) -> Program:
        """Start a worker that has no model path, unless the options name one."""
        words = [
            "--engine", engine, "--model-name", "tiny", "--endpoint", f"dyn://{self.namespace}.backend.generate",
            "--system-port", "0", *options,
        ]  # fmt: skip
        name = f"{engine}{next(_NUMBERS)}"
        worker = self.stack.enter_context(running(self.folder, WORKER, words, name, **self.env))
        self.workers.append(worker)
        return worker

    def join_server(self, model: Path, more: dict[str, Any] | None = None, **flags: Any) -> Program:
        """Start a worker that starts a stock server with these flags."""
        about = {"command": stock_server("vllm", model, **flags), "api": "vllm", **(more or {})}
        return self.join(model, "openai", "--engine-args", json.dumps(about))

    def ready(self) -> None:
        """Wait until the frontend can ask all workers."""
        for worker in self.workers:
            worker.ready()
        eventually("the model is served", lambda: self.names() >= {"tiny"}, PATIENCE)

    def names(self) -> set[str]:
        """Return the models that the frontend lists."""
        return {model.id for model in self.asker.models.list().data}

    def migrations(self) -> dict[str, int]:
        """Return how often the frontend continued a request elsewhere, by kind."""
        page = httpx.get(f"{self.url}/metrics").text
        pattern = r'^dynamo_frontend_model_migration_total\{.*migration_type="(\w+)".*\} ([\d.]+)$'
        return {kind: int(float(value)) for kind, value in re.findall(pattern, page, re.MULTILINE)}

    def text(self, prompt: str, model: str = "tiny") -> str:
        """Return a greedy answer, streamed."""
        stream = self.asker.completions.create(model=model, prompt=prompt, max_tokens=TOKENS, stream=True, **GREEDY)
        parts: list[str] = []
        for chunk in stream:
            parts += [choice.text for choice in chunk.choices]
            self.chunks += 1
        return "".join(parts)

    def cached(self, prompt: str) -> int:
        """Return how many tokens of a prompt were cached."""
        usage = self.asker.completions.create(model="tiny", prompt=prompt, max_tokens=2, **GREEDY).usage
        assert usage is not None
        details = usage.prompt_tokens_details
        return (details.cached_tokens or 0) if details is not None else 0


def test_a_killed_server_costs_no_token(
    tiny: Path, tmp_path: Path, etcd_server: EtcdServer, nats_server: NatsServer
) -> None:
    """Of two servers one is killed while 32 greedy streams run: each text is what a quiet run gave."""
    prompts = [f"{number}. {PROMPT}" for number in range(STREAMS)]
    with System(tmp_path, etcd_server, nats_server, "--migration-limit", "3") as system:
        first, _ = system.join_server(tiny), system.join_server(tiny)
        system.ready()
        quiet = [system.text(prompt) for prompt in prompts]
        assert len(set(quiet)) > STREAMS // 2, "random weights, yet all alike"
        with ThreadPoolExecutor(STREAMS) as threads:
            begun = system.chunks + STREAMS * TOKENS // 8
            texts = threads.map(system.text, prompts)
            eventually("all have begun", lambda: system.chunks > begun)
            kill_server(first)
            assert list(texts) == quiet
        assert sum(system.migrations().values()) >= STREAMS // 4


def kill_server(worker: Program) -> None:
    """Kill the server of a worker and what it started; the worker lives on."""
    server = next(child for child in worker.children() if "api_server" in title(child))
    for process in [server, *server.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_an_adapter_is_a_model(tiny: Path, tmp_path: Path, etcd_server: EtcdServer, nats_server: NatsServer) -> None:
    """A LoRA adapter that the server lists is a model of ours, and answers as the server itself does."""
    adapter = f"tuned={write_adapter(tmp_path / 'tuned')}"
    flags: dict[str, Any] = {"enable-lora": True, "max-lora-rank": RANK, "lora-modules": adapter}
    with System(tmp_path, etcd_server, nats_server) as system:
        worker = system.join_server(tiny, **flags)
        system.ready()
        eventually("the adapter is served", lambda: "tuned" in system.names(), PATIENCE)
        server = next(child for child in worker.children() if "api_server" in title(child))
        words = server.cmdline()
        direct = client(f"http://127.0.0.1:{words[words.index('--port') + 1]}")
        asked: dict[str, Any] = {"prompt": PROMPT, "max_tokens": TOKENS, **GREEDY}
        own = direct.completions.create(model="tuned", **asked).choices[0].text
        assert system.text(PROMPT, "tuned").rstrip(HALF) == own.rstrip(HALF)
        assert system.text(PROMPT).rstrip(HALF) != own.rstrip(HALF)


def test_prompts_go_where_they_are_cached(
    tiny: Path, tmp_path: Path, etcd_server: EtcdServer, nats_server: NatsServer
) -> None:
    """Two stock servers with KV events have nine tenths of the cached tokens that two workers of ours have, or more."""
    cached: dict[str, int] = {}
    for engine in ("vllm", "openai"):
        with System(tmp_path, etcd_server, nats_server, "--router-mode", "kv") as system:
            for _ in range(2):
                if engine == "openai":
                    join_publisher(system, tiny)
                else:
                    system.join(tiny, "vllm", "--extra-engine-args", str(written(tmp_path / "vllm.json")))
            system.ready()
            cached[engine] = sum(map(system.cached, turns()))
    assert cached["vllm"] > 0
    assert cached["openai"] >= 0.9 * cached["vllm"], cached


def join_publisher(system: System, model: Path) -> None:
    """Start a stock server that publishes its KV events."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # With an address instead of a star vLLM would connect there, and not listen.
    events = json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{port}"})
    system.join_server(model, {"kv_events": f"tcp://127.0.0.1:{port}"}, **{"kv-events-config": events})


def written(path: Path) -> Path:
    """Write vLLM's options to a file, and return it."""
    path.write_text(VLLM)
    return path


def turns() -> list[str]:
    """Return the prompts of twelve talks, six turns each, in a drawn order; each goes on from the one before."""
    random = Random(5)
    talks = [[f"Talk {number}. {PROMPT} "] for number in range(12)]
    order = [talk for talk in talks for _ in range(6)]
    random.shuffle(order)
    prompts: list[str] = []
    for talk in order:
        prompts.append("".join(talk))
        talk.append(f"And then {random.random():.6f} happened, of which they talked for long. ")
    return prompts
