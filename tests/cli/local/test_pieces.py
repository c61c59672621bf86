"""The pure and small parts of the local executor."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from dynamo.cli.commands.logs import since_time
from dynamo.cli.commands.ps import rows
from dynamo.cli.local._watchdog import groups_left
from dynamo.cli.local.infra_servers import find_etcd, find_nats_server, remote_etcd, remote_nats
from dynamo.cli.local.infrastructure import UpError, assign_ports, shared_runtime
from dynamo.cli.local.next_steps import Served, as_served, curl, lines, reachable_url, served_model
from dynamo.cli.local.ports import free_port, holder, is_free
from dynamo.cli.local.process_specs import Ground, parts_of
from dynamo.cli.local.state import HeldError, PartState, PipelineState, RunState, is_running, kill_leftovers, read_state
from dynamo.cli.tables import age, table
from dynamo.operator.api.load import load_pipelines
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.plan.plan import Environment, plan


def pipelines(*specs: str) -> list[DynamoPipeline]:
    head = "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {{name: p{}}}\nspec: {}\n"
    return load_pipelines("---\n".join(head.format(i, spec) for i, spec in enumerate(specs)))


PLAIN = "{components: [{engine: mocker}]}"


@pytest.mark.parametrize(
    ("specs", "flag", "expected"),
    [
        ([PLAIN], None, [(8000,)]),
        ([PLAIN], 9000, [(9000,)]),
        ([PLAIN, PLAIN], None, [(8000,), (8002,)]),
        ([PLAIN, PLAIN], 0, [(0,), (0,)]),
        (["{components: [{engine: mocker}], frontend: {port: 7000, replicas: 2}}", PLAIN], None, [(7000, 0), (7001,)]),
        ([PLAIN, "{components: [{engine: mocker}], frontend: {port: 7000}}"], 9000, [(9000,), (7000,)]),
    ],
)
def test_ports(specs: list[str], flag: int | None, expected: list[tuple[int, ...]]) -> None:
    """The flag, else the file's, else the next free one (8001 is taken here); 0 picks all."""
    assert assign_ports(pipelines(*specs), flag, lambda port: port != 8001) == expected


def test_two_pipelines_that_ask_for_one_port() -> None:
    """Named before anything starts."""
    same = "{components: [{engine: mocker}], frontend: {port: 7000}}"
    with pytest.raises(UpError, match="7000 is taken by a pipeline before it"):
        assign_ports(pipelines(same, same), None, lambda _: True)


def test_parts_of_groups_and_frontends() -> None:
    """One process per node of each replica, all with one leader; frontends have ports of their own."""
    groups = "components: [{engine: vllm, tensorParallelSize: 4, nodes: 2}]"
    body = f"{{model: {{source: x}}, frontend: {{replicas: 2, workers: 2}}, {groups}}}"
    picked = iter(range(20_000, 21_000))
    planned = plan(pipelines(body)[0], Environment(("e",), "n", local=True))
    parts = parts_of(planned, Ground((8000, 0), Path("/files"), lambda: next(picked)))
    assert [p.name for p in parts] == ["frontend-0", "frontend-1", "worker-0-0", "worker-0-1"]
    assert parts[0].argv[0] == sys.executable
    assert [p.kind for p in parts[2:]] == ["worker", "node"], "a worker counts when its leader does"
    leaders = {p.argv[p.argv.index("--leader-addr") + 1] for p in parts[2:]}
    assert leaders == {"127.0.0.1:20002"}
    assert [dict(p.ports)["http"] for p in parts[:2]] == [8000, 0]


def test_one_etcd_and_nats_for_a_file() -> None:
    """The document that names them does it for all; two different ones can't be."""
    remote = "{components: [{engine: mocker}], runtime: {nats: {url: %s}}}"
    assert shared_runtime(pipelines(PLAIN, remote % "nats://a")).nats.url == "nats://a"
    with pytest.raises(UpError, match="share one etcd and one NATS"):
        shared_runtime(pipelines(remote % "nats://a", remote % "nats://b"))


def test_the_environment_wins_over_the_file() -> None:
    """Flag, environment, file, default."""
    spec = pipelines(
        "{components: [{engine: mocker}], runtime: {nats: {url: nats://a}, etcd: {endpoints: [http://a]}}}"
    )
    runtime = spec[0].spec.runtime
    nats, etcd = remote_nats(runtime, {"NATS_SERVER": "nats://b"}), remote_etcd(runtime, {})
    assert nats is not None
    assert etcd is not None
    assert (nats.urls, nats.said_by) == (("nats://b",), "NATS_SERVER")
    assert (etcd.urls, etcd.said_by) == (("http://a",), "spec.runtime.etcd.endpoints")
    assert remote_nats(pipelines(PLAIN)[0].spec.runtime, {}) is None


def test_the_servers_come_from_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the environment isn't activated: not on PATH."""
    monkeypatch.setenv("PATH", "/nowhere")
    for binary in (find_etcd(), find_nats_server()):
        assert binary is not None
        assert os.access(binary, os.X_OK)


@pytest.mark.parametrize("name", ["plain", "it's", 'say "hi" $HOME `x`', "中文", "org/repo"])
def test_the_curl_line_is_quoted(name: str) -> None:
    """Whatever a model is called, a shell gives curl the same JSON."""
    paths = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "embedding": "/v1/embeddings"}
    for kind, path in paths.items():
        words = shlex.split(curl(as_served({"id": name, "types": [kind]}), "http://127.0.0.1:1"))
        assert json.loads(words[words.index("-d") + 1])["model"] == name
        assert words[2] == f"http://127.0.0.1:1{path}"
    assert as_served({"id": name}) == Served(name)
    words = shlex.split(curl(Served(name, base=True), "http://127.0.0.1:1"))
    assert (words[2], json.loads(words[-1])["model"]) == ("http://127.0.0.1:1/v1/completions", name)


