"""Two nodes that are one worker: a leader and a follower as processes of their own, on a real etcd and NATS."""

from __future__ import annotations

import asyncio
import re
import signal
from typing import Any

import httpx
import pytest
from tests.system.outage.traffic import traffic
from tests.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(400)]

ARGS = '{"speedup_ratio": 2.0}'
STREAMS = 8
TOKENS = 2000
SOON = 100.0
"""A process starts in two seconds, and in forty where twelve others want the same two cores."""
WAITS_FOR_LEADER = "test.backend.generate_node: waits for the leader at 127.0.0.1:29500"


def node(stack: Any, rank: int, name: str = "", *, address: str = "127.0.0.1:29500", nodes: int = 2) -> Any:
    """One node of a group of mockers."""
    flags = ("--num-nodes", str(nodes), "--node-rank", str(rank), "--leader-addr", address)
    return stack.worker(name or f"node-{rank}", "mocker", *flags, "--engine-args", ARGS)


def health(port: int) -> tuple[int, str]:
    answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=5)
    return answer.status_code, " ".join(answer.json().get("reasons", ()))


def test_only_a_whole_group_is_an_instance(stack: Any, within: Any) -> None:
    """A leader alone is none; with its follower it is one; a follower killed takes it out until another has come."""
    leader = node(stack, 0)
    frontend = stack.frontend()
    within("the leader waits", lambda: "waits for node 1 of the group" in leader.text(), SOON)
    within("nobody is there", lambda: frontend.instances() == 0, SOON)
    follower = node(stack, 1)
    at_leader, at_follower = leader.ready_line(SOON), follower.ready_line(SOON)
    frontend.wait_for(instances=1)
    assert frontend.instances() == 1, "a follower is none"
    assert health(at_leader["system_port"])[0] == health(at_follower["system_port"])[0] == 200

    follower.kill()
    within("it is out of routing", lambda: frontend.instances() == 0, SOON)
    status, reasons = health(at_leader["system_port"])
    assert status == 503
    assert "node 1" in reasons
    assert leader.popen.poll() is None

    follower.restart()
    within("it is back", lambda: frontend.instances() == 1, SOON)
    within("and says so", lambda: health(at_leader["system_port"])[0] == 200, SOON)
    answer = httpx.post(f"{frontend.url}/v1/completions", json={"model": "m", "prompt": "hi"}, timeout=20)
    assert answer.status_code == 200


async def test_streams_of_a_broken_group_go_on_elsewhere(stack: Any) -> None:
    """A follower killed under 8 streams: those of its group migrate to the other one, all are whole, and its leader
    lives on and is routed to again once another follower has come."""
    groups = {
        address: [node(stack, rank, f"group-{n}-{rank}", address=address) for rank in (0, 1)]
        for n, address in enumerate(("127.0.0.1:29500", "127.0.0.1:29600"))
    }
    frontend = stack.frontend("--migration-limit", "3")
    frontend.wait_for(instances=2)
    leader, follower = groups["127.0.0.1:29500"]
    here = leader.ready_line(SOON)["instance"]

    async with traffic(frontend.url) as clients:
        begun = clients.begin(STREAMS, 40)
        await clients.begun(begun)
        await asyncio.to_thread(follower.kill)
        await clients.ended(SOON)
        assert {(answer.text, answer.over, answer.status) for answer in begun} == {(begun[0].text, True, 200)}
        assert {answer.usage["completion_tokens"] for answer in begun} == {TOKENS}
        assert 1 <= await clients.migrated() <= STREAMS
        assert here not in [await clients.where() for _ in range(4)]
        await asyncio.to_thread(follower.restart)
        await clients.until_it_goes_to(here, SOON)


def test_a_follower_outlives_its_leader(stack: Any, within: Any) -> None:
    """It isn't ready without one, and joins the next at that address, whose engine has forgotten everything."""
    leader, follower = node(stack, 0), node(stack, 1)
    port = follower.ready_line(SOON)["system_port"]
    frontend = stack.frontend()
    frontend.wait_for(instances=1)
    leader.kill()
    within("the follower waits", lambda: health(port) == (503, WAITS_FOR_LEADER), SOON)
    within("nobody is there", lambda: frontend.instances() == 0, SOON)
    leader.restart()
    within("they are whole again", lambda: health(port)[0] == 200, SOON)
    within("and an instance", lambda: frontend.instances() == 1, SOON)
    assert follower.popen.poll() is None


