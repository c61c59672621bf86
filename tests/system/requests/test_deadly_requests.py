"""Requests that take their workers down: real processes that abort, and how many of them one body may have."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.waiting import eventually
from tests.worker.chain_model import continuation, write_gguf

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(240)]

WORKERS = 6
DEADLY, LATE = "take me down", "later"
ENGINE = '''\
"""A tokens engine (a token is a byte) that aborts on a marker: at once, or after some tokens."""
import asyncio
import os

async def generate(request):
    prompt = bytes(request["token_ids"]).decode()
    if "take me down" in prompt:
        os.abort()
    for at, token in enumerate(b"survived, and well"):
        if "later" in prompt and at == 5:
            os.abort()
        yield {"token_ids": [token], "finish_reason": None}
        await asyncio.sleep(0.02)
'''


@pytest.fixture
def deployment(stack: Any, tmp_path: Path) -> Callable[..., tuple[Any, list[Any]]]:
    """A frontend, and workers with that engine."""
    file = tmp_path / "deadly.py"
    file.write_text(ENGINE)

    def make(*flags: str) -> tuple[Any, list[Any]]:
        given = ("--python-file", str(file), "--python-mode", "tokens")
        workers = [stack.worker(f"worker-{n}", "python", *given) for n in range(WORKERS)]
        frontend = stack.frontend(*flags)
        frontend.wait_for(instances=WORKERS)
        return frontend, workers

    return make


def alive(workers: list[Any]) -> int:
    return sum(worker.popen.poll() is None for worker in workers)


def ask(url: str, prompt: str, **options: Any) -> httpx.Response:
    body = {"model": "m", "prompt": prompt, "max_tokens": 18, **options}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


class Others:
    """Clients that ask all the while, one request after the other, of other bodies."""

    def __init__(self, url: str, clients: int = 4) -> None:
        self._url, self._over = url, threading.Event()
        self.answers: list[tuple[int, str]] = []
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(clients)]

    def __enter__(self) -> Others:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, number: int) -> None:
        turn = 0
        while not self._over.is_set():
            answer = ask(self._url, f"client {number} asks for the {turn}. time")
            self.answers.append((answer.status_code, answer.text))
            turn += 1

    def answered(self, count: int) -> bool:
        return len(self.answers) >= count

    @property
    def failed(self) -> list[tuple[int, str]]:
        return [answer for answer in self.answers if answer[0] != 200 or '"completion_tokens":18' not in answer[1]]


@pytest.mark.parametrize("options", [{}, {"n": 8}, {"stream": True}], ids=["one", "eight choices", "stream"])
def test_two_workers_at_most(deployment: Any, options: dict[str, Any]) -> None:
    """Of six. The same body, sent again within the minute, takes none; others' requests go on, all of them."""
    frontend, workers = deployment("--migration-limit", "3")
    with Others(frontend.url) as others:
        first = ask(frontend.url, DEADLY, **options)
        assert first.status_code in {422, 500}
        assert alive(workers) >= WORKERS - 2
        left = alive(workers)
        for more in ({}, {"seed": 7}, {"user": "somebody else"}):
            again = ask(frontend.url, DEADLY, **options, **more)
            error = again.json()["error"]
            assert (again.status_code, error["code"]) == (422, "takes_workers_down"), error
            assert alive(workers) == left
    assert others.failed == []
    assert len(others.answers) > 4
    assert ask(frontend.url, "another body").status_code == 200


def test_after_some_tokens(deployment: Any) -> None:
    """Then the limit for migrations holds, which is none where nobody sets it."""
    frontend, workers = deployment()
    answer = ask(frontend.url, LATE)
    assert answer.status_code == 500
    assert alive(workers) == WORKERS - 1


def test_innocents_on_a_worker_that_is_killed(deployment: Any) -> None:
    """Two workers are killed one after the other under traffic: nobody is refused or fails for having been there."""
    frontend, workers = deployment("--migration-limit", "3")
    with Others(frontend.url, 8) as others:
        for victim in workers[:2]:
            seen = len(others.answers)
            victim.signal(signal.SIGKILL)
            victim.popen.wait(10)
            eventually("two more answers for each of the others", partial(others.answered, seen + 16))
    assert others.failed == []


HOSTILE: dict[str, dict[str, Any]] = {
    "the reported one": {"guided_grammar": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "doubles with each token": {"guided_grammar": 'root ::= "a" root "b" | "a" root "c"'},
    "deep Lark": {"guided_grammar": "%llguidance {}\nstart: " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "rules in a chain": {
        "guided_grammar": "%llguidance {}\nstart: r0\n"
        + "\n".join(f"r{n}: r{n + 1}" for n in range(3000)) + '\nr3000: "a" | "b" r0'
    },
    "definitions in a chain": {
        "guided_json": {
            "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(999)} | {"d999": {"type": "string"}},
            "$ref": "#/$defs/d0",
        }
    },
    "many items": {"guided_json": {"type": "array", "maxItems": 10_000_000}},
    "multiples": {"guided_json": {"allOf": [{"type": "integer", "multipleOf": n} for n in (97, 89, 83)]}},
    "a deep regex": {"guided_regex": "(" * 30_000 + "a" + ")" * 30_000},
    "many choices": {"guided_choice": [f"choice {n}" for n in range(20_000)]},
}  # fmt: skip
HARMLESS: dict[str, tuple[dict[str, Any], str]] = {
    "many ways": (
        {
            "guided_grammar": "root ::= r0\n"
            + "\n".join(f'r{n} ::= r{n + 1} "x" | r{n + 1} "y"' for n in range(30)) + '\nr30 ::= "a"'
        },
        "axy",
    ),
    "GBNF": ({"guided_grammar": 'root ::= "x" tail\ntail ::= [yz]{3}'}, "xyzz"),
}  # fmt: skip


def test_llamacpp_survives(stack: Any, tmp_path: Path) -> None:
    """Grammars that took it down, or kept it busy for ever: refused, or answered; its other requests are answered."""
    worker = stack.worker(
        "worker", "llamacpp", "--model-path", str(write_gguf(tmp_path)), "--engine-args",
        '{"n_parallel": 2, "n_threads": 1}',
    )  # fmt: skip
    frontend = stack.frontend()
    frontend.wait_for()
    for name, options in HOSTILE.items():
        answer = ask(frontend.url, "abc", **options)
        assert (answer.status_code, worker.popen.poll()) == (400, None), (name, answer.text[:300])
        assert len(answer.text) < 2000, name
    for name, (options, text) in HARMLESS.items():
        answer = ask(frontend.url, "abc", **options, temperature=0)
        assert answer.status_code == 200, (name, answer.text[:300])
        said = answer.json()["choices"][0]["text"]
        assert set(said) <= set(text), (name, said)
    plain = ask(frontend.url, "abc", temperature=0).json()["choices"][0]["text"]
    assert plain.startswith("def")
    assert len(continuation("abc", 18)) == 18
    assert "Traceback" not in worker.text()
