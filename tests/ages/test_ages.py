"""Programs written for three versions of NVIDIA Dynamo against `dynamo.runtime`: each sees what it was written to see.

Early is 0.1 to 0.3, mid 0.3 to 0.8, today 1.x. What NVIDIA Dynamo does was seen by running its packages.
"""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from typing import Any

import pytest
from tests.ages.conftest import Start
from tests.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.processes]


def test_hello_world_of_early_2025(start: Start) -> None:
    """A pydantic endpoint, found by `wait_for_endpoints`, called in every way; `create_service` says it's needless."""
    server = start("dynamo_0_1/server.py")
    lease = server.wait_for("lease ").split()[1]
    assert start("dynamo_0_1/client.py").end() == [
        f"workers {lease}",
        *["hello world"] * 3,
        "direct ! None [] None False",
        "plain ['h', 'i']",
        "text ['h', 'i']",
    ]
    assert server.leave() == [f"lease {lease}", "left"]
    assert server.said.count("create_service() changes nothing") == 1


def test_several_workers_share_the_requests(start: Start) -> None:
    """Two processes of one endpoint are two instances, and `round_robin` reaches both."""
    leases = {start("dynamo_0_1/server.py").wait_for("lease ").split()[1] for _ in range(2)}

    def both() -> bool:
        return set(start("dynamo_0_1/client.py").end()[0].split()[1:]) == leases

    eventually("the client sees both", both)


def test_a_runtime_from_the_early_constructor(start: Start, namespace: str) -> None:
    """`DistributedRuntime(loop, False)` outside of a coroutine, with keys, tokens, and a shutdown nobody awaits."""
    key = f"/{namespace}/a"
    assert start("dynamo_0_1/process.py").end() == [
        f"refused the key {key} is there already",
        f"refused the key {key} is there already, with another value",
        "keys [('a', b'2')]",
        "cache b'two' None ['y', 'z']",
        "cleared {}",
        "ids []",
        "cancelled",
    ]


def test_a_static_worker_needs_no_etcd(start: Start) -> None:
    """It is found over NATS, by its restarted self too after `kill -9`, and leaves in order."""
    nowhere = {"ETCD_ENDPOINTS": "http://127.0.0.1:1"}
    client = start("dynamo_0_3/static_client.py", **nowhere)
    first = start("dynamo_0_3/static_server.py", **nowhere)
    value = first.wait_for("id ").split()[1]
    client.wait_for(f"answered by {value}")
    first.kill()
    second = start("dynamo_0_3/static_server.py", **nowhere)
    two = second.wait_for("id ").split()[1]
    client.wait_for(f"answered by {two}")
    assert client.leave()[:4] == ["HELLO", "STATIC", "WORLD", "DIRECT"]
    second.leave()


def test_mid_2025_serves_several_endpoints_and_lets_streams_end(start: Start) -> None:
    """Two components and three endpoints of one process; SIGTERM ends it when what streams has ended."""
    server = start("dynamo_0_3/server.py")
    client = start("dynamo_0_3/client.py")
    client.wait_for("streaming")
    assert server.leave() == ["serving", "cleaned up"]
    assert client.end() == [
        "item {'number': 0, 'of': 'mine'}",
        "item {'number': 1, 'of': 'mine'}",
        "metrics [{'active': 0}]",
        "clear [{'status': 'cleared'}]",
        "streaming",
        "read until 40",
    ]
    assert "cleaned up" in server.said


def test_a_killed_worker_and_its_next_life(start: Start) -> None:
    """`kill -9` ends its streams with a retryable error; started again, it is found again, and nothing old is."""
    first = start("dynamo_0_1/server.py")
    value = first.wait_for("lease ").split()[1]
    assert start("dynamo_0_1/client.py").end()[0] == f"workers {value}"
    first.kill()
    two = start("dynamo_0_1/server.py").wait_for("lease ").split()[1]
    # Until the lease is over a request may go to who isn't there any more, and end so.
    known = f"workers {two}"
    eventually("the next life alone is known", lambda: start("dynamo_0_1/client.py").ended()[:1] == [known])
    assert start("dynamo_0_1/client.py").end()[0] == known


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def health(url: str) -> int:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_today(start: Start) -> None:
    """Paths, planes that need no saying, payloads of all kinds, unary calls; health and engine routes by a variable."""
    server = start("dynamo_1/server.py", DYN_SYSTEM_PORT="0", PYTHONWARNINGS="error")
    url = server.wait_for("system ").split()[1]
    eventually("it is ready", lambda: health(url) == 200)
    metadata = {"tenant": "a"}
    values: list[Any] = [None, "text", 1.5, [1, "b"], {"k": [True]}, b"bytes"]
    assert start("dynamo_1/client.py", PYTHONWARNINGS="error").end() == [
        "instance True backend generate",
        *[str([{"got": value, "metadata": metadata}]) for value in values],
        "sum 6",
    ]
    assert post(f"{url}/engine/pause", {"leave": True}) == {"left": True}
    assert health(url) == 503
    assert post(f"{url}/engine/pause", {"leave": False}) == {"left": False}
    eventually("it is ready again", lambda: health(url) == 200)
    server.leave(signal.SIGTERM)


