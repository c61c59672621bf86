"""Every file in examples/: it loads, plans, says what it shows; those that download nothing are served and asked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.environments import environment, without
from tests.processes import DYNAMO, Lines, living
from tests.waiting import eventually

from dynamo.operator.api.load import load_pipelines
from dynamo.operator.plan.plan import Environment, plan

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
ENGINES = sorted((FOLDER / "engines").glob("*.yaml"))
LOCAL = Environment(("http://127.0.0.1:2379",), "nats://127.0.0.1:4222", local=True, http_host="127.0.0.1")
DEADLINE = 90.0
LOADING = 240.0
"""Seconds for an engine that loads a real model while images are built beside it."""


@pytest.mark.parametrize("file", [*EXAMPLES, *ENGINES], ids=lambda f: f.name)
def test_it_loads_plans_and_says_what_it_shows(file: Path) -> None:
    """A header comment with the command, and a plan with workers and a frontend for every document."""
    text = file.read_text()
    header = text[: text.index("apiVersion")]
    assert header.startswith("# ")
    assert f"dynamo up examples/{file.relative_to(FOLDER)}" in header
    for pipeline in load_pipelines(text, str(file)):
        planned = plan(pipeline, LOCAL)
        assert planned.frontend.replicas
        assert planned.workers


def test_all_that_the_readme_promises_are_there() -> None:
    """quickstart, echo, mocker, two-models, remote, migration, disagg."""
    promised = {"quickstart", "echo", "mocker", "two-models", "remote", "migration", "disagg"}
    assert promised <= {f.stem for f in EXAMPLES}


class Served(Lines):
    """`dynamo up` of a file, on free ports."""

    def __init__(self, file: Path, state: Path, patience: float = DEADLINE) -> None:
        # fastokens takes seconds to load.
        env = environment(state, PYTHONPATH=without(state / "absent", "aiohttp"), DYN_TOKENIZER="default")
        super().__init__([*DYNAMO, "up", str(file), "--http-port", "0"], env, state, patience)

    def greeting(self) -> tuple[str, str, str]:
        """Model, URL and curl line of the next pipeline that serves."""
        values: dict[str, str] = {}
        while "curl" not in values:
            line = self.until(re.compile(r" *(model|url|curl) +(.*)").match, "a greeting")
            word, _, rest = line.strip().partition(" ")
            values[word] = rest.strip()
        return values["model"], values["url"], f"curl {values['curl']}"


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """The example named by the test's parameter."""
    up = Served(next(f for f in EXAMPLES if f.stem == request.param), tmp_path)
    yield up
    up.close()


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=100) as answer:
        return dict(json.load(answer))


def paste(curl: str) -> list[dict[str, Any]]:
    """Run the printed line in a shell; the events of the stream it gives, or the one answer."""
    done = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=100, check=True)
    if '"stream": true' not in curl:
        return [json.loads(done.stdout)]
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", done.stdout
    return [json.loads(event) for event in events[:-1]]


@pytest.mark.processes
@pytest.mark.servers
@pytest.mark.parametrize("served", ["echo"], indirect=True)
def test_echo_answers_with_the_prompt(served: Served) -> None:
    """The pasted curl line streams the prompt back; Ctrl-C ends with 130."""
    model, url, curl = served.greeting()
    text = "".join(choice["delta"].get("content") or "" for event in paste(curl) for choice in event["choices"])
    assert "Hello!" in text
    answer = post(f"{url}/completions", {"model": model, "prompt": "zaunkönig", "max_tokens": 50})
    assert answer["choices"][0]["text"] == "zaunkönig"
    assert served.stop() == 130


@pytest.mark.processes
@pytest.mark.servers
@pytest.mark.parametrize("served", ["mocker"], indirect=True)
def test_mocker_serves_with_four_workers(served: Served) -> None:
    """Four processes behind one URL, all complete."""
    model, url, curl = served.greeting()
    assert model == "mock-model"
    assert paste(curl)
    for _ in range(8):
        answer = post(f"{url}/completions", {"model": model, "prompt": "x", "max_tokens": 5, "ignore_eos": True})
        assert answer["usage"]["completion_tokens"] == 5
    assert served.stop() == 130


