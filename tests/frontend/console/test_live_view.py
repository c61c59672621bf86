"""`GET /console/events` over a whole frontend: what it shows, to whom, and what it never shows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.frontend.conftest import Echo, Site
from tests.waiting import eventually

from dynamo.frontend.console.admission import MOST_VIEWERS
from dynamo.frontend.request_log.placements import MOST_PLACEMENTS

PATH: Final = "/console/events"
SECRET: Final = "words-of-another-tenant"
KEYS: Final = ("mine-000000000000", "another-000000000")


def ask(site: Site, text: str = "a b c", **headers: str) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return site.post("/v1/chat/completions", body, headers=headers)


@contextlib.contextmanager
def watched(site: Site, **headers: str) -> Iterator[Iterator[str]]:
    """Look at the console: yield the text of each snapshot."""
    with httpx.stream("GET", site.url + PATH, headers=headers, timeout=15) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield (line[5:] for line in answer.iter_lines() if line.startswith("data:"))


def until(texts: Iterator[str], check: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Return the first snapshot of which something is true; the stream's time limit ends the wait."""
    return next(fields for text in texts if check(fields := json.loads(text)))


def test_workers_come_take_requests_and_die(make_site: Callable[..., Site]) -> None:
    """Each is listed with what it does; which one took what and why, with the costs of the other one."""
    site = make_site(router_mode="kv")
    with watched(site) as texts:
        begun = until(texts, lambda _: True)
        assert begun.pop("limits")["in_flight"] == 0
        assert begun == {"workers": [], "total": 0, "models": [], "routes": []}
        first, second = (site.worker(Echo()) for _ in range(2))
        listed = until(texts, lambda fields: len(fields["workers"]) == 2 and fields["models"])
        assert [model["id"] for model in listed["models"]] == ["m"]
        assert (listed["models"][0]["images"], listed["models"][0]["router"]) == (False, "kv")
        ask(site, SECRET * 30, **{"x-request-id": SECRET})
        ids = {f"{worker.id:014x}" for worker in (first, second)}
        (route,) = until(texts, lambda fields: fields["routes"])["routes"]
        assert (route["mode"], route["reason"], route["model"], route["prefill"]) == ("kv", "chosen", "m", False)
        assert {route["worker"], route["others"][0]["worker"]} == ids
        assert route["cost"] <= route["others"][0]["cost"]
        site.stop_worker(first, 0)
        left = until(texts, lambda fields: len(fields["workers"]) == 1)
        assert left["workers"][0]["id"] == f"{second.id:014x}"


@pytest.mark.parametrize("keys", [False, True])
def test_nobody_sees_words_ids_or_keys_of_others(make_site: Callable[..., Site], tmp_path: Path, keys: bool) -> None:
    """With keys and without: no snapshot names a prompt, an answer, a request or a caller."""
    (tmp_path / "keys").write_text("\n".join(KEYS))
    site = make_site(api_keys_file=str(tmp_path / "keys") if keys else "")
    site.worker(Echo(), wait=False)
    mine, other = ({"authorization": f"Bearer {key}"} for key in KEYS)
    eventually("it answers", lambda: ask(site, **other).status_code == 200, 10)
    assert not keys or httpx.get(site.url + PATH).status_code == 401
    with watched(site, **mine) as texts:
        next(texts)
        answer = ask(site, SECRET, **other, **{"x-request-id": SECRET, "x-tenant-id": SECRET})
        assert SECRET in answer.text
        seen = [next(texts)]
        while not json.loads(seen[-1])["routes"]:
            seen.append(next(texts))
        assert not any(word in text for text in seen for word in (SECRET, *KEYS))


def test_callers_are_counted_without_their_names(make_site: Callable[..., Site]) -> None:
    """With a limit for each caller: how many there are, and what the busiest have, until their requests are over."""
    site = make_site(max_requests_per_client=3, max_concurrent_requests=8)
    site.worker(engine := Echo())
    hold = asyncio.Event()
    site.call(lambda: setattr(engine, "hold", hold))
    with watched(site) as texts, ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(ask, site, **{"x-tenant-id": tenant}) for tenant in (SECRET, SECRET, "other")]
        try:
            used = until(texts, lambda fields: fields["limits"]["in_flight"] == 3)["limits"]
        finally:
            site.call(hold.set)
        assert used == {"in_flight": 3, "most": 8, "most_per_client": 3, "callers": 2, "busiest": [2, 1]}
        assert {answer.result(20).status_code for answer in answers} == {200}
        over = until(texts, lambda fields: fields["limits"]["in_flight"] == 0)["limits"]
        assert (over["callers"], over["busiest"]) == (0, [])


