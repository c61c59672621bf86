"""The operator as a whole with kopf, against an API server in memory: it serves, survives dead watches, and ends."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import kopf
import pytest
from tests.operator.apiserver import ApiServer, Object
from tests.operator.pipelines import SMALLEST, body
from tests.operator.reconcile.test_reconciler import SETTINGS
from tests.operator.test_leadership import run, until

from dynamo.operator import leadership as run_module
from dynamo.operator import probes
from dynamo.operator.cluster import pipeline_watch as watching
from dynamo.operator.intervals import Intervals
from dynamo.operator.kube.login import Find, Login
from dynamo.operator.kube.resources import PIPELINES
from dynamo.operator.leadership import operate
from dynamo.operator.settings import Settings

HANG = 60.0
"""Nothing here takes so long; what does, hangs."""


class Operator:
    """One that runs beside the test."""

    def __init__(self, server: ApiServer, find: Find | None = None, settings: Settings = SETTINGS) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        login = Login(find or (lambda: kopf.ConnectionInfo(server=server.url)))
        self.task = asyncio.create_task(operate(settings, login, ("127.0.0.1", self.port)))

    async def get(self, path: str) -> str:
        """From its probes."""
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as answer:
            return await answer.text()

    async def restarts(self) -> int:
        """How often the watches were started again."""
        name = "dynamo_operator_watch_restarts_total "
        return next(
            int(line[len(name) :]) for line in (await self.get("/metrics")).splitlines() if line.startswith(name)
        )

    async def shows(self, path: str, text: str) -> None:
        """Waits until a probe says so (a regular expression)."""
        end = time.monotonic() + HANG
        while not re.search(text, value := await self.get(path)):
            assert time.monotonic() < end, value
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """As a signal does; raises what the operator raised."""
        self.task.cancel()
        async with asyncio.timeout(HANG):
            await asyncio.gather(self.task, return_exceptions=True)
        assert self.task.cancelled()


@asynccontextmanager
async def operating(
    server: ApiServer, find: Find | None = None, settings: Settings = SETTINGS
) -> AsyncIterator[Operator]:
    """An operator that serves the pipeline `llama` and watches."""
    operator = Operator(server, find, settings)
    try:
        await watched(server)
        yield operator
    finally:
        await operator.stop()


async def watched(server: ApiServer) -> None:
    """Until every kind is watched and the pipeline's parts are there and ready."""
    await until(lambda: {kind for kind, _ in server.watchers} == {r.kind for r in watching.WATCHED}, HANG)
    await until(lambda: server.names("StatefulSet") and server.names("Deployment"), HANG)
    server.play()


def sweeping(seconds: float) -> Settings:
    """With so long between two sweeps."""
    return dataclasses.replace(SETTINGS, intervals=Intervals(sweep=seconds))


def ready(server: ApiServer) -> bool:
    value = server.one("DynamoPipeline", "llama").get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in value)


def test_it_ends_when_told_to_and_starts_again_in_the_same_process() -> None:
    """With a pipeline present: no task of ours or of the caller's is lost to kopf, the lease is given back."""

    async def case(server: ApiServer) -> None:
        server.put(body(SMALLEST))
        bystander = asyncio.create_task(asyncio.sleep(HANG * 10))
        for _ in range(2):
            async with operating(server):
                later = asyncio.create_task(asyncio.sleep(HANG * 10))
                await until(lambda: ready(server), HANG)
            assert not server.one("Lease", "dynamo-operator", "default")["spec"]["holderIdentity"]
            assert not bystander.done()
            assert not later.done()
            later.cancel()
        bystander.cancel()

    run(case)


def test_it_runs_as_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in our images, and wherever the platform chooses the number."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    async def case(server: ApiServer) -> None:
        server.put(body(SMALLEST))
        async with operating(server) as operator:
            await until(lambda: ready(server), HANG)
            assert await operator.restarts() == 0

    monkeypatch.setattr("getpass.getuser", nameless)
    run(case)


