"""However requests end, nothing stays counted: not in the queue, not on a worker, not in a session."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
from random import Random
from typing import Any, Final

import httpx
import pytest

from dynamo.frontend.generation.choice import Choice
from dynamo.frontend.http.connection import Connection
from dynamo.frontend.limits.concurrency_limits import Slot
from dynamo.frontend.responses.event_answer import EventAnswer
from dynamo.frontend.responses.messages_writer import MessagesWriter
from dynamo.frontend.responses.response import SseResponse
from dynamo.frontend.responses.responses_writer import ResponsesWriter
from dynamo.frontend.responses.stream import ResponseStream
from dynamo.frontend.routing import model_watcher
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.frontend.routing.session_affinity import Sessions
from dynamo.llm.protocols import delta
from dynamo.runtime.context import Context
from dynamo.runtime.errors import Disconnected, EngineError, StreamIncomplete, WorkerUnavailable

MODES: list[dict[str, Any]] = [{"router_mode": "power-of-two"}, {"router_mode": "kv", "use_kv_events": False}]
REQUESTS = 120


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[ModelSet]:
    """Every set that a frontend makes from now on."""
    made: list[ModelSet] = []

    class Recorded(ModelSet):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(model_watcher, "ModelSet", Recorded)
    return made


async def one(url: str, body: dict[str, Any], session: str, patience: float) -> int:
    """Its status; 0 where the client had no patience."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-dynamo-session-id: {session}\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)
    try:
        async with asyncio.timeout(patience):
            answer = await reader.read(-1)
        return int(answer.split(b" ")[1])
    except TimeoutError:
        return 0
    finally:
        writer.close()


async def many(url: str, random: Random) -> list[int]:
    asked = []
    for number in range(REQUESTS):
        body = {
            "model": "m", "prompt": f"{number:3} " + "x" * random.randrange(1, 200),
            "max_tokens": random.randrange(1, 8),
            "stream": random.random() < 0.5, "n": random.choice([1, 1, 3]),
            "nvext": {"agent_hints": {"priority": random.randrange(3)}},
        }  # fmt: skip
        patience = random.choice([0.01, 0.05, 0.2, 30.0, 30.0, 30.0])
        asked.append(asyncio.create_task(one(url, body, f"s{number % 7}", patience)))
        await asyncio.sleep(random.random() * 0.01)
    return await asyncio.gather(*asked)


STREAMS: Final[dict[bytes, dict[str, Any]]] = {
    b"completions": {"prompt": "x" * 500, "max_tokens": 500},
    b"responses": {"input": "x" * 500, "max_output_tokens": 500},
    b"messages": {"messages": [{"role": "user", "content": "x" * 500}], "max_tokens": 500},
}


def give_up(site: Any, route: bytes, **asked: Any) -> None:
    """Ask for a long stream, read its beginning, leave."""
    raw = json.dumps({"model": "m", "stream": True, **STREAMS[route], **asked}).encode()
    with site.socket() as sock:
        sock.sendall(b"POST /v1/%b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (route, len(raw)) + raw)
        assert sock.recv(100).startswith(b"HTTP/1.1 200 ")


def of_requests() -> dict[int, Any]:
    """What is made for a request, as far as it is there, by id."""
    kinds = (Choice, SseResponse, EventAnswer, ResponsesWriter, MessagesWriter, ResponseStream, Context, Slot)
    return {id(entry): entry for entry in gc.get_objects() if isinstance(entry, kinds)}


@pytest.mark.parametrize(
    ("settings", "route"),
    [({"backend_stream_timeout_secs": 60, "max_concurrent_requests": 1}, b"completions"),
     *(({}, route) for route in STREAMS)],
)  # fmt: skip
def test_given_up_ones_leave_nothing(
    make_site: Any, engines: Any, within: Any, settings: dict[str, Any], route: bytes
) -> None:
    """No task, no open stream, no object of theirs, after 100 clients that left in mid-stream."""
    site, engine = make_site(**settings), engines(delay=0.001)
    site.worker(engine)

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    before, others = site.run(tasks()), of_requests()  # of tests before this one, which may have kept some
    for number in range(1, 101):
        give_up(site, route)
        within("the engine is free", lambda number=number: (engine.running, engine.cancelled) == (0, number))
    within("no task", lambda: site.run(tasks()) <= before)
    assert site.runtime.caller.active == 0
    within("no object", lambda: of_requests().keys() <= others.keys())


ENDS = [
    "whole",
    "given up",
    "given up of two",
    "idle",
    "reset",
    "one after the other",
    "of two choices",
    "of two prompts",
]
ASKED: dict[str, dict[str, Any]] = {"of two choices": {"n": 2}, "of two prompts": {"prompt": ["x", "y"]}}


@pytest.mark.parametrize("ends", ENDS)
def test_connections_leave_nothing_to_the_collector(make_site: Any, engines: Any, within: Any, ends: str) -> None:
    """What ten thousand ended streams leave in circles is looked for at once, while all others wait."""
    site, engine = make_site(), engines(delay=0.001)
    site.worker(engine)
    asked = ASKED.get(ends, {})
    others = connections()
    gc.disable()
    try:
        for _ in range(20):
            if ends.startswith("given up"):
                give_up(site, b"completions", **({"n": 2} if ends == "given up of two" else {}))
                within("the engine is free", lambda: not engine.running)
            elif ends in ("idle", "reset"):
                with site.socket() as sock:
                    sock.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
                    assert sock.recv(100).startswith(b"HTTP/1.1 200 ")
                    if ends == "reset":
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                with httpx.Client(base_url=site.url, timeout=20) as client:
                    for _ in range(3 if ends == "one after the other" else 1):
                        body = {"model": "m", "prompt": "x", "max_tokens": 3, "stream": ends == "whole", **asked}
                        assert client.post("/v1/completions", json=body).status_code == 200
        within("no connection", lambda: connections() <= others)
    finally:
        gc.enable()


def connections() -> set[int]:
    """The connections that are there, by id."""
    return {id(entry) for entry in gc.get_objects() if isinstance(entry, Connection)}


@pytest.mark.parametrize("mode", MODES, ids=["power-of-two", "kv"])
def test_whole_given_up_refused_and_waiting_ones(
    make_site: Any, engines: Any, within: Any, monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any]
) -> None:
    """Two slow workers, a queue of 20, clients without patience: every end there is, at once."""
    sets = recorded(monkeypatch)
    site = make_site(
        **mode, router_queue_threshold=1.0, router_queue_limit=20, router_queue_timeout_secs=3.0,
        active_decode_blocks_threshold=0.9, router_session_affinity_ttl_secs=1,
    )  # fmt: skip
    for _ in range(2):
        figures = {"total_kv_blocks": 200, "max_num_batched_tokens": 100, "max_num_seqs": 8}
        site.worker(engines(delay=0.005), figures=figures, kv_cache_block_size=8)
    outcome = asyncio.run(many(site.url, Random(7)))
    assert set(outcome) <= {0, 200, 503}
    assert outcome.count(200) > REQUESTS // 10
    (only,) = sets
    gate, sessions = only.gate, only.sessions
    assert gate is not None
    assert isinstance(sessions, Sessions)
    within("nobody waits", lambda: len(gate) == 0)
    within("nothing runs", lambda: not any(worker.open_streams for worker in only.workers.values()))
    assert [(load.prefill_tokens, load.blocks) for load in only.loads()] == [(0, 0)] * 2
    assert not any(binding.running for binding in sessions._bindings.values())
    pending = [site.metric(f"router_queue_pending_{what}", model="m") for what in ("requests", "isl_tokens")]
    assert (pending, site.metric("inflight_requests", model="m")) == ([0, 0], 0)
    assert 0 < site.metric("asyncio_tasks") < 20
    assert site.metric("router_queue_wait_seconds_count", model="m") > 0


