"""Every engine that runs here, started with a small model, for the tests that hold for all of them.

An engine that lives in an environment of its own joins by a line in `RIGS` that says `apart`:
`DYN_CONTRACT_ENGINES=NAME python -m pytest tests/worker/test_engine_contract.py` runs the suite over it there.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.worker.chain_model import write_checkout, write_gguf
from tests.worker.engines.openai.llama_server import llama_server

from dynamo.engine_catalog import traits_of
from dynamo.llm import LocalModel, Tokenizer, load_tokenizer, open_model
from dynamo.llm.models.file_cache import FileCache
from dynamo.llm.protocols import PreprocessedRequest, SamplingOptions, StopConditions, TextRequest
from dynamo.worker.engine import EngineFacts
from dynamo.worker.engines import create_engine, takes_text
from dynamo.worker.settings import WorkerSettings

PROMPT: Final = "The capital of France is Paris, the capital of Italy is Rome, and the capital of Spain is"


class Kind(NamedTuple):
    """An engine as the suite starts it."""

    engine: str
    source: Callable[[Path], Path | None] = lambda _: None
    """Writes its model into a folder; None: the built-in one."""
    arguments: str = ""
    real: bool = False
    """It computes with weights: it has an end of its prompts, a start that takes time, and is shared by tests."""
    file: str = ""
    """A user's own, for engine python."""
    mode: str = ""
    server: str = ""
    """It asks a real server: `vllm`, `sglang` or `mocker` is started by it, else it is a llama-server, asked so."""
    apart: bool = False
    """It lives in an environment of its own: only where it is named."""

    @property
    def takes_long(self) -> bool:
        """Whether tests share one that has started."""
        return self.real or self.server == "mocker"


_TEXT_FILE: Final = """
import asyncio
async def generate(request):
    for character in request["prompt"][: request["max_tokens"]]:
        yield {"choices": [{"index": 0, "text": character}]}
        await asyncio.sleep(0.002)
    short = len(request["prompt"]) > request["max_tokens"]
    yield {"choices": [{"index": 0, "text": "", "finish_reason": "length" if short else "stop"}]}
"""
_TOKENS_FILE: Final = """
import asyncio
async def generate(request):
    ids = list(request["token_ids"])
    while True:
        ids.append((31 * ids[-1] + 7 * len(ids) + sum(ids[:9])) % 250)
        yield {"token_ids": [ids[-1]]}
        await asyncio.sleep(0.002)
"""
"""The contract holds whatever a user's file does, so these just yield."""
_SHARE: Final = os.environ.get("DYN_GPU_SHARE")
"""Of a GPU's memory, for each engine where several live on one; none on a machine that computes on its CPU."""
VLLM: Final = json.dumps({
    "enforce-eager": True, "dtype": "float32", "block-size": 32, "max-num-seqs": 16, "max_num_batched_tokens": 128,
    **({"gpu-memory-utilization": float(_SHARE), "kv-cache-memory-bytes": 1 << 28} if _SHARE else {}),
})  # fmt: skip
"""In float32, so that an answer doesn't depend on what was computed beside it."""
SGLANG: Final = json.dumps({
    "device": "cpu", "dtype": "float32", "attention-backend": "torch_native", "mem-fraction-static": 0.05,
    "max-total-tokens": 8192, "max-running-requests": 16,
})  # fmt: skip
"""In float32, as vLLM's."""
STOCK: Final = {
    "vllm": (
        "vllm.entrypoints.openai.api_server",
        "--model",
        json.dumps({**json.loads(VLLM), "enable-prompt-tokens-details": True}),
    ),
    "sglang": ("sglang.launch_server", "--model-path", SGLANG),
}
"""Module of the server, its flag for the model, and options."""
MOCKER: Final = [sys.executable, "-m", "dynamo.cli.run", "in=http", "out=mocker", "--model-name", "m"]
"""Our own frontend in front of our own mocker."""
RIGS: Final = {
    "echo_core": Kind("echo_core"),
    "echo_full": Kind("echo_full"),
    "mocker": Kind("mocker", arguments='{"speedup_ratio": 5}'),
    "llamacpp": Kind("llamacpp", write_gguf, '{"n_parallel": 8, "n_ctx": 4096, "n_threads": 1}', real=True),
    "mistralrs": Kind("mistralrs", write_gguf, real=True),
    "mistralrs-safetensors": Kind("mistralrs", write_checkout, real=True),
    "sglang": Kind("sglang", write_checkout, SGLANG, real=True, apart=True),
    "vllm": Kind("vllm", write_checkout, VLLM, real=True, apart=True),
    "openai": Kind("openai", write_gguf, server="llamacpp"),
    "openai-vllm": Kind("openai", write_checkout, server="vllm", real=True, apart=True),
    "openai-sglang": Kind("openai", write_checkout, server="sglang", real=True, apart=True),
    "openai-mocker": Kind("openai", server="mocker", mode="text"),
    "openai-text": Kind("openai", write_gguf, server="openai", mode="text"),
    "pystr": Kind("python", file=_TEXT_FILE, mode="text"),
    "pytok": Kind("python", file=_TOKENS_FILE, mode="tokens"),
}
_HERE: Final = [name for name, kind in RIGS.items() if not kind.apart]
NAMES: Final = os.environ.get("DYN_CONTRACT_ENGINES", ",".join(_HERE)).split(",")
TOKENS: Final = [name for name in NAMES if not traits_of(RIGS[name].engine).takes_text and RIGS[name].mode != "text"]
LIMITED: Final = [name for name in TOKENS if not name.startswith(("echo", "py"))]
"""Engines with a context that ends."""
REAL: Final = [name for name in NAMES if RIGS[name].real]
SCORING: Final = [name for name in NAMES if RIGS[name].real or name == "mocker"]
"""Engines with log probabilities."""
GUIDING: Final = [name for name in SCORING if RIGS[name].engine != "sglang"]
"""Engines that constrain their output; SGLang's grammars need its tokenizer."""