def test_two_leaders_at_one_address_share_no_follower(stack: Any, within: Any) -> None:
    """The second one waits, until the first has gone."""
    first, follower = node(stack, 0), node(stack, 1)
    first.ready_line(SOON)
    second = node(stack, 0, "second")
    within("the second waits", lambda: "waits for node 1 of the group" in second.text(), SOON)
    first.kill()
    second.ready_line(SOON)
    assert follower.popen.poll() is None


def test_a_group_leaves_without_breaking_a_stream(stack: Any) -> None:
    """Both nodes are told to end at the same time, as pods are: running streams end, and so do both, well."""
    leader, follower = node(stack, 0), node(stack, 1)
    frontend = stack.frontend()
    frontend.wait_for(instances=1)

    async def run() -> None:
        async with traffic(frontend.url) as clients:
            begun = clients.begin(4, 40)
            await clients.begun(begun)
            for part in (follower, leader):
                part.signal(signal.SIGTERM)
            await clients.ended(SOON)
            assert [(answer.usage.get("completion_tokens"), answer.error) for answer in begun] == [(TOKENS, {})] * 4

    asyncio.run(run())
    assert (leader.popen.wait(SOON), follower.popen.wait(SOON)) == (0, 0)


def test_a_follower_that_is_told_to_end_waits_for_streams(stack: Any, within: Any) -> None:
    """Its leader leaves routing, the streams end, and only then it goes; the leader stays, not ready."""
    leader, follower = node(stack, 0), node(stack, 1)
    port = leader.ready_line(SOON)["system_port"]
    frontend = stack.frontend()
    frontend.wait_for(instances=1)

    async def run() -> None:
        async with traffic(frontend.url) as clients:
            begun = clients.begin(4, 40)
            await clients.begun(begun)
            follower.signal(signal.SIGTERM)
            await until("it is out of routing", lambda: frontend.instances() == 0, SOON)
            await clients.ended(SOON)
            assert [(answer.usage.get("completion_tokens"), answer.error) for answer in begun] == [(TOKENS, {})] * 4

    asyncio.run(run())
    assert follower.popen.wait(SOON) == 0
    within("the leader waits again", lambda: "waits for node 1" in health(port)[1], SOON)


def test_etcd_that_comes_back_empty_breaks_no_group(stack: Any, within: Any) -> None:
    """Records are written again; the group was whole all the time, and its streams go on."""
    leader, follower = node(stack, 0), node(stack, 1)
    ports = [part.ready_line(SOON)["system_port"] for part in (leader, follower)]
    frontend = stack.frontend()
    frontend.wait_for(instances=1)

    async def run() -> None:
        async with traffic(frontend.url) as clients:
            begun = clients.begin(4, 40)
            await clients.begun(begun)
            await asyncio.to_thread(stack.etcd.kill)
            await asyncio.to_thread(stack.start_etcd)
            await clients.ended(SOON)
            assert [(answer.usage.get("completion_tokens"), answer.error) for answer in begun] == [(TOKENS, {})] * 4

    asyncio.run(run())
    within("both are ready", lambda: [health(port)[0] for port in ports] == [200, 200], SOON)
    assert re.search(r"of the group at \S+ lost", leader.text()) is None


def test_nodes_that_do_not_fit_say_why(stack: Any, within: Any) -> None:
    """Another number of nodes is no member; the leader and the node name both numbers."""
    leader = node(stack, 0)
    within("it waits", lambda: "waits for node 1" in leader.text(), SOON)
    other = node(stack, 1, "other", nodes=3)
    words = "was started with --num-nodes 3, this one with 2"
    within("the leader knows", lambda: words in leader.text(), SOON)
    within("and so does the node", lambda: "--num-nodes 2, this one with 3" in other.text(), SOON)
