"""Stored responses by the `openai` SDK: conversations that go on, what is read again, and who may."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any

import openai
import pytest

from dynamo.frontend.errors import ApiError
from dynamo.frontend.limits.request_threads import RequestThreads
from dynamo.frontend.limits.settings import StoredResponsesSettings
from dynamo.frontend.stored.store import StoredResponse, StoredResponses, owner_of

ASK: Any = {"model": "m", "max_output_tokens": 3}


def prompt_of(echo: Any) -> str:
    return bytes(echo.seen[-1]["token_ids"]).decode()


def test_a_conversation_goes_on(served: Any, echo: Any) -> None:
    """The model sees all of it, whole or streamed; instructions are those of the last request."""
    with served.client() as client:
        first = client.responses.create(**ASK, input="one", instructions="A")
        assert first.store is True
        events = list(client.responses.create(**ASK, input="two", previous_response_id=first.id, stream=True))
        second = events[-1].response
        third = client.responses.create(
            **ASK, input=[{"role": "user", "content": "three"}], previous_response_id=second.id, instructions="B"
        )
        counted = client.responses.input_tokens.count(
            model="m", input=[{"role": "user", "content": "three"}], previous_response_id=second.id, instructions="B"
        )
    said = [first.output_text, second.output[0].content[0].text]
    assert prompt_of(echo) == (
        f"System: B\nUser: one\nAssistant: {said[0].strip()}\nUser: two\nAssistant: {said[1].strip()}\n"
        "User: three\nAssistant:"
    )
    assert counted.input_tokens == third.usage.input_tokens
    assert third.previous_response_id == second.id


def test_items_by_reference(served: Any, echo: Any) -> None:
    """What a stored answer said may be named by its id, while it is stored, by whom it was said to."""
    with served.client() as client:
        first = client.responses.create(**ASK, input="one")
        named: Any = [
            {"role": "user", "content": "one"}, {"type": "item_reference", "id": first.output[0].id},
            {"role": "user", "content": "two"},
        ]  # fmt: skip
        second = client.responses.create(**ASK, input=named)
        assert prompt_of(echo) == f"User: one\nAssistant: {first.output_text.strip()}\nUser: two\nAssistant:"
        assert client.responses.input_tokens.count(model="m", input=named).input_tokens == second.usage.input_tokens
        listed = client.responses.input_items.list(second.id, order="asc")
        assert listed.data[1].id == first.output[0].id
        with served.client().with_options(api_key="b") as other, pytest.raises(openai.NotFoundError):
            other.responses.create(**ASK, input=named)
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError, match=r"input\[1\]"):
            client.responses.create(**ASK, input=named)
        for wrong in ({}, {"id": 5}):
            odd: Any = [{"type": "item_reference", **wrong}]
            with pytest.raises(openai.NotFoundError):
                client.responses.create(**ASK, input=odd)


def test_references_are_bounded(make_site: Any, echo: Any) -> None:
    """One item may be named a thousand times: together they are no larger than a body."""
    site = make_site(body_limit_mb=0.5)
    site.worker(echo)
    with site.client() as client:
        first = client.responses.create(model="m", input="x" * 400)
        often: Any = [{"type": "item_reference", "id": first.output[0].id}] * 3000
        with pytest.raises(openai.BadRequestError, match="too much"):
            client.responses.create(model="m", input=often)


def test_what_is_read_again(served: Any) -> None:
    """The response as it was answered, its items page by page, and nothing once it is deleted."""
    with served.client() as client:
        first = client.responses.create(**ASK, input="one")
        second = client.responses.create(
            **ASK, previous_response_id=first.id,
            input=[{"role": "user", "content": "two"}, {"role": "user", "content": "three"}],
        )  # fmt: skip
        assert client.responses.retrieve(second.id) == second
        listed = list(client.responses.input_items.list(second.id, limit=1))
        texts = [item.content[0].text for item in listed]
        assert texts == ["three", "two", first.output_text, "one"]
        assert listed[2].id == first.output[0].id
        assert [item.id for item in client.responses.input_items.list(second.id, order="asc")] == [
            item.id for item in listed[::-1]
        ]
        items = f"/responses/{second.id}/input_items"
        for query in ("limit=0", "limit=101", "limit=a", "order=up"):
            with pytest.raises(openai.BadRequestError, match=query.partition("=")[0]):
                client.get(f"{items}?{query}", cast_to=object)
        with pytest.raises(openai.NotFoundError, match="last_id of the page before"):
            client.get(f"{items}?after=x", cast_to=object)
        assert client.get(f"{items}?after=", cast_to=object) == client.get(items, cast_to=object)
        with pytest.raises(openai.BadRequestError, match="background"):
            client.responses.cancel(second.id)
        client.responses.delete(first.id)
        for gone in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                gone(first.id)
        with pytest.raises(openai.BadRequestError, match="earlier response"):
            client.responses.create(**ASK, input="four", previous_response_id=second.id)
        with pytest.raises(openai.BadRequestError, match="that response"):
            client.responses.create(**ASK, input="four", previous_response_id="resp_none")


def test_messages_are_listed_in_parts(served: Any) -> None:
    """However a message's content was sent, it is listed as the SDK reads it."""
    said: Any = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    with served.client() as client:
        first = client.responses.create(**ASK, input=[*said, {"role": "user", "content": "again"}])
        second = client.responses.create(**ASK, input="three", previous_response_id=first.id)
        listed = client.responses.input_items.list(second.id, order="asc").data
    assert [item.to_dict() | {"id": ""} for item in listed if item.id != first.output[0].id] == [
        {"id": "", "type": "message", "role": role, "status": "completed", "content": [part]}
        for role, part in (
            ("user", {"type": "input_text", "text": "one"}),
            ("assistant", {"type": "output_text", "text": "two", "annotations": []}),
            ("user", {"type": "input_text", "text": "again"}), ("user", {"type": "input_text", "text": "three"}),
        )
    ]  # fmt: skip