class Recorder:
    """A sink that remembers everything and fails the test on a second end."""

    def __init__(self) -> None:
        self.produced: list[Any] = []
        self.extras: list[dict[str, Any] | None] = []
        self.ends: list[Any] = []
        self.changed = asyncio.Event()

    def push(self, produced: list[int] | str, extras: dict[str, Any] | None = None) -> None:
        assert not self.ends, "output after the end"
        self.produced += produced
        self.extras.append(extras)
        self.changed.set()

    def finish(self, reason: str, extras: dict[str, Any] | None = None) -> None:
        self.ends.append(reason)
        self.extras.append(extras)
        self.changed.set()

    def fail(self, error: Exception) -> None:
        self.ends.append(error)
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.produced) < count and not self.ends:
                self.changed.clear()
                await self.changed.wait()

    async def end(self) -> Any:
        await self.until(1 << 60)
        assert len(self.ends) == 1
        return self.ends[0]


@functools.cache
def opened(name: str) -> tuple[LocalModel, Tokenizer]:
    """The model of a rig, written and loaded once per process, into a folder that goes with it."""
    folder = Path(_folder().name) / name
    folder.mkdir()
    path = RIGS[name].source(folder)
    model = open_model(None if path is None else str(path), cache=FileCache(folder / "cache"))
    return model, load_tokenizer(model.card, model.files)


@functools.cache
def arguments_of(name: str) -> str:
    """The engine arguments of a rig; a server that they name is started."""
    kind = RIGS[name]
    if not kind.server:
        return kind.arguments
    if kind.server == "mocker":
        return json.dumps({"command": [*MOCKER, "--http-port", "{port}"], "api": "openai"})
    path = opened(name)[0].path
    assert path is not None
    if kind.server in STOCK:
        return json.dumps({"command": stock_server(kind.server, path), "api": kind.server})
    return json.dumps({"url": llama_server(path).listening_address, "api": kind.server})