@pytest.mark.processes
@pytest.mark.servers
@pytest.mark.parametrize("served", ["migration"], indirect=True)
def test_migration_survives_a_kill(served: Served, tmp_path: Path) -> None:
    """A worker killed under eight answers: each is what it would have been, and it is counted."""
    model, url, _ = served.greeting()

    def answer(seed: int) -> dict[str, Any]:
        body = {"model": model, "prompt": "go", "max_tokens": 600, "ignore_eos": True, "seed": 7 * seed}
        return post(f"{url}/completions", body)

    def metric(name: str) -> float:
        with urllib.request.urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=10) as page:
            lines = str(page.read(), "utf-8").splitlines()
        return sum(float(line.split()[-1]) for line in lines if name in line and not line.startswith("#"))

    def migrated() -> bool:
        return metric('migration_type="ongoing_request"') > 0

    with ThreadPoolExecutor(8) as pool:
        expected = [entry["choices"][0] for entry in pool.map(answer, range(8))]
        begun = metric("time_to_first_token_seconds_count")
        answers = pool.map(answer, range(8))
        pids = [pid for pid, command in living("XDG_STATE_HOME", tmp_path).items() if "dynamo.worker" in command]
        assert len(pids) == 4
        all_begun = lambda: metric("time_to_first_token_seconds_count") >= begun + 8  # noqa: E731
        eventually("all answers have begun", all_begun, DEADLINE)
        os.kill(pids[0], signal.SIGKILL)
        eventually("the kill met an answer", migrated, DEADLINE)
        assert [answer["choices"][0] for answer in answers] == expected
    assert served.stop() == 130


@pytest.mark.processes
@pytest.mark.servers
@pytest.mark.parametrize("served", ["disagg"], indirect=True)
def test_disagg_has_prompts_computed_elsewhere(served: Served) -> None:
    """Every answer comes from two workers, of two each, from the first one on."""
    model, url, curl = served.greeting()
    assert paste(curl)
    pairs = set()
    for number in range(12):
        body = {"model": model, "prompt": f"{number} " * 40, "max_tokens": 5, "ignore_eos": True}
        answer = post(f"{url}/completions", {**body, "nvext": {"extra_fields": ["worker_id"]}})
        assert answer["usage"]["completion_tokens"] == 5
        said = answer["nvext"]["worker_id"]
        pairs.add((said["prefill_worker_id"], said["decode_worker_id"]))
    prefills, decodes = {pair for pair, _ in pairs}, {pair for _, pair in pairs}
    assert (len(prefills), prefills & decodes) == (2, set())
    assert served.stop() == 130


@pytest.mark.processes
@pytest.mark.servers
@pytest.mark.parametrize("served", ["two-models"], indirect=True)
def test_two_models_are_apart(served: Served) -> None:
    """Each URL lists its own model only."""
    urls = {model: url for model, url, _ in (served.greeting(), served.greeting())}
    assert set(urls) == {"parrot", "simulated"}
    for model, url in urls.items():
        with urllib.request.urlopen(f"{url}/models", timeout=10) as answer:
            assert [m["id"] for m in json.load(answer)["data"]] == [model]


@pytest.mark.processes
@pytest.mark.servers
def test_kill_9_leaves_nothing_of_real_parts(tmp_path: Path) -> None:
    """A frontend of two processes, two workers, etcd and NATS: all gone after kill -9 of `dynamo up`."""
    file = tmp_path / "many.yaml"
    file.write_text(
        "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: many}\n"
        "spec: {replicas: 2, frontend: {workers: 2}, components: [{engine: mocker}]}\n"
    )
    up = Served(file, tmp_path)
    try:
        model, url, _ = up.greeting()
        assert post(f"{url}/completions", {"model": model, "prompt": "x", "max_tokens": 2})["choices"]
        assert (
            len(living("XDG_STATE_HOME", tmp_path)) >= 9
        )  # up, watchdog, etcd, NATS, supervisor and two frontends, two workers
        up.process.kill()
        eventually("all are gone", lambda: not living("XDG_STATE_HOME", tmp_path), DEADLINE)
    finally:
        up.close()


