"""What the HTTP reference says of answers and of the events of streams, held against what the frontend writes."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
from docs.generate.api import http_page
from docs.generate.api.answer_texts import ANSWER_TEXTS
from docs.generate.api.event_texts import MESSAGE, MESSAGES_EVENTS, RESPONSE, RESPONSES_EVENTS

from dynamo.frontend.errors import ApiError
from dynamo.frontend.openai.chunks import Identity
from dynamo.frontend.openai.responses_requests import echo_of
from dynamo.frontend.openai.responses_structs import ResponsesRequest
from dynamo.frontend.openai.responses_tools import CUSTOM
from dynamo.frontend.responses.generation_events import CallArguments, CallBegun, Ended, Event, Usage
from dynamo.frontend.responses.messages_writer import MessagesWriter
from dynamo.frontend.responses.responses_writer import ResponsesWriter, response_of
from dynamo.llm.parsers.events import Content, Thought

SAID: list[Event] = [Thought("Hm."), Content("Hi"), CallBegun(0, "call_1", "f"), CallArguments(0, "{}")]
GONE = ApiError(503, "gone", code="worker_lost")
CUSTOM_CALL: list[Event] = [CallBegun(1, "call_2", "c"), CallArguments(1, '{"input": "x"}')]


def fields(sent: Iterable[bytes]) -> dict[str, set[str]]:
    """Return the members of events by type, without those that each has."""
    by_type: defaultdict[str, set[str]] = defaultdict(set)
    for event in sent:
        body = json.loads(event.partition(b"data: ")[2])
        by_type[body["type"]] |= body.keys() - {"type", "sequence_number"}
    return dict(by_type)


def described(events: Any) -> dict[str, set[str]]:
    """Return the members that the reference names by event."""
    return {name: set(re.findall(r"`(\w+)`", about)) for name, (about, _) in events.items()}


def test_every_field_of_an_answer_has_a_sentence() -> None:
    """By the schemas that a frontend serves; a schema that is gone has none."""
    schemas = http_page.openapi()["components"]["schemas"]
    named = {title: {*schemas.get(title, {}).get("properties", ())} for title in ANSWER_TEXTS}
    assert named == {title: {*texts} for title, texts in ANSWER_TEXTS.items()}


def responses(*, summarises: bool, length: bool, fails: bool = False) -> tuple[list[bytes], dict[str, Any]]:
    """Return the events of one stored response that has an item of each kind, and its object."""
    sent: list[bytes] = []
    echo = echo_of(ResponsesRequest(model="m", input="x"))
    writer = ResponsesWriter(
        response_of("resp_1", 0, "m", echo), sent.append, lambda: 0.0, kinds={"c": CUSTOM}, summarises=summarises
    )
    sent += writer.queue().split(b"\n\n")[:2]
    writer.begin(Usage(1, 0, 0))
    for event in [*SAID, *CUSTOM_CALL]:
        writer.say(event)
    if fails:
        sent.append(writer.failure(GONE))
    else:
        writer.say(Ended("length" if length else "stop"))
        writer.say(Usage(1, 1, 0))
    return sent, json.loads(msgspec.json.encode(writer.response))


def test_the_events_of_responses_are_described() -> None:
    """Every kind that is sent, with its members; no other one is named."""
    told = described(RESPONSES_EVENTS)
    whole, response = responses(summarises=False, length=False)
    cut, _ = responses(summarises=True, length=True)
    failed, _ = responses(summarises=False, length=False, fails=True)
    assert fields([*whole, *cut, *failed]) == told
    assert response.keys() == RESPONSE.keys()


def test_the_events_of_messages_are_described() -> None:
    """As those of responses; `ping` and `message_stop` are bare."""
    sent: list[bytes] = []
    writer = MessagesWriter(Identity("msg_1", 0, "m", "fp"), sent.append)
    writer.begin(Usage(1, 0, 0))
    for event in [*SAID, Ended("stop"), Usage(1, 1, 0)]:
        writer.say(event)
    sent.append(writer.failure(GONE))
    seen = {name: members - {"request_id"} for name, members in fields(sent).items()}
    assert seen == described(MESSAGES_EVENTS)
    assert json.loads(writer.whole()).keys() == MESSAGE.keys()