def stock_server(name: str, path: Path | str, port: str = "{port}", **more: Any) -> list[str]:
    """The command of a vLLM or SGLang as its project has it; not `vllm`, which wants a package of that name."""
    module, model, options = STOCK[name]
    given = {**json.loads(options), **more}.items()
    flags = [f"--{flag.replace('_', '-')}" + ("" if value is True else f"={value}") for flag, value in given]
    server = [sys.executable, "-m", module, model, str(path)]
    return [*server, "--host", "127.0.0.1", "--port", port, "--served-model-name", "m", *flags]


def model_path_of(name: str) -> str:
    """The model path that settings name, where the engine decides by it what it takes."""
    return str(opened(name)[0].path) if RIGS[name].server and RIGS[name].mode != "text" else ""


@functools.cache
def _written(name: str) -> str:
    """The path of a user's file; empty for engines without."""
    path = Path(_folder().name) / f"{name}_engine.py"
    return str(path) if RIGS[name].file and path.write_text(RIGS[name].file) else ""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="dynamo-rigs-")


class Rig:
    """A started engine and requests in its kind."""

    def __init__(self, name: str) -> None:
        kind = RIGS[name]
        self.model, self.tokenizer = opened(name)
        self.settings = WorkerSettings(
            engine=kind.engine, engine_args=arguments_of(name), python_file=_written(name),
            python_mode=kind.mode or WorkerSettings.python_mode, model_path=model_path_of(name),
        )  # fmt: skip
        self.name = name
        self.engine: Any = create_engine(self.settings, self.model)
        self.text = takes_text(self.settings)

    async def start(self) -> None:
        self.facts: EngineFacts = await self.engine.start()

    def request(self, prompt: str = PROMPT, max_tokens: int = 10, **stop: Any) -> Any:
        if self.text:
            return TextRequest(model="m", kind="completions", body={"prompt": prompt, "max_tokens": max_tokens})
        return PreprocessedRequest(
            model="m",
            token_ids=self.tokenizer.encode(prompt),
            stop_conditions=StopConditions(max_tokens=max_tokens, **stop),
            sampling_options=SamplingOptions(temperature=0.0),
        )

    def endless(self, prompt: str = PROMPT * 3, max_tokens: int = 200) -> Any:
        """A request that is not over soon."""
        return self.request(prompt, max_tokens, **({} if self.text else {"ignore_eos": True}))

    def submit(self, request: Any = None, **more: Any) -> tuple[Recorder, Callable[[], None]]:
        sink = Recorder()
        return sink, self.engine.submit(self.request(**more) if request is None else request, sink)

    async def idle(self) -> None:
        """Wait until the engine has nothing to do."""
        async with asyncio.timeout(30):
            while self.engine.load().running or self.engine.load().waiting:  # noqa: ASYNC110 - an engine says nothing of its slots
                await asyncio.sleep(0.005)


Body = Callable[[Rig], Awaitable[None]]
Run = Callable[[Body], None]


def alone(name: str) -> Run:
    """Runs a coroutine function with an engine of its own."""

    async def main(body: Body) -> None:
        rig = Rig(name)
        await rig.start()
        try:
            await body(rig)
        finally:
            await rig.engine.stop()

    return lambda body: asyncio.run(main(body))


@contextmanager
def shared() -> Iterator[Callable[[str], Run]]:
    """Runs coroutine functions with one engine of each name, started when it is first asked for."""
    made: dict[str, Rig] = {}

    async def once(name: str, body: Body) -> None:
        if name not in made:
            made[name] = Rig(name)
            await made[name].start()
        await body(made[name])

    with asyncio.Runner() as runner:
        yield lambda name: lambda body: runner.run(once(name, body))
        for rig in made.values():
            runner.run(rig.engine.stop())
