"""Bodies as large as they may be, and as bad as they can be: others are answered meanwhile, and memory comes back."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

LIMIT: Final = 4 << 20
CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
SLACK_SECONDS: Final = 2.0
"""What a busy machine may add; without bounds each of these bodies held the loop for longer, most for 5 to 100 s."""


def filled(before: bytes, unit: bytes, after: bytes, most: int = LIMIT) -> bytes:
    """A body of nearly `most` bytes, made of one unit many times."""
    times = (most - len(before) - len(after)) // (len(unit) + 1)
    return before + b",".join([unit] * times) + after


HELLO: Final = b'{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"hi"}],'
ASK: Final = b'{"model":"m","max_tokens":1,"messages":['
CALL: Final = b'{"id":"1","type":"function","function":{"name":"f","arguments":"%s"}}'
KEYS: Final = b",".join(b'"%d":1' % number for number in range(370_000))
LONG: Final = b"x" * (LIMIT - 400)
CASES: Final[dict[str, tuple[str, bytes, int]]] = {
    "a model's name": (CHAT, b'{"model":"' + LONG + b'","messages":[{"role":"user","content":"hi"}]}', 400),
    "half a pair, deep": (TEXT, filled(b'{"model":"m","prompt":"a","metadata":' + b"[" * 60, b'"' + b"a" * 40 + b'"',
                                       b',"\\ud800"' + b"]" * 60 + b"}"), 400),
    "half a pair, 900 deep": (TEXT, b'{"model":"m","prompt":"' + LONG[:-9000] + b'","metadata":' + b'["a",' * 900
                              + b'"\\ud800"' + b"]" * 900 + b"}", 400),
    "empty lists": (CHAT, filled(HELLO + b'"metadata":{"a":[', b"[]", b"]}}"), 400),
    "unknown keys": (CHAT, HELLO + KEYS + b"}", 400),
    "tools that are forced": (CHAT, filled(HELLO + b'"tool_choice":"required","tools":[',
                                           b'{"type":"function","function":{"name":"f"}}', b"]}"), 400),
    "arguments of a call": (CHAT, ASK + b'{"role":"assistant","tool_calls":['
                            + CALL % (b"[" + b"[]," * 1_390_000 + b"1]") + b"]}]}", 400),
    "biases": (CHAT, HELLO + b'"logit_bias":{' + KEYS + b"}}", 400),
    "stop ids": (CHAT, filled(HELLO + b'"stop_token_ids":[', b"123456", b"]}"), 400),
    "numbers too long": (CHAT, filled(HELLO + b'"tools":[', b"9" * 4000, b"]}"), 400),
    "token ids": (TEXT, filled(b'{"model":"m","prompt":[', b"123456", b"]}"), 400),
    "many answers to long prompts": (TEXT, filled(b'{"model":"m","n":128,"max_tokens":1,"prompt":[',
                                                  b'"' + b"x" * 100_000 + b'"', b"]}", 1_700_000), 400),
    "messages": (CHAT, filled(ASK, b'{"role":"user","content":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}', b"]}"), 400),
    "messages as many as may be": (CHAT, filled(ASK, b'{"role":"user","content":"' + b"x" * 390 + b'"}', b"]}"), 400),
    "a prompt over the context": (TEXT, b'{"model":"m","prompt":"' + LONG + b'"}', 400),
    "escapes": (CHAT, ASK + b'{"role":"user","content":"' + b"\\u00e9" * 690_000 + b'"}]}', 400),
    "choices": (CHAT, filled(HELLO + b'"guided_choice":[', b'"abcdefgh"', b"]}"), 400),
    "tokenize": ("/tokenize", b'{"model":"m","return_token_strs":true,"prompt":"' + LONG + b'"}', 400),
    "tokenize messages": ("/tokenize", filled(ASK, b'{"role":"user","content":"a"}', b"]}"), 400),
    "detokenize": ("/detokenize", filled(b'{"model":"m","tokens":[', b"65", b"]}"), 400),
    "detokenize large ids": ("/detokenize", filled(b'{"model":"m","tokens":[', b"123456", b"]}"), 400),
    "inputs": ("/v1/embeddings", filled(b'{"model":"m","input":[', b"[1,2]", b"]}"), 400),
    "a threshold": ("/busy_threshold", b'{"model":"' + LONG + b'"}', 413),
    "no JSON": (CHAT, b"[" * (LIMIT - 1), 400),
    "one byte too many": (CHAT, b" " * (LIMIT + 1), 413),
}  # fmt: skip


class Bystander:
    """Another client: asks `/live` all the time and reads a stream, and keeps the longest wait of either."""

    def __init__(self, url: str) -> None:
        self._url, self._over = url, threading.Event()
        self.longest, self.rounds = 0.0, 0
        self.failed: list[str] = []
        self._threads = [threading.Thread(target=work) for work in (self._probe, self._read)]
        for thread in self._threads:
            thread.start()

    def taken(self) -> float:
        """The longest wait since the last look."""
        longest, self.longest = self.longest, 0.0
        return longest

    def _probe(self) -> None:
        with httpx.Client(base_url=self._url, timeout=120) as client:
            while not self._over.wait(0.01):
                began = time.monotonic()
                if client.get("/live").status_code != 200:
                    self.failed.append("/live")
                self.longest = max(self.longest, time.monotonic() - began)
                self.rounds += 1

    def _read(self) -> None:
        body = {"model": "m", "prompt": "x" * 400, "max_tokens": 400, "stream": True}
        with httpx.Client(base_url=self._url, timeout=120) as client:
            while not self._over.is_set():
                with client.stream("POST", TEXT, json=body) as answer:
                    if answer.status_code != 200:
                        self.failed.append(f"stream {answer.status_code}")
                    last = time.monotonic()
                    for _ in answer.iter_raw():
                        self.longest = max(self.longest, time.monotonic() - last)
                        last = time.monotonic()
                        if self._over.is_set():
                            return

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)


def memory(frontend: Any, name: str) -> float:
    """A figure of the process in MB."""
    status = Path(f"/proc/{frontend.process.popen.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(name))


def send(url: str, path: str, body: bytes) -> tuple[int, int]:
    """The status of the answer, and its size. Not by httpx, which takes long for large bodies."""
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, len(answer.read())
    finally:
        connection.close()


@pytest.fixture
def frontend(stack: Any) -> Any:
    """A frontend with default flags, and a worker."""
    stack.worker()
    frontend = stack.frontend()
    frontend.process.ready_line()
    frontend.wait_for()
    return frontend


@pytest.fixture
def bystander(frontend: Any) -> Iterator[Bystander]:
    """Another client of it."""
    made = Bystander(frontend.url)
    yield made
    made.stop()


def test_one_hostile_body_disturbs_nobody(frontend: Any, bystander: Bystander, within: Any) -> None:
    """Each is refused in some hundred bytes; nobody else waits for it, and its memory comes back."""
    within("the bystander is served", lambda: bystander.rounds > 100)  # what it waits without any of them
    usual, before = bystander.taken(), memory(frontend, "VmRSS")
    waits: dict[str, float] = {}
    for name, (path, body, status) in CASES.items():
        got, size = send(frontend.url, path, body)
        waits[name] = bystander.taken()
        assert (name, got) == (name, status)
        assert size < 2000, name
    slow = {name: wait for name, wait in waits.items() if wait > usual + SLACK_SECONDS}
    assert not slow
    assert not bystander.failed
    assert memory(frontend, "VmHWM") < before + 150
    assert "Traceback" not in frontend.process.text()
    assert len(frontend.process.text()) < 50_000


def test_a_hundred_at_once_disturb_nobody(frontend: Any, bystander: Bystander, within: Any) -> None:
    """With default flags they are read in turn, or refused for want of room; memory is bounded by the budget."""
    within("the bystander is served", lambda: bystander.rounds > 100)
    usual, before = bystander.taken(), memory(frontend, "VmRSS")
    names = ("empty lists", "token ids", "detokenize large ids", "escapes", "a model's name")
    cases = [CASES[name] for name in names] * 20
    with ThreadPoolExecutor(100) as clients:
        answers = list(clients.map(lambda case: send(frontend.url, *case[:2]), cases))
    assert {status for status, _ in answers} <= {400, 503}
    assert bystander.taken() < usual + SLACK_SECONDS
    assert not bystander.failed
    assert memory(frontend, "VmHWM") < before + 500
    assert "Traceback" not in frontend.process.text()
