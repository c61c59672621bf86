"""Machines and pipelines that are broken in one way, for real: `dynamo doctor` names it first, with what mends it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
from click.testing import CliRunner
from tests.environments import quick_environment
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.processes import DYNAMO, RUN, Process

from dynamo.cli.diagnosis import traffic
from dynamo.cli.diagnosis.findings import Finding, report_of
from dynamo.cli.local.facts.traffic import ask
from dynamo.cli.main import dynamo

PIPELINE: Final = (
    "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {{name: {name}}}\n"
    "spec: {{frontend: {{port: {port}}}, model: {model}, components: [{component}]}}\n"
)


class Machine:
    """A folder with a pipeline file, and an environment without servers; whatever is started here ends with it."""

    def __init__(self, folder: Path, started: ExitStack) -> None:
        self.folder, self.started = folder, started
        self.environment: dict[str, str | None] = {
            "XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache"), "HF_TOKEN": None,
            "HF_HOME": str(folder / "hf"), "ETCD_ENDPOINTS": None, "NATS_SERVER": None, "HF_HUB_OFFLINE": None,
        }  # fmt: skip
        self.words = ["--offline"]

    def file(self, component: str = "{engine: mocker}", model: str = "{}", port: int = 0, name: str = "llama") -> None:
        """Write a pipeline, and have it looked at."""
        (port,) = (port,) if port else _free_ports()
        text = PIPELINE.format(name=name, component=component, model=model, port=port)
        (self.folder / "pipeline.yaml").write_text(text)
        self.words = [str(self.folder / "pipeline.yaml"), "--offline"]

    def first(self) -> dict[str, str]:
        """The first finding of `dynamo doctor`."""
        done = CliRunner().invoke(dynamo, ["doctor", *self.words, "-o", "json"], env=self.environment)
        assert done.exit_code == 1, done.output
        finding: dict[str, str] = json.loads(done.stdout)["findings"][0]
        return finding


Break = Callable[[Machine], None]


class Breakage(NamedTuple):
    """How it is broken, and what the first finding must hold."""

    does: Break
    code: str
    cause: str
    mend: str


def _free_ports() -> tuple[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return (int(probe.getsockname()[1]),)


def _listening(machine: Machine) -> int:
    """Somebody who listens, and says nothing."""
    taken = machine.started.enter_context(socket.socket())
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return int(taken.getsockname()[1])


def port_taken(machine: Machine) -> None:
    machine.file(port=_listening(machine))


def port_wanted_twice(machine: Machine) -> None:
    machine.file()
    text = (machine.folder / "pipeline.yaml").read_text()
    (machine.folder / "pipeline.yaml").write_text(f"{text}---\n{text.replace('llama', 'other')}")


def file_in_place_of(folder: str) -> Break:
    def does(machine: Machine) -> None:
        (machine.folder / folder).write_text("")
        machine.file()

    return does


def engine_missing(machine: Machine) -> None:
    machine.file("{engine: trtllm}", "{source: 'hf://org/model'}")


def gguf(content: bytes | None) -> Break:
    def does(machine: Machine) -> None:
        if content is not None:
            (machine.folder / "model.gguf").write_bytes(content)
        machine.file("{engine: mocker}", "{source: ./model.gguf}")

    return does


def program(content: str | None) -> Break:
    """An engine that is a file of the user's own; None: it isn't there."""

    def does(machine: Machine) -> None:
        if content is not None:
            (machine.folder / "mine.py").write_text(content)
        machine.file("{engine: python, python: {file: mine.py}}")

    return does


def folder_for_a_program(machine: Machine) -> None:
    (machine.folder / "mine.py").mkdir()
    program(None)(machine)


def folder_without_model(machine: Machine) -> None:
    (machine.folder / "checkout").mkdir()
    machine.file(model="{source: ./checkout}")


def broken_file(old: str, new: str) -> Break:
    def does(machine: Machine) -> None:
        machine.file()
        file = machine.folder / "pipeline.yaml"
        file.write_text(file.read_text().replace(old, new))

    return does


def gpus_wanted(machine: Machine) -> None:
    machine.file("{engine: mocker, accelerator: {count: 64}}")


def hub(status: int, token: str = "", skew: float = 0.0) -> Break:
    """A hub that answers with this, in a time of its own."""

    def does(machine: Machine) -> None:
        machine.environment |= {
            "HF_ENDPOINT": machine.started.enter_context(_http(status, skew)),
            "HF_TOKEN": token or None,
        }
        machine.words = []

    return does


def hub_away(machine: Machine) -> None:
    machine.environment["HF_ENDPOINT"] = f"http://127.0.0.1:{_free_ports()[0]}"
    machine.words = []


def proxy_away(machine: Machine) -> None:
    machine.environment |= {"HF_ENDPOINT": "http://hub.test", "http_proxy": f"http://127.0.0.1:{_free_ports()[0]}"}
    machine.words = []


@contextmanager
def _http(status: int, skew: float = 0.0) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(status)
            self.send_header("Date", formatdate(time.time() + skew, usegmt=True))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def etcd_away(machine: Machine) -> None:
    machine.environment["ETCD_ENDPOINTS"] = f"http://127.0.0.1:{_free_ports()[0]}"


def etcd_hangs(machine: Machine) -> None:
    machine.environment["ETCD_ENDPOINTS"] = f"http://127.0.0.1:{_listening(machine)}"


def etcd_without_tls(machine: Machine) -> None:
    etcd = machine.started.enter_context(EtcdServer.running())
    machine.environment["ETCD_ENDPOINTS"] = etcd.url.replace("http:", "https:")


def another_server(machine: Machine) -> None:
    machine.environment["ETCD_ENDPOINTS"] = machine.started.enter_context(_http(404))


def etcd_wrong_password(machine: Machine) -> None:
    etcd = machine.started.enter_context(EtcdServer.running())
    for path, body in (
        ("user/add", {"name": "root", "password": "right"}), ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}), ("enable", {}),
    ):  # fmt: skip
        httpx.post(f"{etcd.url}/v3/auth/{path}", json=body, timeout=20).raise_for_status()
    machine.environment |= {
        "ETCD_ENDPOINTS": etcd.url, "ETCD_AUTH_USERNAME": "root", "ETCD_AUTH_PASSWORD": "wrong-secret",
    }  # fmt: skip


def _nats(machine: Machine, config: str) -> None:
    nats = NatsServer(machine.folder, config)
    machine.started.callback(nats.kill)
    machine.environment["NATS_SERVER"] = nats.url


def nats_away(machine: Machine) -> None:
    machine.environment["NATS_SERVER"] = f"nats://127.0.0.1:{_free_ports()[0]}"


def nats_wrong_password(machine: Machine) -> None:
    _nats(machine, "authorization {user: me, password: right}")
    machine.environment |= {"NATS_AUTH_USERNAME": "me", "NATS_AUTH_PASSWORD": "wrong-secret"}


def nats_small(machine: Machine) -> None:
    _nats(machine, "max_payload: 65536")


def not_on_path(machine: Machine) -> None:
    machine.environment["PATH"] = "/nowhere"
    machine.environment |= {"ETCD_ENDPOINTS": "", "NATS_SERVER": ""}


def _ran(machine: Machine, component: str, model: str = "{}") -> None:
    """Run `dynamo up` until it gives up; then ask about the pipeline."""
    machine.file(component, model)
    (machine.folder / "state").mkdir()
    env = {**quick_environment(machine.folder / "state"), "XDG_CACHE_HOME": str(machine.folder / "cache")}
    argv = [*DYNAMO, "up", "pipeline.yaml", "--http-port", "0"]
    done = subprocess.run(argv, cwd=machine.folder, env=env, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    machine.words = ["llama"]


def engine_raises_at_start(machine: Machine) -> None:
    (machine.folder / "mine.py").write_text("raise RuntimeError('the card burns')\n")
    _ran(machine, "{engine: python, python: {file: ./mine.py}}")


def disk_fills(machine: Machine) -> None:
    """What a log had to say when no byte was left: the system's own words, from /dev/full."""
    logs = machine.folder / "state" / "dynamo" / "llama" / "logs"
    logs.mkdir(parents=True)
    try:
        with open("/dev/full", "w") as full:
            full.write("x")
    except OSError as error:
        (logs / "worker-0.log").write_text(f"2026-11-21T10:00:00.000+00:00 10:00:00 ERROR dynamo.worker: {error}\n")
    machine.words = ["llama"]


