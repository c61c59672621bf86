"""What clients can't have too much of: connections, calls, metadata, and time in which they say or read nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from tests.frontend.conftest import Loud
from tests.frontend.kserve.conftest import words
from tests.frontend.kserve.raw_client import (
    CONTINUATION,
    DATA,
    END_STREAM,
    HEADERS,
    MAX_CONCURRENT_STREAMS,
    MAX_HEADER_LIST_SIZE,
    PREFACE,
    RST_STREAM,
    WINDOW_UPDATE,
    Raw,
    block,
    frame,
    message,
)
from tritonclient.utils import InferenceServerException

from dynamo.frontend.http.sockets import connections_of_each
from dynamo.frontend.kserve import service
from dynamo.frontend.kserve.inference_pb2 import ModelInferRequest
from dynamo.frontend.kserve.server import LARGEST_METADATA, MOST_CALLS

DEADLINE_EXCEEDED = b"grpc-status\x014"
ABORTED = b"grpc-status\x0210"
INVALID_ARGUMENT = b"grpc-status\x013"


def request_of(text: str, tokens: int, *, streaming: bool) -> bytes:
    """A request, serialised."""
    request = ModelInferRequest(model_name="m")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1], contents={"bytes_contents": [text.encode()]})
    if streaming:
        request.inputs.add(name="streaming", datatype="BOOL", shape=[1], contents={"bool_contents": [True]})
    request.parameters["max_tokens"].int64_param = tokens
    serialised: bytes = request.SerializeToString()
    return serialised


def status(one: Raw, stream: int = 1) -> bytes:
    """The last headers of a call, as they were sent."""
    for kind, flags, number, payload in one.frames():
        if kind == HEADERS and flags & END_STREAM and number == stream:
            return payload
    raise AssertionError("the connection was closed")


@pytest.fixture
def raw() -> Iterator[Callable[..., Raw]]:
    """Makes clients without a library, and closes them."""
    made: list[Raw] = []

    def make(site: Any, **options: Any) -> Raw:
        made.append(Raw(site.grpc, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("wanted", "files", "ports", "each"),
    [(None, 1000, 1, 1000), (5000, 1000, 1, 5000), (None, None, 2, None), (7, None, 2, 7), (None, 1000, 2, 500),
     (700, 1000, 2, 500), (300, 1000, 2, 300)],
)  # fmt: skip
def test_ports_share_the_files(wanted: int | None, files: int | None, ports: int, each: int | None) -> None:
    """Where there are two, none can take them all."""
    assert connections_of_each(wanted, files, ports) == each


def test_connections_are_bounded(kserve: Any, call: Any, raw: Any, within: Any) -> None:
    """Those that say nothing, too: one more is closed at once, HTTP answers, and there is room when one ends."""
    site = kserve(max_connections=3, header_timeout_secs=60.0)
    silent = [raw(site, greet=False) for _ in range(2)]
    greeted = raw(site)
    assert greeted.greeting()
    one = raw(site, greet=False)
    assert one.sock.recv(100) == b""
    with pytest.raises(InferenceServerException) as caught:
        call(site).client.is_server_live()
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    assert httpx.get(f"{site.url}/live").status_code == 200
    silent[0].close()

    def free() -> bool:
        with suppress(InferenceServerException):
            return bool(call(site).client.is_server_live())
        return False

    within("there is room", free)


def test_a_client_is_told_its_bounds(kserve: Any, raw: Any) -> None:
    """How many calls at once, and how much metadata, are settings of HTTP/2."""
    told = raw(kserve()).greeting()
    assert (told[MAX_CONCURRENT_STREAMS], told[MAX_HEADER_LIST_SIZE]) == (MOST_CALLS, LARGEST_METADATA)


def test_calls_of_a_connection_are_bounded(kserve: Any, raw: Any) -> None:
    """A client that doesn't keep to it has the call refused; those that it has go on."""
    site = kserve()
    one = raw(site)
    for number in range(MOST_CALLS + 1):
        one.call(2 * number + 1, "ModelStreamInfer")
    last = 2 * MOST_CALLS + 1
    ended = next((kind, number) for kind, _, number, _ in one.frames() if number and kind in (HEADERS, RST_STREAM))
    assert ended == (RST_STREAM, last)
    one.send(frame(DATA, 1, 1))
    assert b"grpc-status\x010" in status(one)


