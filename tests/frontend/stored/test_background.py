"""`background: true` by the `openai` SDK: asked again, followed from any event, cancelled, and what it may cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from dynamo.frontend.stored.background import MOST_OF_ONE, Background
from dynamo.frontend.stored.event_log import STEP, EventLog
from dynamo.llm.protocols import delta

ASK: Any = {"model": "m", "input": "hello", "max_output_tokens": 5, "background": True}


def over(client: openai.OpenAI, response: Any) -> Any:
    """The response once it is over."""
    deadline = time.monotonic() + 10
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < deadline, response
        time.sleep(0.01)
        response = client.responses.retrieve(response.id)
    return response


def test_polling(served: Any, echo: Any) -> None:
    """It is answered at once as queued, runs without its client, and is the usual object in the end."""
    echo.hold = asyncio.Event()
    with served.client() as client:
        first = client.responses.create(**ASK, metadata={"a": "b"})
        assert (first.status, first.background, first.output, first.metadata) == ("queued", True, [], {"a": "b"})
        assert client.responses.retrieve(first.id).status == "queued"
        with pytest.raises(openai.BadRequestError, match="still runs"):
            client.responses.create(model="m", input="two", previous_response_id=first.id)
        served.call(echo.hold.set)
        done = over(client, first)
        assert (done.status, len(done.output_text), done.usage.output_tokens) == ("incomplete", 5, 5)
        assert done.id == first.id
        assert client.responses.input_items.list(first.id).data[0].content[0].text == "hello"
        assert client.responses.create(model="m", input="two", previous_response_id=first.id).previous_response_id
        with pytest.raises(openai.BadRequestError, match="background and stream"):
            client.responses.retrieve(first.id, stream=True)


def test_a_stream_goes_on_elsewhere(served: Any, echo: Any, within: Callable[..., Any]) -> None:
    """A client that leaves ends nothing, and goes on behind the last event that it saw; also once all is over."""
    echo.hold = asyncio.Event()
    with served.client() as client:
        with client.responses.create(**ASK, stream=True) as stream:
            seen = [next(stream), next(stream)]
        assert [event.type for event in seen] == ["response.created", "response.queued"]
        served.call(echo.hold.set)
        rest = list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=1))
        assert [event.sequence_number for event in rest] == list(range(2, len(rest) + 2))
        assert rest[0].type == "response.in_progress"
        assert (rest[-1].type, rest[-1].response.output_text) == (
            "response.incomplete", "".join(e.delta for e in rest if e.type == "response.output_text.delta"),
        )  # fmt: skip
        again = list(client.responses.retrieve(seen[0].response.id, stream=True))
        assert [event.to_dict() for event in again] == [event.to_dict() for event in [*seen, *rest]]
        assert list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=9999)) == []
    path = f"{served.url}/v1/responses/{seen[0].response.id}?stream=true&starting_after="
    for wrong in ("x", "-2", "1" * 12):
        answer = httpx.get(path + wrong, headers={"authorization": "Bearer any"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")
    assert httpx.get(f"{path}0").status_code == 404, "somebody else's"


def test_cancel_and_delete(served: Any, echo: Any, within: Callable[..., Any]) -> None:
    """Both free the engine; a cancelled one is there with what it said, a deleted one isn't."""
    echo.delay = 0.01
    with served.client() as client:
        long = {**ASK, "max_output_tokens": 900, "stream": True}
        with client.responses.create(**long) as stream:
            response = next(stream).response
            ended = client.responses.cancel(response.id)
            kinds = [event.type for event in stream]
        assert (ended.status, kinds[-1]) == ("cancelled", "response.incomplete")
        assert client.responses.retrieve(response.id).status == "cancelled"
        assert client.responses.cancel(response.id).status == "cancelled", "twice is the same"
        within("the engine is free", lambda: not echo.running)
        other = client.responses.create(**ASK | {"max_output_tokens": 900})
        client.responses.delete(other.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(other.id)
        within("the engine is free", lambda: not echo.running)
        assert echo.cancelled == 2


def test_failures(make_site: Any, engines: Any) -> None:
    """What is wrong with a request is its answer; what fails later is a failed response, also before any token."""

    class Failing(engines):  # type: ignore[misc] # a class of the conftest's choice
        async def speak(self, incoming: Any, payload: dict[str, Any]) -> None:
            await asyncio.sleep(0.05)
            incoming.finish(delta([], "error", {"message": "out of steam"}))

    site = make_site()
    site.worker(Failing())
    with site.client() as client:
        with pytest.raises(openai.BadRequestError):
            client.responses.create(**{**ASK, "max_output_tokens": 0})
        with pytest.raises(openai.NotFoundError):
            client.responses.create(**{**ASK, "model": "nobody"})
        failed = over(client, client.responses.create(**ASK))
        assert (failed.status, failed.error.code) == ("failed", "server_error")
        events = list(client.responses.create(**ASK, stream=True))
        assert [event.type for event in events] == ["response.created", "response.queued", "response.failed"]


def test_bounds(make_site: Any, engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as a request while it runs, and one caller may have so many."""
    site = make_site(max_requests_per_client=1)
    site.worker(engines(delay=0.05))
    with site.client() as client:
        first = client.responses.create(**{**ASK, "max_output_tokens": 900})
        with pytest.raises(openai.RateLimitError):
            client.responses.create(**ASK)
        client.responses.cancel(first.id)
        second = client.responses.create(**ASK)
        client.responses.cancel(second.id)
    background = Background.__new__(Background)
    background._of = {b"a": MOST_OF_ONE}
    with pytest.raises(Exception, match="256 of 256"):
        background.check(b"a")


def test_a_frontend_that_leaves_waits(make_site: Any, engines: Any) -> None:
    """A run is one of the requests that get their time to end."""
    site = make_site(graceful_shutdown_timeout_secs=10.0)
    echo = engines(delay=0.02)
    site.worker(echo)
    with site.client() as client:
        client.responses.create(**{**ASK, "max_output_tokens": 20})
    site.call(site.leaving.signal)
    site._thread.join(10)
    assert (echo.cancelled, echo.running) == (0, 0)


async def test_a_log_keeps_the_newest() -> None:
    """In the room that there is; who comes too late is told which event is the first."""
    room = [STEP]

    def grow(size: int) -> bool:
        granted, room[0] = room[0] >= size, room[0] - size
        return granted

    events = EventLog(grow)
    for number in range(100):
        events.add(b"data: %d %s\n\n" % (number, b"x" * 2000))
    assert (events.room, events.bytes <= STEP) == (STEP, True)
    assert events.next == 100
    assert events.since(99) == [b"data: 99 " + b"x" * 2000 + b"\n\n"]
    assert events.since(0)[0].startswith(b"data: %d " % events.first)
    waiting = asyncio.ensure_future(events.wait(100, 5))
    await asyncio.sleep(0)
    events.add(b"data: 100\n\n")
    await asyncio.wait_for(waiting, 1)
    events.end()
    await asyncio.wait_for(events.wait(500, 5), 1)