BROKEN: dict[str, tuple[Object, int]] = {
    "error 500": ({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd leader changed"}}, 1),
    "error 410": ({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}, 0),
    "cut": ({"type": "CUT"}, 0),
}


@pytest.mark.parametrize("how", sorted(BROKEN))
def test_a_broken_watch_loses_nothing(how: str) -> None:
    """New watches come, what happened meanwhile is seen, and only a real end of kopf counts as a restart."""
    event, restarts = BROKEN[how]

    async def case(server: ApiServer) -> None:
        server.put(body(SMALLEST))
        async with operating(server) as operator:
            await until(lambda: ready(server), HANG)
            before = count(server)
            server.break_watches(PIPELINES.kind, event)
            server.put(body(SMALLEST, "second"))
            server.remove("Deployment", server.names("Deployment")[0])
            await until(lambda: count(server) > before, HANG)
            await until(lambda: len(server.names("Deployment")) == 2, HANG)
            await watched(server)
            assert await operator.restarts() == restarts
            server.remove("Deployment", server.names("Deployment")[0])
            await until(lambda: len(server.names("Deployment")) == 2, HANG)

    run(case)


def test_a_watch_that_tells_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sweep lists and nobody tells is reconciled all the same, and new watches come."""
    monkeypatch.setattr(run_module, "PATIENCE_SECONDS", 0.4)

    async def case(server: ApiServer) -> None:
        server.put(body(SMALLEST))
        async with operating(server, settings=sweeping(0.5)) as operator:
            await until(lambda: ready(server), HANG)
            server.mute.add(PIPELINES.kind)
            spec = {"components": [{"engine": "mocker", "replicas": 3}]}
            server.put({**server.one("DynamoPipeline", "llama"), "spec": spec})
            (workers,) = server.names("StatefulSet")
            await until(lambda: server.one("StatefulSet", workers)["spec"]["replicas"] == 3, HANG)
            await operator.shows("/metrics", r"watch_restarts_total [1-9]")
            server.mute.clear()
            await operator.shows("/healthz", "^ok$")

    run(case)


def test_a_dead_watch_is_sick(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf hangs, also when it is started anew: the sweep finds the pipeline, but the probe fails."""
    monkeypatch.setattr(probes, "LATE_SECONDS", 1.0)
    monkeypatch.setattr(watching, "run_kopf", lambda registry, settings, namespaces, enough: enough.wait())

    async def case(server: ApiServer) -> None:
        server.put(body(SMALLEST))
        operator = Operator(server, settings=sweeping(0.2))
        await until(lambda: server.names("Deployment"), HANG)
        await operator.shows("/healthz", "the watch of pipelines is dead")
        await operator.stop()

    run(case)


def test_a_lost_lease_is_waited_for_in_the_same_process() -> None:
    """Another replica has it: nothing is written. It comes back: what happened meanwhile is served, too."""

    async def case(server: ApiServer) -> None:
        server.put(body(SMALLEST))
        async with operating(server) as operator:
            await until(lambda: ready(server), HANG)
            lease = server.one("Lease", "dynamo-operator", "default")
            server.put({**lease, "spec": {**lease["spec"], "holderIdentity": "another"}}, "default")
            await operator.shows("/metrics", "leader_election_master_status{.*} 0")
            written = len(server.writes)
            server.put(body(SMALLEST, "second"))
            server.remove("Deployment", server.names("Deployment")[0])
            await asyncio.sleep(0.5)
            assert len(server.writes) == written
            assert await operator.get("/healthz") == "ok"
            lease = server.one("Lease", "dynamo-operator", "default")
            server.put({**lease, "spec": {**lease["spec"], "holderIdentity": ""}}, "default")
            await until(lambda: len(server.names("Deployment")) == 2, HANG)
            await operator.shows("/metrics", "leader_election_master_status{.*} 1")
            assert not operator.task.done()

    run(case)


def count(server: ApiServer) -> int:
    """How often the pipelines' kind was asked for by name."""
    return server.requests.count(("GET", PIPELINES.path()))


CONFIG = """
images: {frontend: dynamo/frontend:1, workers: {default: dynamo/worker:1}}
etcd: {endpoints: ["http://etcd:2379"]}
nats: {url: "nats://nats:4222"}
"""


def test_the_command_serves_until_a_signal(tmp_path: Path) -> None:
    """As the chart starts it, with a kubeconfig in place of a service account."""

    async def case(server: ApiServer) -> None:
        server.put(body(SMALLEST))
        (tmp_path / "config.yaml").write_text(CONFIG)
        kubeconfig = {
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (tmp_path / "kube").write_text(json.dumps(kubeconfig))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dynamo.operator", "--config", str(tmp_path / "config.yaml"), "--host", "127.0.0.1",
            "--port", "0", env={**os.environ, "KUBECONFIG": str(tmp_path / "kube")}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await watched(server)
        await until(lambda: ready(server), HANG)
        process.terminate()
        _, said = await asyncio.wait_for(process.communicate(), HANG)
        assert process.returncode == 0, said.decode()
        assert b"WARNING" not in said, said.decode()
        assert b"ERROR" not in said, said.decode()

    run(case)


@pytest.mark.parametrize(
    ("text", "environment", "words"),
    [
        (None, {}, "give the file that the dynamo-platform chart writes with --config"),
        ("images: {}", {}, "images.frontend"),
        (CONFIG, {"DYN_LOG": "loud"}, "DYN_LOG=loud: choose one of"),
        (CONFIG, {"KUBECONFIG": "/does/not/exist", "HOME": "/does/not/exist"}, "set KUBECONFIG to a file"),
    ],
)
def test_what_the_command_cannot_use_it_says(
    tmp_path: Path, text: str | None, environment: dict[str, str], words: str
) -> None:
    """One sentence with the way out, and 1."""
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "dynamo.operator", "--config", str(file)], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=HANG, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_refused_token_is_read_anew_at_once() -> None:
    """By our own session and by kopf: no minute goes by, and the watches aren't counted as ended."""

    async def case(server: ApiServer) -> None:
        server.token = "first"
        on_disk = ["first"]
        server.put(body(SMALLEST))
        async with operating(server, lambda: kopf.ConnectionInfo(server=server.url, token=on_disk[0])) as operator:
            await until(lambda: ready(server), HANG)
            on_disk[0] = server.token = "second"
            server.end_watches()
            for _ in range(2):
                server.remove("Deployment", server.names("Deployment")[0])
                await watched(server)
            assert await operator.restarts() == 0

    run(case)


def test_a_process_that_hangs_is_left() -> None:
    """Even where the loop is blocked."""
    code = "import time; from dynamo.operator.main import end_within; end_within(0.1); time.sleep(600)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 1
    assert "not ended" in done.stderr