BREAKAGES: Final[dict[str, Breakage]] = {
    "port taken": Breakage(port_taken, "port-taken", "(pid ", "--http-port 0"),
    "port wanted twice": Breakage(port_wanted_twice, "same-port", "llama and other", "spec.frontend.port"),
    "state folder": Breakage(file_in_place_of("state"), "read-only", "may not write", "XDG_STATE_HOME"),
    "model cache": Breakage(file_in_place_of("cache"), "read-only", "may not write", "export DYN_CACHE_DIR"),
    "hub's cache": Breakage(file_in_place_of("hf"), "read-only", "may not write", "HF_HOME"),
    "missing engine": Breakage(engine_missing, "engine-missing", "isn't installed", "pip install"),
    "no model": Breakage(gguf(None), "model-broken", "no model at", "dynamo validate"),
    "cut off model": Breakage(gguf(b"GGUFxx"), "model-broken", "cut off", "get the file again"),
    "page in a model's place": Breakage(gguf(b"<html>"), "model-broken", "no GGUF file", "get the file again"),
    "folder without a model": Breakage(folder_without_model, "model-broken", "config.json", "spec.model.source"),
    "folder for a program": Breakage(folder_for_a_program, "bad-program", "no file", "python.file"),
    "missing program": Breakage(program(None), "bad-program", "No such file", "python.file"),
    "program that isn't Python": Breakage(program("def generate(:"), "bad-program", "line 1", "py_compile"),
    "program of something else": Breakage(program("x = 1\n"), "bad-program", "async def generate", "python.file"),
    "broken YAML": Breakage(broken_file("spec: {", "spec: {{{"), "bad-file", "", "dynamo validate"),
    "misspelt field": Breakage(broken_file("components", "compnents"), "bad-file", "compnents", "dynamo validate"),
    "unknown engine": Breakage(broken_file("mocker", "vlllm"), "bad-file", "vlllm", "dynamo validate"),
    "hub away": Breakage(hub_away, "hub-unreachable", "refused", "curl -I"),
    "proxy away": Breakage(proxy_away, "hub-unreachable", "the proxy that http_proxy names", "unset http_proxy"),
    "hub fails": Breakage(hub(503), "hub-unreachable", "503", "HF_HUB_OFFLINE"),
    "wrong token": Breakage(hub(401, "hf_wrong"), "bad-token", "HF_TOKEN", "export HF_TOKEN"),
    "wrong clock": Breakage(hub(200, skew=4000), "clock-skew", "s", "timedatectl"),
    "etcd away": Breakage(etcd_away, "server-away", "refused", "unset ETCD_ENDPOINTS"),
    "etcd hangs": Breakage(etcd_hangs, "server-away", "no answer within", "start it"),
    "etcd without TLS": Breakage(etcd_without_tls, "server-away", "TLS", "ETCD_ENDPOINTS"),
    "another server": Breakage(another_server, "wrong-server", "/health", "export ETCD_ENDPOINTS"),
    "etcd's password": Breakage(etcd_wrong_password, "server-refuses", "password", "ETCD_AUTH_PASSWORD"),
    "NATS away": Breakage(nats_away, "server-away", "refused", "unset NATS_SERVER"),
    "NATS' password": Breakage(nats_wrong_password, "server-refuses", "Authorization", "NATS_AUTH_PASSWORD"),
    "NATS takes little": Breakage(nats_small, "small-payload", "65536", "max_payload"),
    "more GPUs than are there": Breakage(gpus_wanted, "gpu", "64", "spec.components[]"),
    "disk fills": Breakage(disk_fills, "disk-full", "No space left", "dynamo clean"),
    "the engine raises at start": Breakage(
        engine_raises_at_start, "bad-program", "the card burns", "correct mine.py:1"
    ),
}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as started:
        yield Machine(tmp_path, started)