@pytest.mark.parametrize(
    ("told", "base"), [(b'{"chat_template": null}', True), (b'{"chat_template": "x"}', False), (b"", False)]
)
async def test_a_model_without_a_template_is_a_base_model(told: bytes, base: bool) -> None:
    """It is asked for a completion; where nothing is told of its template, it chats."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
        body = b'{"data": [{"id": "a/b&c", "types": ["chat"]}]}' if asked[-1] == "/v1/models" else told
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await served_model(url, "a/b&c", lambda: False) == Served("a/b&c", base=base, system=True)
    assert asked[:2] == ["/v1/models", "/tokenizer_info?model=a%2Fb%26c"]
    assert sorted(asked[2:]) == ["/", "/version"]


def test_the_greeting_names_what_else_is_there() -> None:
    """The console, the API's description and the metrics, each where the frontend shows it."""
    url = "http://127.0.0.1:1"
    all_pages = "\n".join(lines(Served("m", console=True, system=True), url, (1, 1)))
    assert all(f"{url}{path}" in all_pages for path in ("/v1\n", "/\n", "/docs", "/metrics"))
    hidden = "\n".join(lines(Served("m"), url, (1, 1)))
    assert not any(word in hidden for word in ("console", "/docs", "/metrics"))


def test_a_url_that_can_be_connected_to() -> None:
    """0.0.0.0 is for listening."""
    assert reachable_url("http://0.0.0.0:8000") == "http://127.0.0.1:8000"
    assert reachable_url("http://127.0.0.1:8000/") == "http://127.0.0.1:8000"


def test_ports_of_this_machine() -> None:
    """Free or not, and who holds it."""
    assert is_free(free_port())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(port)
        assert f"(pid {os.getpid()})" in str(holder(port))


def test_the_watchdog_s_list() -> None:
    """Started and not reported gone; a torn last line is nothing."""
    assert groups_left(["+12\n", "+13\n", "-12\n", "+99\n", "-9", "x", "+"]) == {13, 99}


def test_the_state_s_lock(tmp_path: Path) -> None:
    """Held once, by whom is said, and free again after the release."""
    held = PipelineState.acquire(tmp_path, "p", "a.yaml")
    assert is_running(tmp_path / "p")
    with pytest.raises(HeldError) as refused:
        PipelineState.acquire(tmp_path, "p", "b.yaml")
    assert (refused.value.pid, refused.value.file) == (str(os.getpid()), "a.yaml")
    held.release()
    assert not is_running(tmp_path / "p")
    PipelineState.acquire(tmp_path, "p", "b.yaml").release()


def state_of(pid: int) -> RunState:
    part = PartState("worker-0", "worker", "worker", "ready", 0.0, pid)
    return RunState("run-id", 1, 0.0, "f.yaml", "p", "p", "model", "http://u", parts=[part])


def test_a_foreign_process_with_a_recorded_number_is_left_alone(tmp_path: Path) -> None:
    """A stale state names our own pid here: it isn't of that run, so it lives."""
    assert kill_leftovers(state_of(os.getpid())) == []
    held = PipelineState.acquire(tmp_path, "p", "a.yaml")
    held.write(state_of(os.getpid()))
    assert read_state(held.folder) == state_of(os.getpid())
    held.release()
    assert read_state(held.folder) is None


def test_a_process_of_a_killed_run_is_killed() -> None:
    """One that carries the run's mark goes, with its whole group."""
    environment = {**os.environ, "DYN_UP_RUN": "run-id"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, env=environment, start_new_session=True) as left:
        deadline = time.monotonic() + 10
        while not (killed := kill_leftovers(state_of(left.pid))):
            assert time.monotonic() < deadline
        assert killed == [left.pid]
        assert left.wait(10) == -9


def test_a_state_that_can_t_be_read_is_none(tmp_path: Path) -> None:
    """Half a file of a killed run is no error."""
    (tmp_path / "state.json").write_text('{"run": ')
    assert read_state(tmp_path) is None


def test_ps_tables() -> None:
    """Dead is said, ages are short, wide has more."""
    plain = table(rows([(state_of(7), True)], 90.0, wide=False))
    assert plain[1].split() == ["p", "worker-0", "ready", "1m", "0", "7", "model", "http://u"]
    assert "dead" in table(rows([(state_of(7), False)], 90.0, wide=True))[1]
    crashed = state_of(7)
    crashed.parts[0].ended = "killed by signal 11 (SIGSEGV): " + "x" * 400
    lines = table(rows([(crashed, True)], 90.0, wide=False))
    assert lines[0].endswith("REASON")
    assert "started again: killed by signal 11 (SIGSEGV): x" in lines[1]
    assert (len(lines[1]) < 250, len(table(rows([(crashed, True)], 90.0, wide=True))[1]) > 400) == (True, True)
    assert [age(s) for s in (5, 300, 7300, 200_000)] == ["5s", "5m", "2h", "2d"]


def test_since() -> None:
    """A duration or a time, else what is allowed."""
    context, option = click.Context(click.Command("x")), click.Option(["--since"])
    ago = since_time(context, option, "5m")
    assert ago is not None
    assert timedelta(minutes=4) < datetime.now(UTC) - ago < timedelta(minutes=6)
    assert since_time(context, option, "2026-11-21T10:00:00+00:00") == datetime(2026, 11, 21, 10, tzinfo=UTC)
    with pytest.raises(click.BadParameter, match="30s, 5m, 2h"):
        since_time(context, option, "soon")