@pytest.mark.processes
@pytest.mark.servers
def test_ctrl_c_lets_a_running_stream_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One Ctrl-C in mid-stream: the client still gets every token and [DONE], then everything ends."""
    monkeypatch.setenv("DYN_TOKEN_ECHO_DELAY_MS", "60")
    up = Served(next(f for f in EXAMPLES if f.stem == "echo"), tmp_path)
    try:
        model, url, _ = up.greeting()
        prompt = "the quick brown fox jumps over it"
        body = {"model": model, "prompt": prompt, "max_tokens": 100, "stream": True}
        request = urllib.request.Request(
            f"{url}/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            first = answer.readline()
            up.signal(signal.SIGINT)
            events = [line[6:].strip() for line in [first, *answer] if line.startswith(b"data: ")]
        assert events[-1] == b"[DONE]"
        assert "".join(c["text"] for e in events[:-1] for c in json.loads(e)["choices"]) == prompt
        assert up.process.wait(DEADLINE) == 130
    finally:
        up.close()


@pytest.mark.processes
@pytest.mark.servers
@pytest.mark.parametrize(
    ("content", "said"), [(None, "no model at 'model.gguf'"), (b"GGUF\x03\x00\x00\x00" + b"\x01" * 40, "model.gguf")]
)
def test_a_model_that_can_t_be_loaded_is_one_sentence(tmp_path: Path, content: bytes | None, said: str) -> None:
    """No such file, a file cut off: `dynamo up` says so and ends with 1, no traceback."""
    if content is not None:
        (tmp_path / "model.gguf").write_bytes(content)
    file = tmp_path / "bad.yaml"
    file.write_text(
        "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: bad}\n"
        "spec: {model: {source: model.gguf}, components: [{engine: llamacpp}]}\n"
    )
    up = Served(file, tmp_path)
    try:
        assert up.process.wait(DEADLINE) == 1
        written = up.end()
    finally:
        up.close()
    assert "Traceback" not in written
    assert said in next(line for line in written.splitlines() if line.startswith("Error: "))


@pytest.mark.processes(seconds=30)
@pytest.mark.servers
@pytest.mark.timeout(400)
@pytest.mark.parametrize("engine", ["echo_core", "echo_full", "llamacpp", "mocker"])
def test_each_engine_that_runs_here_serves(engine: str, tmp_path: Path) -> None:
    """`examples/engines`: greeted, asked, counted; where there is a real model, it knows a capital.

    `make e2e` has mistral.rs, which computes for a quarter of a minute.
    """
    engine_serves(engine, tmp_path)


def engine_serves(engine: str, tmp_path: Path) -> None:
    """Serve the engine's example from a folder of its own, and ask it."""
    up = Served(FOLDER / "engines" / f"{engine}.yaml", tmp_path, LOADING)
    try:
        model, url, curl = up.greeting()
        first = paste(curl.replace('"max_tokens": 64', '"max_tokens": 4'))
        assert engine not in ("llamacpp", "mistralrs") or " Berlin" in first[0]["choices"][0]["text"]
        prompt = "Question: capital of France? Answer: Paris. Question: capital of Germany? Answer:"
        answer = post(f"{url}/completions", {"model": model, "prompt": prompt, "max_tokens": 3, "temperature": 0})
        expected = {"echo_core": prompt[:3], "echo_full": prompt[:3], "llamacpp": " Berlin", "mistralrs": " Berlin"}
        assert answer["choices"][0]["text"].startswith(expected.get(engine, ""))
        assert answer["usage"]["completion_tokens"] == 3
        assert up.stop() == 130
    finally:
        up.close()


@pytest.mark.processes
@pytest.mark.servers
@pytest.mark.timeout(400)
@pytest.mark.parametrize("served", ["embeddings"], indirect=True)
def test_embeddings_makes_vectors(served: Served) -> None:
    """The pasted curl line and the SDK get vectors of the model's width; a chat is told where to go."""
    model, url, curl = served.greeting()
    done = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=100, check=True)
    assert len(json.loads(done.stdout)["data"][0]["embedding"]) == 640
    with openai.OpenAI(base_url=url, api_key="any", timeout=100) as client:
        answer = client.embeddings.create(model=model, input=["one", "two, three", "one"])
        assert [len(item.embedding) for item in answer.data] == [640] * 3
        assert answer.data[0].embedding == pytest.approx(answer.data[2].embedding, abs=1e-3)
        with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings"):
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}])
    assert served.stop() == 130
