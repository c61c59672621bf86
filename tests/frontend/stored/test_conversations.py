"""Conversations by the `openai` SDK: made, read, changed, gone on, and deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

ASK: Any = {"model": "m", "max_output_tokens": 3}


def prompt_of(echo: Any) -> str:
    return bytes(echo.seen[-1]["token_ids"]).decode()


def test_a_conversation_grows_by_its_responses(served: Any, echo: Any) -> None:
    """What is asked and said is in it, for the next response and for whoever lists it; whole or streamed."""
    with served.client() as client:
        made = client.conversations.create(
            metadata={"topic": "a"}, items=[{"type": "message", "role": "user", "content": "zero"}]
        )
        assert (made.object, made.metadata) == ("conversation", {"topic": "a"})
        first = client.responses.create(**ASK, input="one", conversation=made.id)
        assert first.conversation is not None
        assert first.conversation.id == made.id
        events = list(client.responses.create(**ASK, input="two", conversation={"id": made.id}, stream=True))
        said = [first.output_text, events[-1].response.output_text]
        client.responses.create(**ASK, input="three", conversation=made.id, store=False)
        assert prompt_of(echo) == (
            f"User: zero\nUser: one\nAssistant: {said[0].strip()}\nUser: two\nAssistant: {said[1].strip()}\n"
            "User: three\nAssistant:"
        )
        items = client.conversations.items.list(made.id, order="asc").data
        assert [item.role for item in items] == ["user", "user", "assistant", "user", "assistant", "user", "assistant"]
        assert items[2].id == first.output[0].id
        assert len({item.id for item in items}) == len(items)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError):
            client.responses.create(**ASK, input="x", previous_response_id=made.id)


def test_items_are_added_read_and_deleted(served: Any) -> None:
    """Items have ids of their own; one that is deleted is gone, and so is the conversation."""
    with served.client() as client:
        made = client.conversations.create()
        added = client.conversations.items.create(
            made.id, items=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        )
        first, second = added.data
        assert client.conversations.items.retrieve(first.id, conversation_id=made.id).content[0].text == "a"
        assert [item.id for item in client.conversations.items.list(made.id, limit=1)] == [second.id, first.id]
        assert client.conversations.items.delete(first.id, conversation_id=made.id).id == made.id
        with pytest.raises(openai.NotFoundError):
            client.conversations.items.retrieve(first.id, conversation_id=made.id)
        assert client.conversations.update(made.id, metadata={"b": "c"}).metadata == {"b": "c"}
        assert client.conversations.retrieve(made.id).metadata == {"b": "c"}
        assert client.conversations.delete(made.id).deleted is True
        with pytest.raises(openai.NotFoundError):
            client.conversations.retrieve(made.id)


def test_others_have_none_of_it(served: Any) -> None:
    """A conversation is its owner's: another key finds nothing, by any route."""
    with served.client() as client, served.client().with_options(api_key="b") as other:
        made = client.conversations.create(items=[{"role": "user", "content": "mine"}])
        asks: list[Callable[[], Any]] = [
            lambda: other.conversations.retrieve(made.id),
            lambda: other.conversations.update(made.id, metadata={}),
            lambda: other.conversations.delete(made.id),
            lambda: other.conversations.items.list(made.id),
            lambda: other.conversations.items.create(made.id, items=[{"role": "user", "content": "x"}]),
            lambda: other.responses.create(**ASK, input="x", conversation=made.id),
        ]
        for ask in asks:
            with pytest.raises(openai.NotFoundError):
                ask()
        assert len(client.conversations.items.list(made.id).data) == 1


def test_wrong_items_are_refused(served: Any) -> None:
    """Each 400 names the item, and nothing is added."""
    with served.client() as client:
        made = client.conversations.create()
        for items in ([{"type": "message", "role": "nobody", "content": "x"}], [{"type": "what"}], []):
            with pytest.raises(openai.BadRequestError, match="items"):
                client.conversations.items.create(made.id, items=items)
        many: Any = [{"role": "user", "content": "x"}] * 21
        with pytest.raises(openai.BadRequestError):
            client.conversations.items.create(made.id, items=many)
        assert client.conversations.items.list(made.id).data == []


def test_metadata_has_texts_only(served: Any) -> None:
    """A value that is none is named, where a conversation is made and where it is changed."""
    wrong: Any = {"a": "b", "c": 1}
    with served.client() as client:
        made = client.conversations.create(metadata={"a": "x" * 512})
        for ask in (
            client.conversations.create,
            lambda metadata: client.conversations.update(made.id, metadata=metadata),
        ):
            with pytest.raises(openai.BadRequestError, match=r"metadata\.c: expected str, got int"):
                ask(metadata=wrong)
        assert client.conversations.retrieve(made.id) == made


def test_a_response_of_a_conversation_is_gone_on_from_with_it(served: Any, echo: Any) -> None:
    """Named as the previous one, it brings the conversation as it was then, and nothing that came later."""
    with served.client() as client:
        made = client.conversations.create(items=[{"type": "message", "role": "user", "content": "zero"}])
        first = client.responses.create(**ASK, input="one", conversation=made.id)
        client.responses.create(**ASK, input="later", conversation=made.id)
        second = client.responses.create(**ASK, input="two", previous_response_id=first.id)
        expected = f"User: zero\nUser: one\nAssistant: {first.output_text.strip()}\nUser: two\n"
        assert prompt_of(echo) == f"{expected}Assistant:"
        client.responses.create(**ASK, input="three", previous_response_id=second.id)
        assert prompt_of(echo).startswith(f"{expected}Assistant: {second.output_text.strip()}\nUser: three")
        client.conversations.delete(made.id)
        client.responses.create(**ASK, input="four", previous_response_id=first.id)
        assert prompt_of(echo) == f"{expected.replace('two', 'four')}Assistant:"
        gone: list[Callable[[], object]] = [
            lambda: client.conversations.retrieve(made.id),
            lambda: client.conversations.items.list(made.id),
            lambda: client.conversations.update(made.id, metadata={}),
            lambda: client.conversations.delete(made.id),
        ]
        for ask in gone:
            with pytest.raises(openai.NotFoundError):
                ask()
        with pytest.raises(openai.OpenAIError):
            client.responses.create(**ASK, input="five", conversation=made.id)
        client.responses.delete(first.id)
        with pytest.raises(openai.BadRequestError, match="isn't stored here"):
            client.responses.create(**ASK, input="six", previous_response_id=first.id)