def test_routing_keeps_nothing_while_nobody_looks(served: Site) -> None:
    """Choices before the first viewer aren't shown, and the last ones only."""
    ask(served)
    with watched(served) as texts:
        assert json.loads(next(texts))["routes"] == []
        for _ in range(MOST_PLACEMENTS + 3):
            ask(served)
        latest = until(texts, lambda fields: fields["routes"] and fields["routes"][-1]["number"] >= MOST_PLACEMENTS + 3)
        assert len(latest["routes"]) == MOST_PLACEMENTS
    eventually(
        "nothing is kept once the frontend has noticed that nobody looks", lambda: not _first(served)["routes"], 10
    )


def _first(site: Site) -> dict[str, Any]:
    with watched(site) as texts:
        return dict(json.loads(next(texts)))


WORST: Final = "m\r\nset-cookie: a=b\r\n\r\n<script>alert(1)</script>\u2028data: x\n\n"


def test_names_of_models_make_no_events_or_headers(site: Site) -> None:
    """A model may be called anything: its name stays within its string."""
    site.worker(Echo(), WORST)
    with httpx.stream("GET", site.url + PATH, timeout=15) as answer:
        assert "set-cookie" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        raw = b""
        for piece in answer.iter_raw():
            raw += piece
            if raw.endswith(b"\n\n") and b'"id":"m' in raw:
                break
    assert all(line[:5] in (b"data:", b"", b":") for line in raw.split(b"\n"))
    (model,) = json.loads(raw.split(b"\n\n")[0].removeprefix(b"data: "))["models"]
    assert model["id"] == WORST


def test_a_flood_of_viewers_is_refused_and_requests_go_on(served: Site) -> None:
    """A thousand connections that look: as many as there are places stream, and chats are answered meanwhile."""
    sockets = []
    request = f"GET {PATH} HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n".encode()
    began = time.monotonic()
    try:
        for _ in range(1000):
            sockets.append(served.socket())
            sockets[-1].sendall(request)
        heads = [sock.recv(15) for sock in sockets]
        assert heads.count(b"HTTP/1.1 200 OK") == MOST_VIEWERS
        assert heads.count(b"HTTP/1.1 503 Se") == 1000 - MOST_VIEWERS
        assert ask(served).status_code == 200
    finally:
        for sock in sockets:
            sock.close()
    assert time.monotonic() - began < 30
    eventually("a place is free again", lambda: _looks(served), 10)


def _looks(site: Site) -> bool:
    with httpx.stream("GET", site.url + PATH, timeout=5) as answer:
        return answer.status_code == 200


def test_a_viewer_that_reads_nothing_holds_nobody_up(served: Site) -> None:
    """Its kernel's buffers fill; another viewer sees each snapshot in time."""
    idle = socket.socket()
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = served.url.removeprefix("http://").split(":")
    idle.connect((host, int(port)))
    idle.sendall(f"GET {PATH} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    with contextlib.closing(idle), watched(served) as texts:
        next(texts)
        for _ in range(3):
            asking = threading.Thread(target=ask, args=(served,))
            asking.start()
            until(texts, lambda fields: fields["routes"])
            asking.join(10)


def test_a_frontend_leaves_although_somebody_looks(make_site: Callable[..., Site]) -> None:
    """The stream ends, so nothing waits for its time limit."""
    site = make_site(graceful_shutdown_timeout_secs=30.0)
    site.worker(Echo())
    with watched(site) as texts:
        next(texts)
        began = time.monotonic()
        site.call(site.leaving.signal)
        with contextlib.suppress(httpx.RemoteProtocolError):
            for _ in texts:
                pass
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("settings", [{"console": False}, {"public_system_routes": False}])
def test_it_is_off_with_the_console(make_site: Callable[..., Site], settings: dict[str, Any]) -> None:
    """By its flag, and where system routes are private."""
    assert httpx.get(make_site(**settings).url + PATH).status_code == 404