def test_metadata_is_bounded(kserve: Any, call: Any) -> None:
    """Below the bound always, above it never; the connection goes on."""
    site = kserve()
    client = call(site).client
    for _ in range(20):  # between two bounds it would be a matter of luck
        assert client.is_server_live(headers={"x": "y" * (LARGEST_METADATA - 1024)})
        with pytest.raises(InferenceServerException) as caught:
            client.is_server_live(headers={"x": "y" * LARGEST_METADATA})
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("part", [b"", b"\x00\x01x\x7f\x81\x06" + b"y" * 896])
def test_headers_without_end(kserve: Any, raw: Any, within: Any, part: bytes) -> None:
    """A connection without a call is idle, whatever comes on it."""
    one = raw(kserve(keep_alive_timeout_secs=1.0))
    one.send(frame(HEADERS, 0, 1, block("ServerLive")))

    def cut() -> bool:
        try:
            one.send(frame(CONTINUATION, 0, 1, part))
        except ConnectionError:
            return True
        return False

    within("it is cut", cut)


def test_a_connection_that_says_nothing_is_closed(kserve: Any, raw: Any) -> None:
    """Before the first byte, in the middle of the greeting, and after it."""
    site = kserve(header_timeout_secs=0.5, keep_alive_timeout_secs=0.5)
    silent, half, greeted = raw(site, greet=False), raw(site, greet=False), raw(site)
    half.send(PREFACE[:10])
    for one in (silent, half, greeted):
        assert one.closed()


@pytest.mark.parametrize("part", [b"", message(b"\x0a\x01m")[:6]])
def test_a_request_that_does_not_come(kserve: Any, raw: Any, part: bytes) -> None:
    """A call of one message that has none of it, or half of it."""
    site = kserve(body_timeout_secs=0.5)
    one = raw(site)
    one.call(1, "ModelInfer")
    one.send(frame(DATA, 0, 1, part))
    assert DEADLINE_EXCEEDED in status(one)
    assert site.metric("timeouts_total", type="body") == 1


def test_a_request_that_is_none(kserve: Any, raw: Any) -> None:
    """No message, or one that can't be read: a sentence, whichever method it is."""
    site = kserve()
    for method, body in (
        ("ModelInfer", b""), ("ModelInfer", message(b"\xff")), ("ModelStreamInfer", message(b"\xff")),
    ):  # fmt: skip
        one = raw(site)
        one.call(1, method)
        one.send(frame(DATA, 1, 1, body))
        assert INVALID_ARGUMENT in status(one)


def test_a_stream_on_which_nothing_is_asked(
    kserve: Any, call: Any, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first request and after the last; not while one is answered, however long that takes."""
    monkeypatch.setattr(service, "NEXT_SECONDS", 1.5)
    site = kserve(keep_alive_timeout_secs=1.0)
    site.worker(engines(delay=0.15))
    with call(site).stream() as never:
        error = never.next()
    assert error.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert "1 s; open another one" in str(error)
    with call(site).stream() as once:
        once.ask("x" * 12, parameters={"max_tokens": 12})
        assert "".join(words(one)[0] for one in once.answer()) == "x" * 12
        error = once.next()
    assert error.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert "1.5 s; open another one" in str(error)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_stream_that_does_not_read(kserve: Any, raw: Any, within: Any, streaming: bool) -> None:
    """Whole answers and pieces wait for --write-timeout-secs; then nothing of the call is left here but its status."""
    site = kserve(write_timeout_secs=1.0)
    engine = Loud()
    site.worker(engine, context_length=1 << 20)
    one = raw(site, window=0)
    one.call(1, "ModelStreamInfer", body=request_of("x" * 1000, 200_000, streaming=streaming))
    limits = ("client_stall", "client_buffer")
    within("it is cut", lambda: sum(site.metric("timeouts_total", type=limit) for limit in limits) == 1, 30)
    within("the engine is free", lambda: engine.running == 0)
    one.send(frame(WINDOW_UPDATE, 0, 1, (1 << 24).to_bytes(4, "big")))
    one.send(frame(WINDOW_UPDATE, 0, 0, (1 << 24).to_bytes(4, "big")))
    assert ABORTED in status(one)


def test_a_call_without_a_deadline_has_the_frontends(kserve: Any, call: Any, engines: Any, within: Any) -> None:
    """--request-timeout-secs holds for whole answers, and in streams, which go on."""
    site = kserve(request_timeout_secs=0.5)
    engine = engines(delay=0.05)
    site.worker(engine)
    caller = call(site)
    with pytest.raises(InferenceServerException) as caught:
        caller.infer("x" * 200, parameters={"max_tokens": 200})
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    with caller.stream() as stream:
        stream.ask("x" * 200, request_id="1", parameters={"max_tokens": 200})
        with pytest.raises(InferenceServerException, match="time"):
            stream.answer()
        stream.ask("y", request_id="2", parameters={"max_tokens": 1})
        assert words(stream.answer()[0]) == ["y"]
    within("the engine is free", lambda: (engine.cancelled, engine.running) == (2, 0))
    assert site.metric("timeouts_total", type="request") == 2