def test_errors_as_callers_see_them(start: Start, namespace: str) -> None:
    """Items before an error are kept; handlers' exceptions are `ValueError`s too, which callers catch."""
    start("failing_server.py")
    assert start("failing_client.py").end() == [
        "{'how': 'well'} ['begun', 'ended'] well",
        "{'how': 'value'} ['begun'] EngineError True ValueError: boom",
        "{'how': 'runtime'} ['begun'] EngineError True RuntimeError: boom",
        "{'how': 'argument'} ['begun'] InvalidRequest True not like this",
        "{'how': 'shutdown'} ['begun'] EngineShutdown False bye",
        "{'how': 'cancelled'} ['begun'] Cancelled False the worker's handler was cancelled",
        "{'how': 'object'} ['begun'] EngineError True an item can't be sent: TypeError: "
        "Encoding objects of type object is unsupported",
        "{'what': 1} [] InvalidRequest True Invalid request: 1 validation error for Request",
        f"direct NoInstances instance_id=12345 not found for endpoint {namespace}.backend.generate",
        "nobody NoInstances nobody serves ns.nobody.generate now",
        "static InvalidArgument Client.static() belongs to dynamo_worker(static=True): use round_robin() here",
    ]


def test_a_pipeline_of_three_processes(start: Start) -> None:
    """Each stage calls the next and streams on what comes."""
    stages = [start("pipeline.py", stage) for stage in ("frontend", "middle", "backend")]
    assert start("pipeline.py", "ask").end() == [
        "frontend:middle:start",
        "frontend:middle:frontend",
        "frontend:middle:middle",
        "frontend:middle:backend",
    ]
    for stage in stages:
        stage.leave()


def test_cancellation(start: Start) -> None:
    """By a context, through a handler that hands it on, by leaving the loop, by a task, by dying: handlers hear it."""
    server = start("cancel_server.py")
    client = start("cancel_client.py")
    lines = client.end()
    assert lines[-1] == "dying"
    server.wait_for("context stopped True")
    server.wait_for("linked-inner stopped True")
    server.wait_for("linked passed on")
    server.wait_for("left stopped True killed True")
    server.wait_for("task stopped True killed True")
    server.wait_for("dead stopped True killed True")
    assert "task cancelled True" in lines
    server.leave()


def test_the_typed_program_runs(start: Start) -> None:
    """What `make check` reads as types is so at run time."""
    assert start("typed.py").end() == ["typed"]


def test_the_native_module_of_2025(start: Start) -> None:
    """`from dynamo._core import …` gives the runtime, clients, streams and registration."""
    assert start("dynamo_0_1/core.py", fresh=True).end() == [
        "items ['hello', 'world'] ItemStream",
        "names backend OverlapScores dynamo.llm.serving.registration",
    ]


def test_the_native_module_of_2026(start: Start) -> None:
    """By name and by attribute, loading nothing heavy; names that aren't there say what to use."""
    assert start("dynamo_1/core.py", fresh=True).end() == [
        "loaded []",
        "same True True",
        "names 7 Tokens Decode 944132403",
        "parsers True True",
        "instead dynamo._core.VirtualConnectorClient is not there: pipelines are scaled by `kubectl scale`, or by an "
        "HPA on them; no planner asks a program",
        "instead dynamo.llm.LoRADownloader: there are no adapters in this version: serve the merged model under a name "
        "of its own",
        "nothing False True",
        "WARNING lib.rs:7 a line of a native library",
    ]