def test_others_see_nothing(served: Any) -> None:
    """Another key, or another tenant, has no such response, and can't go on from it."""
    with served.client() as client:
        mine = client.responses.create(**ASK, input="secret")
        kept = client.responses.create(**ASK, input="secret", store=False)
        assert kept.store is False
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(kept.id)
    for other in (served.client().with_options(api_key="b"), served.client(default_headers={"x-tenant-id": "t"})):
        with other:
            with pytest.raises(openai.NotFoundError):
                other.responses.retrieve(mine.id)
            with pytest.raises(openai.NotFoundError):
                other.responses.input_items.list(mine.id)
            with pytest.raises(openai.BadRequestError):
                other.responses.create(**ASK, input="and?", previous_response_id=mine.id)
            with pytest.raises(openai.NotFoundError):
                other.responses.delete(mine.id)


def test_a_route_that_is_not_served_is_no_id(served: Any) -> None:
    """OpenAI has it beside the ids of responses; clients that find 404 do without."""
    answer = served.post("/v1/responses/compact", {"model": "m", "input": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")
    assert served.post("/v1/responses/resp_1", {}).status_code == 405


def test_where_nothing_is_stored(make_site: Any, echo: Any) -> None:
    """Switched off: an answer says so, and what needs the store is refused."""
    site = make_site(stored_responses_ttl_secs=0.0)
    site.worker(echo)
    with site.client() as client:
        answer = client.responses.create(**ASK, input="one")
        assert answer.store is False
        for needs in ({"previous_response_id": answer.id}, {"background": True}):
            with pytest.raises(openai.BadRequestError, match="switched off") as refused:
                client.responses.create(**ASK, input="two", **needs)
            assert refused.value.param == next(iter(needs))
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(answer.id)


def kept(number: int, owner: bytes = b"a", size: int = 0, previous: str | None = None) -> StoredResponse:
    """A stored response."""
    output = [{"type": "message", "role": "assistant", "content": f"{number}"}]
    response = json.dumps({"id": f"r{number}", "output": output}).encode()
    return StoredResponse(f"r{number}", owner, response, json.dumps(["x" * size]).encode(), previous)


def ids(store: StoredResponses, most: int, owner: bytes = b"a") -> list[int]:
    """Those of a caller that are still there, looked at from the newest to the oldest."""
    there = []
    for number in reversed(range(most)):
        with contextlib.suppress(ApiError):
            there.append(int(store.get(owner, f"r{number}").id[1:]))
    return there


def test_bounds_of_number_and_bytes() -> None:
    """Who has more than others loses its own, least recently used first; what fits nowhere isn't kept at all."""
    store = StoredResponses(StoredResponsesSettings(max_count=5, max_mb=1.0))
    store.keep(kept(100, b"small"))
    for number in range(9):
        store.keep(kept(number))
        store.get(b"small", "r100")
        if number:
            store.get(b"a", "r0")
    assert ids(store, 9) == [8, 7, 6, 0]
    store.keep(kept(9, size=900_000))
    store.keep(kept(10, size=400_000))
    assert ids(store, 11) == [10]
    assert store.bytes <= 1 << 20
    store.keep(kept(11, size=2_000_000))
    assert ids(store, 12) == [10]
    assert store.get(b"small", "r100")
    ids(store, 12)
    store.keep(kept(101, b"small", size=100_000))
    assert ids(store, 102, b"small") == [101, 100]
    store.keep(kept(102, b"new", size=700_000))
    assert (ids(store, 103, b"new"), ids(store, 103, b"small"), ids(store, 12)) == ([102], [101, 100], [])


def test_age() -> None:
    """What nobody has used for so long is gone, with what it took; use keeps it, and a conversation's use all of it."""
    now = [0.0]
    store = StoredResponses(StoredResponsesSettings(ttl=10.0), lambda: now[0])
    store.keep(kept(0))
    store.keep(kept(1, previous="r0"))
    store.keep(kept(2))
    now[0] = 9.0
    assert [stored.id for stored in store.chain(b"a", "r1", 10_000)] == ["r1", "r0"]
    assert [stored.id for stored in store.chain(b"a", "r1", 10)] == ["r1"], "with it they are too much already"
    now[0] = 15.0
    assert ids(store, 3) == [1, 0]
    now[0] = 26.0
    assert (ids(store, 3), len(store), store.bytes) == ([], 0, 0)


def test_owners() -> None:
    """A tenant comes before a key; neither is kept as it came."""
    assert owner_of({}) == b""
    owners = [
        owner_of({b"authorization": b"Bearer a"}), owner_of({b"x-api-key": b"Bearer a"}),
        owner_of({b"authorization": b"Bearer a", b"x-tenant-id": b"t"}),
    ]  # fmt: skip
    assert len(set(owners)) == 3
    assert all(b"Bearer" not in owner for owner in owners)


def test_many_small_ones_of_one_owner_leave_the_others() -> None:
    """Where the number is exceeded, owners are compared by number, not by bytes."""
    store = StoredResponses(StoredResponsesSettings(max_count=20, max_mb=64.0))
    for number in range(5):
        store.keep(kept(number, b"%d" % number, size=1 << 20))
    for number in range(100, 200):
        store.keep(kept(number, b"many"))
    assert all(store.get(b"%d" % number, f"r{number}") for number in range(5))


def test_reservations_are_bounded() -> None:
    """One owner gets half of the room for requests that are answered now, all together the whole."""
    store = StoredResponses(StoredResponsesSettings(max_mb=1.0))
    half = 1 << 19
    assert store.reserve(b"a", half)
    assert not store.reserve(b"a", 1)
    assert store.reserve(b"b", half)
    assert not store.reserve(b"c", 1)
    store.release(b"a", half)
    assert store.reserve(b"c", 1)


def test_what_nobody_reads_is_not_stored(served: Any, echo: Any) -> None:
    """Fields that no model sees cost whoever goes on nothing; neither do their parts count."""
    junk: list[Any] = [[] for _ in range(1000)]
    item: Any = {"role": "user", "content": [{"type": "input_text", "text": "one", "x": junk}], "x": junk}
    with served.client() as client:
        first = client.responses.create(**ASK, input=[item])
        (listed,) = client.responses.input_items.list(first.id).data
        assert set(listed.to_dict()) == {"id", "type", "role", "content", "status"}
        assert [part.to_dict() for part in listed.content] == [{"type": "input_text", "text": "one"}]
        client.responses.create(**ASK, input="two", previous_response_id=first.id)
    assert "User: one\n" in prompt_of(echo)


def test_items_sent_twice_are_paged_once_each(served: Any) -> None:
    """A page that begins behind an item that comes twice would come twice, for ever."""
    with served.client() as client:
        item: Any = {"role": "user", "id": "msg_same", "content": "one"}
        first = client.responses.create(**ASK, input=[item, item, item])
        pages = [entry.id for entry in client.responses.input_items.list(first.id, limit=1, order="asc")]
    assert len(set(pages)) == len(pages) == 3


def test_callers_take_turns_where_short_bodies_are_read_in_threads(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that names what is stored is read in a thread: in its own caller's turn."""
    callers = []
    turn = RequestThreads.turn

    def noted(self: RequestThreads, caller: bytes, deadline: float | None) -> Any:
        callers.append(caller)
        return turn(self, caller, deadline)

    monkeypatch.setattr(RequestThreads, "turn", noted)
    for key in ("a", "b"):
        with served.client().with_options(api_key=key) as client:
            first = client.responses.create(**ASK, input="one")
            client.responses.create(**ASK, input="two", previous_response_id=first.id)
    assert callers == [b"Bearer a", b"Bearer b"]


def test_what_is_reserved_is_given_back(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the loop alone: a thread that reads a body may go on after its request has left."""
    seen = []
    reserve, release = StoredResponses.reserve, StoredResponses.release

    def reserved(self: StoredResponses, owner: bytes, size: int) -> bool:
        seen.append((threading.current_thread().name, size))
        return reserve(self, owner, size)

    def released(self: StoredResponses, owner: bytes, size: int) -> None:
        seen.append((threading.current_thread().name, -size))
        release(self, owner, size)

    monkeypatch.setattr(StoredResponses, "reserve", reserved)
    monkeypatch.setattr(StoredResponses, "release", released)
    with served.client() as client:
        first = client.responses.create(**ASK, input="one")
        client.responses.create(**ASK, input="two", previous_response_id=first.id)  # read in a thread
        list(client.responses.create(**ASK, input="three", stream=True))
    assert len(seen) == 6
    assert len({name for name, _ in seen}) == 1
    assert sum(size for _, size in seen) == 0
