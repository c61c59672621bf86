"""The guides' distributed system: a pool, network names, routing, migration, cancellation, over etcd and NATS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.pages.printed import Rows, answers, chat, command, serving
from tests.processes import RUN, Process
from tests.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(300)]


class System:
    """The processes of one test."""

    def __init__(self, stack: ExitStack, env: dict[str, str], folder: Path) -> None:
        self._stack, self._env, self._folder = stack, env, folder
        self.workers: list[Process] = []

    def worker(self, argv: list[str], **env: str) -> None:
        log = self._folder / f"worker-{len(self.workers)}.log"
        self.workers.append(self._stack.enter_context(Process(log.stem, argv, log.parent, self._env | env)))

    def frontend(self, argv: list[str]) -> openai.OpenAI:
        return self._stack.enter_context(serving(argv, self._folder / "frontend.log", self._env))

    def settled(self, client: openai.OpenAI, models: Mapping[str, int]) -> None:
        """Wait until these are served, by so many instances each."""
        for worker in self.workers:
            worker.ready_line()
        eventually("all are there", lambda: instances(client) == sum(models.values()))
        eventually("all are listed", lambda: {model.id for model in client.models.list()} == set(models))


@pytest.fixture
def system(servers: dict[str, str], tmp_path: Path) -> Any:
    with ExitStack() as stack:
        yield System(stack, servers, tmp_path)


def instances(client: openai.OpenAI) -> int:
    try:
        return len(client.get("../health", cast_to=dict[str, Any])["instances"])
    except openai.APIStatusError:  # 503 while nobody is there
        return 0


def where(client: openai.OpenAI, model: str, prompt: str = "x") -> tuple[int, int]:
    """The instance that one more request goes to, and what of its prompt was cached there."""
    asked = {"nvext": {"extra_fields": ["worker_id"]}}
    made = client.completions.create(model=model, prompt=prompt, max_tokens=1, extra_body=asked)
    fields = made.model_dump()
    details = fields["usage"].get("prompt_tokens_details") or {}
    return int(fields["nvext"]["worker_id"]["decode_worker_id"]), int(details.get("cached_tokens") or 0)


def load(env: Mapping[str, str], path: str) -> list[Any]:
    """What load_metrics of a component's workers answers to a program of ours."""
    return asyncio.run(answers(env, path, {}))


def test_a_pool(rows: Rows, own: dict[str, str], system: System) -> None:
    """A frontend and workers that share a name and nothing else; both workers are asked."""
    rows.shows("nats", "pool, several")
    for _ in range(2):
        system.worker(command(rows["pool, worker"], own))
    client = system.frontend(command(rows["pool, frontend"], own))
    system.settled(client, {"chain": 2})
    assert chat(client, "chain", "1 2 3") == "45"
    assert len({where(client, "chain")[0] for _ in range(4)}) == 2


def test_names(rows: Rows, own: dict[str, str], system: System, servers: dict[str, str]) -> None:
    """Four models in pipelines of their own, one of them twice; one frontend, and load_metrics of each worker."""
    system.worker(command(rows["worker"], own, "--model-name", "llama"))
    examples = {"two instances, spread": 2, "two models": 1, "short name": 1}
    paths = {"two instances, spread": "qwen3-32b.backend.generate", "two models": "llama3-1-8b.backend.generate"}
    for name, count in examples.items():
        path = f"dyn://{paths[name]}" if name in paths else rows[name].what.strip("`").removeprefix("in=")
        rows.shows(name)
        for _ in range(count):
            system.worker([*RUN, f"in={path}", "out=echo", "--model-name", name])
    both = command(rows["round robin"], own)
    assert both[: len(command(rows["dyn"], own))] == command(rows["dyn"], own)
    client = system.frontend(both)
    system.settled(client, {"llama": 1, **examples})
    assert chat(client, "llama", "1 2 3") == "45"
    assert {chat(client, model, "hi") for model in examples} == {"hi"}
    first, second, third, fourth = (where(client, "two instances, spread")[0] for _ in range(4))
    assert (first, second) == (third, fourth)
    assert first != second
    assert "`llama3-1-8b.backend.load_metrics`" in rows["load_metrics"].what
    (figures,) = load(servers, "llama3-1-8b.backend.load_metrics")
    assert figures["worker_stats"]["request_active_slots"] == 0
    assert len(load(servers, "NS.test.load_metrics")) == 1


def test_routing(rows: Rows, own: dict[str, str], system: System, tmp_path: Path) -> None:
    """Two mockers with every argument of the guides: a prompt goes where it was, and what it finds there is counted."""
    names = rows["mocker, arguments"].what.split("`")[1::2]
    values = [16, 512, 8, 4096, True, True, 10.0, 1, 0.01]
    (tmp_path / "mocker.json").write_text(json.dumps(dict(zip(names, values, strict=True))))
    for _ in range(2):
        system.worker(command(rows["mocker, worker"], {**own, "ARGS.json": str(tmp_path / "mocker.json")}))
    plain, full = (command(rows[name], own) for name in ("kv, frontend", "kv, arguments"))
    assert full[: len(plain)] == plain
    client = system.frontend(full)
    system.settled(client, {"chain": 2})
    texts = [character * 200 for character in "abcdef"]
    homes = [where(client, "chain", text)[0] for text in texts]

    def cached() -> bool:
        again = [where(client, "chain", text) for text in texts]
        return [place for place, _ in again] == homes and min(tokens for _, tokens in again) >= 192 - 16

    eventually("each goes where its beginning is cached", cached)


def test_streams(rows: Rows, own: dict[str, str], system: System, servers: dict[str, str]) -> None:
    """A worker that is killed isn't noticed by those who read; a reader who leaves ends the work of its request."""
    assert "dyn://NAME" in rows["migration"].what
    rows.shows("cancellation")
    path = "migrating.backend"
    words = {"NAME": f"{path}.generate", "ENGINE": "echo_core"}
    for _ in range(2):
        argv = command(rows["migration"], words, "--model-name", "echo")
        system.worker(argv, DYN_TOKEN_ECHO_DELAY_MS="20")
    client = system.frontend(command(rows["auto"], own))
    system.settled(client, {"echo": 2})

    def asked(prompt: str) -> Any:
        return client.completions.create(model="echo", prompt=prompt, max_tokens=len(prompt), stream=True)

    def active() -> int:
        document = load(servers, f"{path}.load_metrics")
        return sum(figures["worker_stats"]["request_active_slots"] for figures in document)

    stream = asked("x" * 4000)
    next(stream)
    assert active() == 1, "it takes more than a minute"
    stream.close()
    eventually("nobody works for the reader who left", lambda: active() == 0, 30)

    prompt = "abcdefghij" * 20
    streams = [asked(prompt) for _ in range(2)]
    texts = [next(stream).choices[0].text for stream in streams]
    system.workers[0].popen.kill()
    system.workers[0].popen.wait()
    for number, stream in enumerate(streams):
        texts[number] += "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
    assert texts == [prompt, prompt]