@pytest.mark.timeout(200)
@pytest.mark.servers
@pytest.mark.parametrize("name", BREAKAGES)
def test_cause_comes_first(name: str, machine: Machine) -> None:
    """Code, cause and command; no secret in it."""
    breakage = BREAKAGES[name]
    breakage.does(machine)
    first = machine.first()
    assert breakage.code in first["code"], first
    assert breakage.cause in f"{first['what']} {first['cause']}", first
    assert breakage.mend in first["mend"], first
    assert not any(secret in str(first) for secret in ("wrong-secret", "hf_wrong"))


@pytest.mark.timeout(200)
def test_limit_of_open_files(machine: Machine) -> None:
    """A shell with a low limit."""
    env = {**os.environ, **{name: value or "" for name, value in machine.environment.items()}}
    shell = f"ulimit -n 256; exec {sys.executable} -m dynamo.cli doctor --offline -o json"
    done = subprocess.run(
        [shutil.which("sh") or "sh", "-c", shell], env=env, capture_output=True, text=True, timeout=60
    )
    assert "file-limit" in {finding["code"] for finding in json.loads(done.stdout)["findings"]}, done.stderr


ENGINE: Final = """
async def generate(request, context):
    if request["stop_conditions"]["max_tokens"] == 13:
        raise RuntimeError("unlucky")
    yield {"token_ids": [65]}
"""
GOOD: Final[dict[str, Any]] = {"model": "m", "prompt": "hi", "max_tokens": 2}


