"""What is left when clients or the frontend itself leave: nothing."""

from __future__ import annotations

import json
import math
import random
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from dynamo.frontend.server import longer

BODY = {"model": "m", "prompt": "abcdefgh", "max_tokens": 100, "stream": True}


def stream(site: Any, found: list[str]) -> threading.Thread:
    """Read one stream in a thread; what arrived is in `found` afterwards."""

    def read() -> None:
        text = ""
        try:
            with httpx.stream("POST", f"{site.url}/v1/completions", json=BODY, timeout=20) as answer:
                for piece in answer.iter_text():
                    text += piece
        except httpx.HTTPError as error:
            text += f"<{type(error).__name__}>"
        found.append(text)

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def test_running_streams_end_before_the_frontend_does(make_site: Any, engines: Any, within: Any) -> None:
    """After SIGTERM new connections are refused, a running stream is finished, then the process is free to go."""
    found: list[str] = []
    site = make_site(graceful_shutdown_timeout_secs=10.0)
    engine = engines(delay=0.01)
    site.worker(engine)
    reading = stream(site, found)
    within("it streams", lambda: engine.running == 1)
    site.call(site.leaving.signal)
    reading.join(20)
    assert found[0].endswith("data: [DONE]\n\n")
    assert found[0].count('"finish_reason":"length"') == 1
    within("nobody listens any more", lambda: _refused(site.url))


def _refused(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return True
    return False


def test_streams_over_the_grace_are_cut_and_cancelled(make_site: Any, engines: Any, within: Any) -> None:
    """What does not end within the grace is cut; the engine is freed."""
    found: list[str] = []
    site = make_site(graceful_shutdown_timeout_secs=0.2)
    engine = engines(delay=0.2)
    site.worker(engine)
    reading = stream(site, found)
    within("it streams", lambda: engine.running == 1)
    site.call(site.leaving.signal)
    reading.join(20)
    assert "[DONE]" not in found[0]
    within("the engine is free", lambda: engine.running == 0)


def test_draining_answers_with_connection_close(make_site: Any, engines: Any, within: Any) -> None:
    """While it still accepts, `/health` is 503 and every answer ends its connection."""
    site = make_site(shutdown_delay_secs=5.0)
    site.worker(engines())
    with httpx.Client(base_url=site.url) as client:
        assert "connection" not in client.get("/health").headers
        site.call(site.leaving.signal)
        within("it is not ready", lambda: client.get("/health").status_code == 503)
        answer = client.post("/v1/completions", json={**BODY, "stream": False, "max_tokens": 2})
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")


@pytest.mark.parametrize(
    ("elapsed", "since_asked", "more"),
    [(5.0, math.inf, 0.0), (5.0, 5.0, 0.0), (5.0, 0.5, 4.5), (6.5, 0.0, 5.0), (14.0, 0.0, 1.0), (15.5, 0.0, 0.0)],
)
def test_how_much_longer_it_accepts(elapsed: float, since_asked: float, more: float) -> None:
    """Until no request came for 5 s, and never beyond 15, where 5 are told."""
    assert longer(5.0, elapsed, since_asked) == pytest.approx(more)


def test_it_accepts_while_requests_still_come(make_site: Any, engines: Any, within: Any) -> None:
    """A proxy that learns late loses nothing: new connections are answered past the time that was told."""
    site = make_site(shutdown_delay_secs=5.0)  # a busy machine's longest pause between two requests of ours
    site.worker(engines())
    site.call(site.leaving.signal)

    def ask() -> httpx.Response:
        answer = httpx.post(f"{site.url}/v1/completions", json={**BODY, "stream": False, "max_tokens": 1})
        assert answer.status_code == 200
        return answer

    within("it is leaving", lambda: "connection" in ask().headers)
    end = time.monotonic() + 6.0
    while time.monotonic() < end:
        assert ask().headers["connection"] == "close"


def test_probes_do_not_prolong_it(make_site: Any, engines: Any, within: Any) -> None:
    """The kubelet asks for as long as the pod is there."""
    site = make_site(shutdown_delay_secs=2.0)
    site.worker(engines())
    site.call(site.leaving.signal)

    def refused() -> bool:
        try:
            httpx.get(f"{site.url}/health")
        except httpx.TransportError:
            return True
        return False

    within("it is gone", refused, 5.0)


def test_clients_that_leave_at_any_time_leave_nothing(site: Any, engines: Any, within: Any) -> None:
    """Clients that hang up before, in and after their streams: no stream, slot, task or count stays behind."""
    engine = engines(delay=0.001)
    site.worker(engine)
    body = json.dumps(BODY).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    whole = head % len(body) + body
    dice = random.Random(7)

    def one(cut: int, reads: int) -> None:
        with site.socket() as sock:
            sock.sendall(whole[:cut])
            for _ in range(reads):
                if not sock.recv(2048):
                    return

    plans = [(dice.choice([20, len(whole) - 5, len(whole)]), dice.randrange(6)) for _ in range(120)]
    plans = [(cut, reads if cut == len(whole) else 0) for cut, reads in plans]
    threads = [threading.Thread(target=one, args=plan) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    within("all engines are free", lambda: engine.running == 0)
    within("all requests are over", lambda: site.metric("inflight_requests") == 0)
    within("no stream is open", lambda: site.runtime.caller.active == 0)
    assert site.post("/v1/completions", {**BODY, "stream": False, "max_tokens": 3}).status_code == 200
