"""`dynamo doctor NAME` of a pipeline of real processes: its engine, its template, its state, its servers, its end."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest
from click.testing import CliRunner
from tests.waiting import eventually

from dynamo.cli.diagnosis import slowness
from dynamo.cli.main import dynamo

if TYPE_CHECKING:
    from conftest import Workplace  # type: ignore[import-not-found]  # pytest finds it, mypy doesn't

pytestmark = [pytest.mark.processes, pytest.mark.servers]
ENGINE = """
import asyncio
async def generate(request):
    wanted = request["stop_conditions"]["max_tokens"]
    if wanted == 13:
        raise RuntimeError("unlucky")
    if wanted == 15:
        return
    if wanted == 14:
        await asyncio.Event().wait()
    yield {"token_ids": [65], "finish_reason": "stop"}
"""
PIPELINE = """\
apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: test}
spec:
  model: {name: m, chatTemplate: "{{ raise_exception('no system messages') }}"}
  components: [{engine: python, python: {file: mine.py}}]
"""


def _findings(place: Workplace, name: str = "test") -> list[dict[str, str]]:
    done = CliRunner().invoke(dynamo, ["doctor", name, "-o", "json"], env={"XDG_STATE_HOME": str(place.state)})
    findings: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return findings


def _body(tokens: int) -> dict[str, Any]:
    return {"model": "m", "prompt": "hi", "max_tokens": tokens, "stream": tokens == 14}


@contextmanager
def _waiting(url: str) -> Iterator[None]:
    """A client that asks for what never comes, and leaves at the end."""
    body, address = json.dumps(_body(14)).encode(), urlsplit(url)
    head = f"POST {address.path}/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\n"
    with socket.create_connection((str(address.hostname), address.port or 0)) as client:
        client.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        yield


def test_each_trouble_is_named_by_its_cause(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that raises, one that never yields, a template that refuses, a damaged state; at last, who ended it."""
    monkeypatch.setattr(slowness, "STALLED_SECONDS", 0.2)
    (place.folder / "mine.py").write_text(ENGINE)
    up = place.up(place.write(text=PIPELINE))
    url = up.wait_for("url ").split()[1]
    assert _findings(place) == []
    assert httpx.post(f"{url}/completions", json=_body(13), timeout=60).status_code == 500
    (raised,) = _findings(place)
    assert ("RuntimeError: unlucky" in raised["cause"], "correct mine.py:6" in raised["mend"]) == (True, True)
    with _waiting(url):
        slow = eventually("it is slow", lambda: [f for f in _findings(place) if f["code"] == "slow-worker"], 20)[0]
        assert ("worker-0 of test" in slow["what"], "mine, for" in slow["cause"]) == (True, True)
        assert "now prefill" in place.run("explain", "mine").stdout
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert [httpx.post(f"{url}/chat/completions", json=chat).status_code for _ in range(3)] == [400] * 3
    (template,) = (f for f in _findings(place) if f["code"] == "chat-template")
    assert ("no system messages" in template["cause"], "chatTemplate" in template["mend"]) == (True, True)
    (place.state / "dynamo" / "test" / "state.json").write_text("{")
    eventually("it is written again", lambda: place.parts(), 10)
    up.signal(signal.SIGTERM)
    up.end()
    (ended,) = _findings(place)
    assert ("Ctrl-C" in ended["cause"], ended["mend"].startswith("dynamo up /")) == (True, True)


def test_an_etcd_that_hangs_is_named_before_the_parts_that_wait_for_it(place: Workplace) -> None:
    """It takes connections and answers nothing; no process of it is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as etcd:
        place.environment["ETCD_ENDPOINTS"] = url = f"http://127.0.0.1:{etcd.getsockname()[1]}"
        place.fake()
        place.up(place.write())
        eventually("it waits", lambda: any(part["kind"] == "worker" for part in place.parts()), 20)
        first = _findings(place)[0]
    assert (first["code"], url in first["what"], "unset ETCD_ENDPOINTS" in first["mend"]) == ("server-away", True, True)


def test_why_it_never_began_is_repeated(place: Workplace) -> None:
    """A port that is taken; the pipeline was never up, and its name is known all the same."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = place.up(place.write(), "--http-port", str(taken.getsockname()[1]))
        up.end()
    (first,) = _findings(place)
    assert (first["code"], "is in use" in first["cause"]) == ("port-taken", True)
    assert first["mend"] == f"dynamo up {Path(place.folder / 'test.yaml').resolve()} --http-port 0"


def test_a_state_that_can_not_be_read_is_said(place: Workplace) -> None:
    """`dynamo up` is stopped, so it writes its state no more: both are named, and `dynamo ps` hides nothing."""
    place.fake()
    up = place.up(place.write())
    up.wait_for("curl ")
    up.signal(signal.SIGSTOP)
    (place.state / "dynamo" / "test" / "state.json").write_text("{")
    codes = [(finding["code"], finding["mend"]) for finding in _findings(place)]
    assert codes[0] == ("stopped", f"kill -CONT {up.process.pid}")
    assert codes[1][0] == "state-broken"
    assert "its state can't be read" in place.run("ps").stderr
    up.signal(signal.SIGCONT)
    eventually("it is written again", lambda: place.parts(), 10)