class Moody:
    """A prefill worker that computes, refuses, fails, breaks off or takes its time, as the dice fall.

    A prompt loses a worker that dies once at most (`died_with`): whoever dies with it twice is its fault, and it is
    refused (`generation/test_migration.py`).
    """

    def __init__(self, echo: Any, random: Random, died_with: set[tuple[int, ...]]) -> None:
        self._echo, self._random, self._died_with = echo, random, died_with

    def __call__(self, incoming: Any) -> None:
        mood = self._random.randrange(6)
        if mood == 0:
            incoming.fail(WorkerUnavailable())
        elif mood == 1:
            incoming.fail(EngineError("it failed"))
        elif mood == 2:
            prompt = tuple(incoming.payload["token_ids"])
            incoming.fail(StreamIncomplete() if prompt in self._died_with else Disconnected())
            self._died_with.add(prompt)
        elif mood == 3:
            self._echo(incoming)  # it speaks for a while, and hands nothing out
        else:
            incoming.finish(delta([65], "length", {"disaggregated_params": {}}))


@pytest.mark.parametrize("figures", [{}, {"bootstrap_port": 1}], ids=["handed over", "met"])
@pytest.mark.parametrize("mode", MODES, ids=["power-of-two", "kv"])
def test_of_both_parts(
    make_site: Any, engines: Any, within: Any, monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any], figures: Any
) -> None:
    """Two moody prefill workers, two decode workers of which one refuses now and then: whole, given up, computed
    once, twice and elsewhere."""
    sets, random = recorded(monkeypatch), Random(11)
    site = make_site(**mode, active_decode_blocks_threshold=0.99)
    decode = engines(delay=0.002)

    def refuses(incoming: Any) -> None:
        if random.random() < 0.3:
            incoming.fail(WorkerUnavailable())
        else:
            decode(incoming)

    died_with: set[tuple[int, ...]] = set()
    for _ in range(2):
        moody = Moody(engines(delay=0.02), random, died_with)
        site.worker(moody, path="test.prefill.generate", role="prefill", wait=False, figures=figures)
    for engine in (decode, refuses):
        site.worker(engine, role="decode", figures={"total_kv_blocks": 2000})
    outcome = asyncio.run(many(site.url, Random(7)))
    assert set(outcome) <= {0, 200}
    assert outcome.count(200) > REQUESTS // 3
    assert len(sets) == 2
    workers = [worker for entry in sets for worker in entry.workers.values()]
    assert len(workers) == 4
    within("nothing runs", lambda: not any(worker.open_streams for worker in workers))
    for item in sets:
        assert {(load.prefill_tokens, load.blocks) for load in item.loads()} == {(0, 0)}
    counted = {name: site.metric(f"model_{name}_total", model="m") for name in ("remote_prefills", "prefill_fallbacks")}
    assert all(counted.values()), counted