class Troubled(NamedTuple):
    """A server, what it is asked, and what is said of its pipeline."""

    engine: str
    body: dict[str, Any]
    code: str
    mend: str
    arguments: dict[str, float] | None = None
    headers: dict[str, str] | None = None


TROUBLES: Final = {
    "the engine fails": Troubled("pytok:mine.py", {**GOOD, "max_tokens": 13}, "engine-raises", "dynamo logs"),
    "a model that isn't there": Troubled("echo_full", {**GOOD, "model": "n"}, "wrong-model", "/v1/models"),
    "a context too short": Troubled(
        "mocker", {**GOOD, "prompt": "x" * 100}, "bad-requests", "contextLength", {"max_model_len": 16}
    ),
    "too slow for the limit": Troubled(
        "mocker", GOOD, "too-slow", "spec.replicas", {"speedup_ratio": 0.01}, {"x-request-timeout-ms": "200"}
    ),
    "slow to begin": Troubled(
        "mocker", {**GOOD, "max_tokens": 1}, "slow-first-token", "spec.replicas", {"speedup_ratio": 0.003}
    ),
    "slow to go on": Troubled(
        "mocker",
        {**GOOD, "max_tokens": 3, "stream": True},
        "slow-tokens",
        "max_num_seqs",
        {"decode_speedup_ratio": 0.005},
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize("name", TROUBLES)
def test_why_requests_fail_or_are_slow(name: str, tmp_path: Path) -> None:
    """A real server that is asked a few times; its own counts say why."""
    trouble = TROUBLES[name]
    (tmp_path / "mine.py").write_text(ENGINE)
    (tmp_path / "arguments.json").write_text(json.dumps(trouble.arguments))
    engine = trouble.engine.replace("mine.py", str(tmp_path / "mine.py"))
    more = ["--extra-engine-args", str(tmp_path / "arguments.json")] if trouble.arguments else []
    argv = [*RUN, "in=http", f"out={engine}", *more, "--model-name", "m", "--http-port", "0"]
    with Process("server", argv, tmp_path, quick_environment(tmp_path)) as server:
        url = server.ready_line()["url"]
        for _ in range(2):
            httpx.post(f"{url}/v1/completions", json=trouble.body, headers=trouble.headers, timeout=60)
        facts = ask(url, "llama")
    assert not isinstance(facts, str), facts
    first: Finding = report_of([], traffic.findings(facts)).findings[0]
    assert (first.code, trouble.mend in first.mend) == (trouble.code, True), first


def test_a_frontend_of_this_machine_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever proxy the environment names; one that doesn't tell isn't taken for one with nothing to tell."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{_free_ports()[0]}")
    with _http(200) as url:
        assert not isinstance(ask(url, "llama"), str)
    with _http(401) as url:
        assert "answers 401: it wants an API key" in str(ask(url, "llama"))
    assert "gives no answer that can be read" in str(ask(url, "llama"))
