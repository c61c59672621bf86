"""A leader that is paused for longer than its lease lasts, and goes on: it writes nothing any more."""

from __future__ import annotations

import signal
import time

from e2e.apiserver.client import until
from e2e.apiserver.operators import ACCOUNT
from e2e.apiserver.proxy import Proxy
from e2e.apiserver.world import Note, World

from dynamo.operator.kube.resources import resource_of

AFTER_SECONDS = 5.0


def test_a_paused_leader_wakes_up_after_another_one_leads(world: World, proxy: Proxy, note: Note) -> None:
    """SIGSTOP in the middle of a creation, SIGCONT once the other replica leads, with edits that wait for it."""
    script = proxy.faults.script(world.namespace)
    election = {"leaderElection": {"enabled": True, "lease": ACCOUNT}}
    first = world.operators.through(proxy.url, "first", election)
    until("the first one leads", lambda: world.operators.holder() == "first")
    world.pipeline("calm")
    world.until_ready("calm")
    second = world.operators.start("second", leads=False)
    until("the second one is well", lambda: second.probe("/readyz")[0] == 200)
    calm = len(script.writes)
    for name in ("llama", "more"):
        world.pipeline(name)
    until("it writes", lambda: len(script.writes) > calm)
    first.process.send_signal(signal.SIGSTOP)
    paused = time.monotonic()
    until("the second one leads", lambda: world.operators.holder() == "second")
    note("seconds from SIGSTOP to another leader", round(time.monotonic() - paused, 1))
    for name in ("calm", "llama"):
        world.pipeline(name, spec={"components": [{"engine": "mocker", "replicas": 3}]})
    written = len(script.writes)
    first.process.send_signal(signal.SIGCONT)
    until("it has noticed", lambda: "waiting for it" in first.said())
    for name in ("calm", "llama", "more"):
        world.until_ready(name)
    time.sleep(AFTER_SECONDS)
    assert script.writes[written:] == []
    assert world.operators.holder() == "second"
    assert sorted(item["spec"]["replicas"] for item in world.items(resource_of("StatefulSet"))) == [2, 3, 3]
    assert first.process.poll() is None
